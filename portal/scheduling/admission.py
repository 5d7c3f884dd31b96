"""The verdict on a request. The form's preview and the creation itself run the same code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from portal.accounts.models import Team, User
from portal.catalog.models import Flavor, Template
from portal.common.errors import NeedsApproval, NotPossible, PortalError
from portal.common.formatting import units_per_whole
from portal.common.reasons.codes import Rule
from portal.inventory.models import Pool, PoolState
from portal.quotas import resources
from portal.scheduling import capacity, queue_status, snapshot, snapshot_cache, software_requirements
from portal.scheduling.capacity import PoolNodes
from portal.scheduling.engine import model
from portal.scheduling.engine import verdicts as admission
from portal.scheduling.placement_request import Asked, candidate_pools
from portal.scheduling.snapshot import Site, Waiter
from portal.workspaces.domain_events import WorkspaceRequested
from provisioning.types import Placement

REQUEST = "request"
"""The id under which a request that has no workspace yet stands in the queue."""


class Outcome(StrEnum):
    """What would happen to the request now."""

    FITS_NOW = "fits_now"
    QUEUED = "queued"
    NEEDS_APPROVAL = "needs_approval"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Ask:
    """What would have to be asked for so that the request could start: `amount` more of `resource`."""

    kind: str
    resource: str
    amount: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome, a sentence for the user, one next action, and the reason of each node.

    `eta_at` with its `basis` and `position` (from 1) are set where it queues. `blocker` is the rule in
    the way with its numbers and holders. `ask` is set where asking for more would help. `pool` and
    `placement` say where it would go now.
    """

    outcome: Outcome
    message: str
    next_action: str = ""
    reasons: tuple[tuple[str, str], ...] = ()
    pool: Pool | None = None
    placement: Placement | None = field(default=None, repr=False)
    position: int | None = None
    eta_at: datetime | None = None
    basis: str = ""
    blocker: Mapping[str, Any] = field(default_factory=dict)
    ask: Ask | None = None

    @property
    def possible(self) -> bool:
        """Whether it would start by itself, now or later."""
        return self.outcome in (Outcome.FITS_NOW, Outcome.QUEUED)


# --- verdicts ----------------------------------------------------------------------------------------


def assess(
    *,
    template: Template,
    flavor: Flavor,
    team: Team | None = None,
    actor: User | None = None,
    resources: Mapping[str, Any] | None = None,
    priority: int = 0,
) -> Verdict:
    """What would happen to this request now. Raises nothing: a refusal is a verdict too.

    Without a team only the pools are looked at, as an operator does. `resources` is what a workspace
    keeps of its flavor as it was.
    """
    with snapshot_cache.previews.use() as site:
        return on_site(
            site, template=template, flavor=flavor, team=team, actor=actor, data=resources, priority=priority
        )


def assess_many(
    *, template: Template, flavors: Iterable[Flavor], team: Team | None = None, actor: User | None = None
) -> list[Verdict]:
    """The verdicts of several flavors on one and the same state."""
    with snapshot_cache.previews.use() as site:
        return [on_site(site, template=template, flavor=flavor, team=team, actor=actor) for flavor in flavors]


def on_site(
    site: Site,
    *,
    template: Template,
    flavor: Flavor,
    team: Team | None,
    actor: User | None,
    data: Mapping[str, Any] | None = None,
    priority: int = 0,
) -> Verdict:
    """The verdict on a state that has been read; it is left as it was."""
    candidates = candidate_pools(flavor, site.pools)
    if not candidates:
        return Verdict(
            Outcome.IMPOSSIBLE,
            "No pool is enabled for this flavor.",
            next_action="Choose another flavor, or ask an operator to enable a pool.",
        )
    asked = site.asking.of(template, flavor, data)
    if not snapshot.possible(asked):
        return _impossible(asked, candidates)
    if team is None:
        return _by_capacity(asked)
    workload = model.Workload(
        id=REQUEST,
        team=team.slug,
        amounts={},
        user=str(actor.pk) if actor is not None else "",
        priority=priority,
        # Behind everybody who asked before: the youngest of its second.
        created_s=site.now_s + 1,
        duration_s=max(1, flavor.expected_s),
        preemptible=flavor.preemptible,
        place=snapshot.place_key(asked),
    )
    verdicts = []
    for variant in asked.variants:
        waiter = Waiter(REQUEST, asked, replace(workload, amounts=variant.amounts))
        site.placer.expect(REQUEST, asked, variant)
        found = _of_variant(site, waiter)
        site.placer.undo()
        if found.outcome is Outcome.FITS_NOW:
            return found
        verdicts.append(found)
    return min(verdicts, key=_preference)


_ORDER = {Outcome.QUEUED: 0, Outcome.NEEDS_APPROVAL: 1, Outcome.IMPOSSIBLE: 2}


def _preference(verdict: Verdict) -> tuple[int, bool, float]:
    eta = verdict.eta_at.timestamp() if verdict.eta_at else 0.0
    return (_ORDER[verdict.outcome], verdict.eta_at is None, eta)


