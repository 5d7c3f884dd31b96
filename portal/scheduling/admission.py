"""The verdict on a request. The form's preview and the creation itself run the same code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from portal.accounts.models import Team, User
from portal.catalog.models import Flavor, Template
from portal.common.errors import NeedsApproval, NotPossible, PortalError
from portal.common.formatting import units_per_whole
from portal.common.reasons.codes import AdmissionCode, Rule
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of
from portal.inventory.models import Pool, PoolState
from portal.quotas import resources
from portal.scheduling import (
    blockers,
    queue_status,
    snapshot_cache,
    software_requirements,
)
from portal.scheduling.capacity import PoolNodes
from portal.scheduling.engine import model
from portal.scheduling.engine.verdicts import verdict as queue_verdict
from portal.scheduling.placement_request import PlacementRequest, candidate_pools
from portal.scheduling.snapshot import (
    ClusterSnapshot,
    PendingWorkload,
    place_key,
    possible,
    without_preemption,
)
from portal.workspaces.domain_events import WorkspaceRequested
from provisioning.types import Placement

REQUEST = "request"
"""The id under which a request that has no workspace yet stands in the queue."""
Outcome = model.Outcome
MISSING_GPU_HOURS = 10
"""How many GPU-hours are proposed to a team that has none left."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What would have to be asked for so that the request could start: `amount` more of `resource`."""

    kind: str
    resource: str
    amount: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome, its reason, and the reason of each node.

    `eta_at` with its `basis` and `position` (from 1) are set where it queues. `blocker` is the rule in
    the way with its numbers and holders. `ask` is set where asking for more would help. `pool` and
    `placement` say where it would go now.
    """

    outcome: Outcome
    reason: Reason
    reasons: blockers.NodeReasons = ()
    pool: Pool | None = None
    placement: Placement | None = field(default=None, repr=False)
    position: int | None = None
    eta_at: datetime | None = None
    basis: Reason | None = None
    blocker: Mapping[str, Any] = field(default_factory=dict)
    ask: Ask | None = None

    @property
    def message(self) -> str:
        """Why, in a sentence or two."""
        return message_of(self.reason)

    @property
    def next_action(self) -> str:
        """The one thing to do about it, or an empty string."""
        return next_action_of(self.reason)

    @property
    def eta_basis(self) -> str:
        """What the expected start rests on, for a page; empty where there is none."""
        return message_of(self.basis) if self.basis is not None else ""

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
    with snapshot_cache.previews.use() as snapshot:
        return assess_on(
            snapshot,
            template=template,
            flavor=flavor,
            team=team,
            actor=actor,
            data=resources,
            priority=priority,
        )


def assess_many(
    *, template: Template, flavors: Iterable[Flavor], team: Team | None = None, actor: User | None = None
) -> list[Verdict]:
    """The verdicts of several flavors on one and the same state."""
    with snapshot_cache.previews.use() as snapshot:
        return [
            assess_on(snapshot, template=template, flavor=flavor, team=team, actor=actor)
            for flavor in flavors
        ]


def assess_on(
    snapshot: ClusterSnapshot,
    *,
    template: Template,
    flavor: Flavor,
    team: Team | None,
    actor: User | None,
    data: Mapping[str, Any] | None = None,
    priority: int = 0,
) -> Verdict:
    """The verdict on a state that has been read; it is left as it was."""
    candidates = candidate_pools(flavor, snapshot.pools)
    if not candidates:
        return Verdict(Outcome.IMPOSSIBLE, Reason(AdmissionCode.NO_ENABLED_POOL))
    placement_request = snapshot.placement_requests.of(template, flavor, data)
    if not possible(placement_request):
        return _impossible(placement_request, candidates)
    if team is None:
        return _by_capacity(placement_request)
    workload = model.Workload(
        id=REQUEST,
        team=team.slug,
        amounts={},
        user=str(actor.pk) if actor is not None else "",
        priority=priority,
        # Behind everybody who asked before: the youngest of its second.
        created_s=snapshot.now_s + 1,
        duration_s=max(1, flavor.expected_s),
        preemptible=flavor.preemptible,
        place=place_key(placement_request),
    )
    verdicts = []
    for variant in placement_request.variants:
        pending = PendingWorkload(REQUEST, placement_request, replace(workload, amounts=variant.amounts))
        snapshot.placer.expect(REQUEST, placement_request, variant)
        found = _of_variant(snapshot, pending)
        snapshot.placer.undo()
        if found.outcome is Outcome.FITS_NOW:
            return found
        verdicts.append(found)
    return min(verdicts, key=_preference)


_ORDER = {Outcome.QUEUED: 0, Outcome.NEEDS_APPROVAL: 1, Outcome.IMPOSSIBLE: 2}


def _preference(verdict: Verdict) -> tuple[int, bool, float]:
    eta = verdict.eta_at.timestamp() if verdict.eta_at else 0.0
    return (_ORDER[verdict.outcome], verdict.eta_at is None, eta)


def _of_variant(snapshot: ClusterSnapshot, pending: PendingWorkload) -> Verdict:
    with without_preemption(snapshot.scheduler):
        found = queue_verdict(snapshot.scheduler, pending.workload)
    if found.outcome is Outcome.FITS_NOW:
        pool, placement = snapshot.placer.place_of(REQUEST)
        return _fits_now(pool.pool, placement)
    blocker = found.blocker
    assert blocker is not None  # only what fits has none
    outcome = _outcome(found.outcome, blocker)
    queues = outcome is Outcome.QUEUED
    return Verdict(
        outcome,
        blockers.reason_of(
            snapshot, pending.workload, blocker, placement_request=pending.placement_request, outcome=outcome
        ),
        reasons=blockers.node_reasons(pending.placement_request) if blocker.rule in blockers.OF_NODES else (),
        position=found.position or None if queues else None,
        eta_at=queue_status.at(found.eta_s) if queues else None,
        basis=found.basis if queues else None,
        blocker=blockers.as_data(blocker),
        ask=_ask(blocker),
    )


def _fits_now(pool: Pool, placement: Placement) -> Verdict:
    return Verdict(Outcome.FITS_NOW, Reason(AdmissionCode.FITS_NOW), pool=pool, placement=placement)


def _outcome(found: Outcome, blocker: model.Blocker) -> Outcome:
    """What lacks capacity for ever by the numbers waits for a node that is out at present."""
    if found is Outcome.IMPOSSIBLE and blocker.rule is not Rule.SITE_LIMIT:
        return Outcome.QUEUED
    return found


def _ask(blocker: model.Blocker) -> Ask | None:
    short = max(1, blocker.wanted - max(0, blocker.free))
    if blocker.rule is Rule.USER_CAP:
        return Ask("member_cap", blocker.resource, short)
    if blocker.rule in (Rule.TEAM_LIMIT, Rule.COHORT):
        return Ask("quota", blocker.resource, short)
    if blocker.rule is Rule.LEDGER:
        return Ask("ledger", resources.GPU_HOURS, MISSING_GPU_HOURS * units_per_whole(resources.GPU_HOURS))
    return None


def _by_capacity(placement_request: PlacementRequest) -> Verdict:
    for each in placement_request.pools:
        placement = each.cluster.find(each.adapted(placement_request.request, placement_request.template))
        if placement is not None:
            return Verdict(
                Outcome.FITS_NOW, Reason(AdmissionCode.FITS_NOW), pool=each.pool, placement=placement
            )
    return Verdict(
        Outcome.QUEUED, blockers.no_room(placement_request), reasons=blockers.node_reasons(placement_request)
    )


def _impossible(placement_request: PlacementRequest, candidates: Sequence[PoolNodes]) -> Verdict:
    template = placement_request.template
    if all(each.pool.state == PoolState.UNKNOWN for each in candidates):
        return Verdict(Outcome.IMPOSSIBLE, Reason(AdmissionCode.NO_NODE_REPORTED))
    reasons = list(placement_request.refusals)
    for each in placement_request.pools:
        reasons += each.reasons_at_best(each.adapted(placement_request.request, template))
    return Verdict(Outcome.IMPOSSIBLE, _never(placement_request, tuple(reasons)), reasons=tuple(reasons))


def _never(placement_request: PlacementRequest, reasons: blockers.NodeReasons) -> Reason:
    """Why nothing could ever take it: what its template needs, where that is all, else its size."""
    template = placement_request.template
    if _no_node_has_program(placement_request):
        return Reason(
            AdmissionCode.NO_NODE_HAS_PROGRAM,
            {"template": template.name, "program": template.program, "install_hint": template.install_hint},
        )
    needed = software_requirements.requirements_of(template, placement_request.request.accelerators)
    if (needed.min_cuda or needed.min_compute_capability) and _fits_without_needs(placement_request):
        return Reason(
            AdmissionCode.NO_NODE_HAS_SOFTWARE,
            {
                "template": template.name,
                "min_cuda": needed.min_cuda,
                "min_compute_capability": needed.min_compute_capability,
                "model": next(iter(needed.models), ""),
            },
        )
    return blockers.too_large(reasons)


def _no_node_has_program(placement_request: PlacementRequest) -> bool:
    """Whether no node of the pools that could run it has the template's program."""
    program = placement_request.template.program
    nodes = [node for each in placement_request.pools for node in each.nodes]
    simulated = any(each.pool.simulated for each in placement_request.pools)
    return bool(nodes) and not simulated and all(program not in node.software.programs for node in nodes)


def _fits_without_needs(placement_request: PlacementRequest) -> bool:
    """Whether it would fit somewhere if drivers and devices could run the template's software."""
    plain = Template(program=placement_request.template.program)
    return any(
        each.ever_takes(each.adapted(placement_request.request, plain)) for each in placement_request.pools
    )


def _not_admitted(verdict: Verdict) -> PortalError:
    """The refusal that a verdict stands for, with all that it knows."""
    if verdict.outcome is Outcome.NEEDS_APPROVAL:
        ask = verdict.ask
        return NeedsApproval(
            verdict.reason,
            blocker=dict(verdict.blocker),
            ask={"kind": ask.kind, "resource": ask.resource, "amount": ask.amount} if ask else None,
        )
    return NotPossible(
        verdict.reason,
        reasons=[
            {"node": node, "reason": message_of(reason), "code": reason.code.value}
            for node, reason in verdict.reasons
        ],
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