def _of_variant(site: Site, waiter: Waiter) -> Verdict:
    with snapshot.without_preemption(site.scheduler):
        found = admission.verdict(site.scheduler, waiter.workload)
    if found.outcome is model.Outcome.FITS_NOW:
        pool, placement = site.placer.place_of(REQUEST)
        return Verdict(Outcome.FITS_NOW, "Starts now.", pool=pool.pool, placement=placement)
    blocker = found.blocker
    assert blocker is not None  # only what fits has none
    shortfall = (blocker.rule, blocker.resource)
    text = queue_status.message(site, waiter, waiter.workload, shortfall, blocker)
    facts: dict[str, Any] = {
        "blocker": queue_status.as_data(blocker),
        "reasons": queue_status.node_reasons(waiter.asked)
        if blocker.rule in (Rule.PLACEMENT, Rule.CAPACITY)
        else (),
        "ask": _ask(blocker),
    }
    if found.outcome is model.Outcome.IMPOSSIBLE and blocker.rule is Rule.SITE_LIMIT:
        return Verdict(Outcome.IMPOSSIBLE, text, "Choose a smaller flavor.", **facts)
    if found.outcome is model.Outcome.NEEDS_APPROVAL:
        what = "GPU-hours" if blocker.rule is Rule.LEDGER else "more"
        return Verdict(
            Outcome.NEEDS_APPROVAL, text, f"Ask for {what}: it starts by itself when approved.", **facts
        )
    # What lacks capacity for ever by the numbers waits for a node that is out at present.
    return Verdict(
        Outcome.QUEUED,
        text,
        "Start it anyway and it queues, or choose a smaller flavor.",
        position=found.position or None,
        eta_at=queue_status.at(found.eta_s),
        basis=found.basis,
        **facts,
    )


def _ask(blocker: model.Blocker) -> Ask | None:
    short = max(1, blocker.wanted - max(0, blocker.free))
    if blocker.rule is Rule.USER_CAP:
        return Ask("member_cap", blocker.resource, short)
    if blocker.rule in (Rule.TEAM_LIMIT, Rule.COHORT):
        return Ask("quota", blocker.resource, short)
    if blocker.rule is Rule.LEDGER:
        return Ask("ledger", resources.GPU_HOURS, 10 * units_per_whole(resources.GPU_HOURS))
    return None


def _by_capacity(asked: Asked) -> Verdict:
    for each in asked.pools:
        placement = each.cluster.find(each.adapted(asked.request, asked.template))
        if placement is not None:
            return Verdict(Outcome.FITS_NOW, "Starts now.", pool=each.pool, placement=placement)
    reasons = queue_status.node_reasons(asked)
    return Verdict(
        Outcome.QUEUED,
        queue_status.summary("Waits until there is room", reasons),
        next_action="Start it anyway and it queues, or choose a smaller flavor.",
        reasons=reasons,
    )


def _impossible(asked: Asked, candidates: Sequence[PoolNodes]) -> Verdict:
    template = asked.template
    if all(each.pool.state == PoolState.UNKNOWN for each in candidates):
        return Verdict(
            Outcome.IMPOSSIBLE,
            "No node has reported yet.",
            next_action="Wait a few seconds; if this stays, an operator looks at the node workers.",
        )
    reasons = list(asked.refusals)
    for each in asked.pools:
        reasons += each.reasons_at_best(each.adapted(asked.request, template))
    missing = f"lacks {capacity.program_need(template.program)}"
    if reasons and all(reason == missing for _, reason in reasons):
        return Verdict(
            Outcome.IMPOSSIBLE,
            f"{template.name} needs the program {template.program}, which no node has.",
            next_action=template.install_hint or "Choose another template.",
            reasons=tuple(reasons),
        )
    if _stack_alone(asked):
        what = " and ".join(software_requirements.needs(template, asked.request.accelerators))
        return Verdict(
            Outcome.IMPOSSIBLE,
            f"{template.name} needs {what}, which no node with these accelerators has.",
            next_action="Choose another size or template, or ask an operator to update the NVIDIA driver.",
            reasons=tuple(reasons),
        )
    return Verdict(
        Outcome.IMPOSSIBLE,
        queue_status.summary("No node is large enough", reasons),
        next_action="Choose a smaller flavor.",
        reasons=tuple(reasons),
    )


def _stack_alone(asked: Asked) -> bool:
    """Whether it would fit somewhere if only drivers and devices could run the template's software."""
    if not software_requirements.needs(asked.template, asked.request.accelerators):
        return False
    plain = Template(program=asked.template.program)
    return any(each.ever_takes(each.adapted(asked.request, plain)) for each in asked.pools)


def _not_admitted(verdict: Verdict) -> PortalError:
    """The refusal that a verdict stands for, with all that it knows."""
    if verdict.outcome is Outcome.NEEDS_APPROVAL:
        ask = verdict.ask
        return NeedsApproval(
            verdict.message,
            next_action=verdict.next_action,
            blocker=dict(verdict.blocker),
            ask={"kind": ask.kind, "resource": ask.resource, "amount": ask.amount} if ask else None,
        )
    return NotPossible(
        verdict.message,
        next_action=verdict.next_action,
        reasons=[{"node": node, "reason": reason} for node, reason in verdict.reasons],
    )


def admit(event: WorkspaceRequested) -> None:
    """Let a workspace into the queue, or say why not. Raises `NeedsApproval` and `NotPossible`."""
    workspace = event.workspace
    verdict = assess(
        template=workspace.template,
        flavor=workspace.flavor,
        team=workspace.team,
        actor=workspace.owner,
        resources=workspace.resources,
        priority=workspace.priority,
    )
    if not verdict.possible and not (event.unapproved and verdict.outcome is Outcome.NEEDS_APPROVAL):
        raise _not_admitted(verdict)
