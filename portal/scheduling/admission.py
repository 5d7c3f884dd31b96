"""Verdicts on requests: what a creation at this moment would get. Both run the same decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _

from portal.catalog.lifetimes import expected_run_time
from portal.catalog.models import Flavor, Template
from portal.common.formatting import units_per_whole
from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of
from portal.fleet.inventory.models import Pool, PoolState
from portal.people.accounts.models import Team, User
from portal.quota.ledger import budgets
from portal.quota.limits import resources
from portal.scheduling import (
    blockers,
    decision,
    queue_status,
    snapshot_cache,
)
from portal.scheduling.capacity import PoolNodes, without_environments
from portal.scheduling.choice import Explanation
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine import model
from portal.scheduling.engine.outlook import blocker_of
from portal.scheduling.engine.usage import Shortfall
from portal.scheduling.engine.verdicts import refusal
from portal.scheduling.impossible import never_reason
from portal.scheduling.placement_request import PlacementRequest, candidate_pools
from portal.scheduling.placer import HomeMoveAhead
from portal.scheduling.snapshot import (
    ClusterSnapshot,
    FlavorChoice,
    PendingWorkload,
    enqueue,
    register,
)
from portal.workspaces import gpu_requests
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes.places import NOWHERE, Homes
from portal.workspaces.models import Workspace
from portal.workspaces.resizing import resized_request
from portal.workspaces.software import add_software_need
from provisioning.types import Placement

REQUEST = "request"
"""The queue id of a request without a workspace."""
Outcome = model.Outcome
MISSING_GPU_HOURS = 10
"""Number of GPU-hours to propose to a team that has none left."""


@dataclass(frozen=True, slots=True)
class QuotaRequestDraft:
    """The quota request that would allow the start: `amount` more of `resource` for `team`."""

    team: str
    kind: str
    resource: str
    amount: int
    note: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome, its reason, and the reason of each node.

    - `position` (from 1), `eta_at`, `basis`: set if it queues. `member_order`: how the use of members changes
      its position.
    - `blocker`: the blocking rule with its numbers and holders.
    - `quota_request`: set if a request for more quota would help.
    - `pool`, `placement`: where it would go now.
    - `makes_room`: ids of the workspaces that would be preempted.
    - `flavor`: of several listed flavors, the one on which it starts now or is expected to start.
      `next_flavor`: why, if it waits.
    - `home_move`: the move of the home with the start, if it starts now on another node than its home's.
    """

    outcome: Outcome
    reason: Reason
    reasons: blockers.NodeReasons = ()
    pool: Pool | None = None
    placement: Placement | None = field(default=None, repr=False)
    position: int | None = None
    eta_at: datetime | None = None
    basis: Reason | None = None
    member_order: Reason | None = None
    blocker: Mapping[str, Any] = field(default_factory=dict)
    quota_request: QuotaRequestDraft | None = None
    makes_room: tuple[str, ...] = ()
    flavor: Flavor | None = None
    next_flavor: Reason | None = None
    home_move: HomeMoveAhead | None = None

    @property
    def message(self) -> str:
        """The reason as one or two sentences."""
        return message_of(self.reason)

    @property
    def next_action(self) -> str:
        """The next action for the user, or an empty string."""
        return next_action_of(self.reason)

    @property
    def eta_basis(self) -> str:
        """The basis of the expected start as text, or an empty string."""
        return message_of(self.basis) if self.basis is not None else ""

    @property
    def member_order_text(self) -> str:
        """How the use of members changes its position, as a sentence, or an empty string."""
        return message_of(self.member_order) if self.member_order is not None else ""

    @property
    def next_flavor_text(self) -> str:
        """Which of several flavors it waits for and why, as a sentence, or an empty string."""
        return message_of(self.next_flavor) if self.next_flavor is not None else ""

    @property
    def starts_now(self) -> bool:
        """Whether it would start at once."""
        return self.outcome is Outcome.FITS_NOW

    @property
    def in_maintenance(self) -> bool:
        """Whether maintenance alone keeps it from the queue."""
        return self.reason.code in (AdmissionCode.POOL_MAINTENANCE, AdmissionCode.SITE_MAINTENANCE)

    @property
    def possible(self) -> bool:
        """Whether it would start without further changes, now or later."""
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
    expected_s: int | None = None,
    environment: str = "",
    move_home: bool = False,
) -> Verdict:
    """Return the verdict on this request now. Raises nothing: a denial is a verdict too.

    Without a team, only the pools count (for operators). `resources` overrides the flavor's request with the
    one stored with a workspace. `environment` is the digest of its software environment. `move_home`: as in
    an order.
    """
    if environment:
        resources = add_software_need(flavor.as_request() if resources is None else resources, environment)
    start_request = StartRequest(
        *(template, flavor, team, actor, resources, priority, expected_s),
        homes=homes_of(actor, team),
        move_home=move_home,
        blocked=budgets.blocked_teams(),
    )
    with snapshot_cache.preview_cache.use() as snapshot:
        return assess_on(snapshot, start_request)


def assess_choices(
    *,
    template: Template,
    flavors: Sequence[Flavor],
    start_within_s: int = 0,
    team: Team,
    actor: User,
    priority: int = 0,
    expected_s: int | None = None,
    environment: str = "",
    move_home: bool = False,
) -> Verdict:
    """Return the verdict on a request that lists several flavors, in order of preference."""
    homes, blocked = homes_of(actor, team), budgets.blocked_teams()
    first, *others = (
        StartRequest(
            *(template, flavor, team, actor),
            resources=add_software_need(flavor.as_request(), environment),
            priority=priority,
            expected_s=expected_s,
            homes=homes,
            move_home=move_home,
            blocked=blocked,
        )
        for flavor in flavors
    )
    start_request = replace(first, fallbacks=tuple(others), start_within_s=start_within_s)
    with snapshot_cache.preview_cache.use() as snapshot:
        return assess_on(snapshot, start_request)


def assess_many(
    *,
    template: Template,
    flavors: Iterable[Flavor],
    team: Team | None = None,
    actor: User | None = None,
    expected_s: int | None = None,
    environment: str = "",
    move_home: bool = False,
) -> list[Verdict]:
    """Return the verdicts on several flavors for one snapshot."""
    with snapshot_cache.preview_cache.use() as snapshot:
        if team is not None:
            decision.forecast_next(snapshot)
        homes, blocked = homes_of(actor, team), budgets.blocked_teams()
        return [
            assess_on(
                snapshot,
                StartRequest(
                    *(template, flavor, team, actor),
                    resources=add_software_need(flavor.as_request(), environment),
                    expected_s=expected_s,
                    homes=homes,
                    move_home=move_home,
                    blocked=blocked,
                ),
            )
            for flavor in flavors
        ]


def assess_resize(workspace: Workspace, flavors: Iterable[Flavor]) -> list[Verdict]:
    """Return the verdicts on replacing the workspace's flavor by each of the flavors."""
    homes, blocked = homes_of(workspace.owner, workspace.team), budgets.blocked_teams()
    with snapshot_cache.preview_cache.use() as snapshot:
        return [
            assess_on(
                snapshot,
                StartRequest(
                    *(workspace.template, flavor, workspace.team, workspace.owner),
                    resources=resized_request(workspace, flavor)[0],
                    priority=workspace.priority,
                    homes=homes,
                    move_home=workspace.move_home,
                    instead_of=str(workspace.pk),
                    blocked=blocked,
                ),
            )
            for flavor in flavors
        ]


def assess_attached(workspaces: Iterable[Workspace]) -> list[Verdict]:
    """Return the verdicts on workspaces that attach their released accelerators again."""
    workspaces, blocked = list(workspaces), budgets.blocked_teams()
    homes = home_places.home_places_by_user(
        [(workspace.owner_id, workspace.team_id) for workspace in workspaces]
    )
    with snapshot_cache.preview_cache.use() as snapshot:
        return [
            assess_on(
                snapshot,
                StartRequest(
                    *(workspace.template, workspace.flavor, workspace.team, workspace.owner),
                    resources=gpu_requests.resources_with_gpus(workspace),
                    priority=workspace.priority,
                    expected_s=workspace.expected_s,
                    homes=homes.get((workspace.owner_id, workspace.team_id), NOWHERE),
                    move_home=workspace.move_home,
                    instead_of=str(workspace.pk),
                    blocked=blocked,
                ),
            )
            for workspace in workspaces
        ]


def verdict_without_gpus(
    verdict: Verdict,
    *,
    template: Template,
    flavor: Flavor,
    team: Team,
    actor: User,
    expected_s: int | None,
    environment: str,
    priority: int = 0,
    move_home: bool = False,
) -> Verdict | None:
    """Return the verdict on a request without accelerators, if that starts at once and the whole one waits.

    `verdict` is the one on the whole request. None if accelerators make no difference or it is denied.
    """
    if not flavor.accelerator_count or verdict.outcome is not Outcome.QUEUED:
        return None
    full_request = flavor.as_request()
    result = assess(
        template=template,
        flavor=flavor,
        team=team,
        actor=actor,
        resources={**full_request, **gpu_requests.resources_without_gpus(full_request)},
        priority=priority,
        expected_s=expected_s,
        environment=environment,
        move_home=move_home,
    )
    return result if result.outcome is Outcome.FITS_NOW else None


def homes_of(actor: User | None, team: Team | None) -> Homes | None:
    return home_places.home_places(actor.pk, team.pk) if actor is not None and team is not None else None


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A request for a workspace. Without `expected_s` the flavor's duration applies.

    `homes` is None if its user is unknown; `move_home` as in an order. `instead_of` is the id of a running or
    pending workspace that would end first. `blocked` lists the teams whose budgets are spent. `fallbacks` are
    the same request on later flavors, in order of preference; the first is expected to run as long on each.
    """

    template: Template
    flavor: Flavor
    team: Team | None
    actor: User | None
    resources: Mapping[str, Any] | None = None
    priority: int = 0
    expected_s: int | None = None
    homes: Homes | None = None
    move_home: bool = False
    instead_of: str = ""
    blocked: frozenset[UUID] = frozenset()
    fallbacks: tuple[StartRequest, ...] = ()
    start_within_s: int = 0

    @property
    def over_budget(self) -> bool:
        """Whether it would cost money that its team does not have. Simulated flavors are free."""
        if self.team is None or self.team.pk not in self.blocked:
            return False
        resources = self.flavor.as_request() if self.resources is None else self.resources
        priced = bool(self.flavor.price_cents) and not self.flavor.simulated
        return priced and bool(resources["accelerators"]["count"])

    def workload(self, team: Team, now: datetime) -> model.Workload:
        """Return the workload of the future workspace, without amounts and the key of its placement."""
        return model.Workload(
            id=REQUEST,
            team=team.slug,
            amounts={},
            user=str(self.actor.pk) if self.actor is not None else "",
            priority=self.priority,
            created_s=int(now.timestamp()),
            created_ms=now.microsecond // 1000,
            duration_s=expected_run_time(self.template, self.flavor, self.expected_s),
            preemptible=self.flavor.preemptible,
        )


def assess_on(snapshot: ClusterSnapshot, start_request: StartRequest) -> Verdict:
    """Return the verdict for a snapshot, which is unchanged afterwards.

    The request is added to a copy of the queue, and the copy is decided as in a cycle.
    """
    if start_request.team is None:
        placement_request = _placement_request(snapshot, start_request)
        if isinstance(placement_request, Verdict):
            return placement_request
        return _capacity_verdict(snapshot, placement_request)
    incoming = incoming_request(snapshot, start_request, start_request.team)
    if isinstance(incoming, Verdict):
        return incoming
    forecast = None if start_request.instead_of else snapshot.forecast
    leaving = [start_request.instead_of] if start_request.instead_of else []
    with snapshot.placer.simulate_gone(leaving), snapshot.trial() as trial:
        for name in leaving:
            _remove_workload(trial, name)
        pending = register(trial.scheduler, trial.placer, incoming)
        if (shortfall := refusal(trial.scheduler, pending.workload)) is not None and is_refused(*shortfall):
            return denial_verdict(trial, start_request, pending, *shortfall)
        pending = enqueue(trial, pending)
        trial.placer.explain(REQUEST)
        decided = decision.decide(trial)
        if REQUEST in decided.cycle.starts:
            return _start_verdict(trial, pending)
        outlook = decision.trial_outlook(forecast, trial, decided, REQUEST)
        status = queue_status.status_of(trial, pending, outlook)
        placement_request = pending.placement_request
        return Verdict(
            status.outcome,
            status.reason,
            reasons=blockers.node_reasons(placement_request)
            if status.rule in blockers.RULES_OF_NODES
            else (),
            position=status.position,
            eta_at=status.eta_at,
            basis=status.basis,
            member_order=status.member_order,
            blocker=status.blocker or {},
            makes_room=tuple(
                victim.workload for victim in decided.cycle.victims if victim.beneficiary == REQUEST
            ),
            flavor=status.flavor,
            next_flavor=status.next_flavor,
        )


def _start_verdict(trial: ClusterSnapshot, pending: PendingWorkload) -> Verdict:
    """Return the verdict on a request that the trial has just started."""
    pool, placement = trial.placer.placement_of(REQUEST)
    workload = trial.scheduler.running[REQUEST].workload
    chosen = pending.choices[workload.choice] if pending.choices else None
    placement_request = chosen.placement_request if chosen is not None else pending.placement_request
    home_move = trial.placer.home_move_of(workload)
    reason = _start_reason(placement_request, trial.placer.explanation_of(REQUEST), home_move)
    flavor = chosen.flavor if chosen is not None else None
    return Verdict(
        Outcome.FITS_NOW, reason, pool=pool.pool, placement=placement, flavor=flavor, home_move=home_move
    )


def incoming_request(
    snapshot: ClusterSnapshot, start_request: StartRequest, team: Team
) -> PendingWorkload | Verdict:
    """Return the request as it enters the queue, or the verdict on its first flavor if none is possible."""
    first = _placement_request(snapshot, start_request)
    workload = start_request.workload(team, snapshot.now)
    if not start_request.fallbacks:
        if isinstance(first, Verdict):
            return first
        return PendingWorkload(REQUEST, first, replace(workload, place=first.place_key))
    choices, verdicts = [], []
    for other in (start_request, *start_request.fallbacks):
        request = first if other is start_request else _placement_request(snapshot, other)
        if isinstance(request, Verdict):
            verdicts.append(request)
            continue
        preemptible = other.flavor.preemptible
        on_flavor = replace(workload, place=request.place_key, preemptible=preemptible)
        choices.append(FlavorChoice(other.flavor, request, on_flavor))
    return PendingWorkload.of_choices(choices, start_request.start_within_s) if choices else verdicts[0]


def _remove_workload(trial: ClusterSnapshot, name: str) -> None:
    """Remove a running or pending workspace from the copy."""
    if name in trial.scheduler.running:
        trial.scheduler.finish(name)
    if name in trial.scheduler.pending.items:
        trial.scheduler.withdraw(name)
    trial.pending_workloads.pop(name, None)


def _placement_request(snapshot: ClusterSnapshot, start_request: StartRequest) -> PlacementRequest | Verdict:
    """Return the placement request, or the verdict if no pool qualifies."""
    if start_request.over_budget:
        assert start_request.team is not None  # only teams have budgets
        return Verdict(
            Outcome.IMPOSSIBLE, Reason(AdmissionCode.BUDGET_SPENT, {"team": start_request.team.name})
        )
    candidates = candidate_pools(start_request.flavor, snapshot.pools)
    if not candidates:
        return Verdict(Outcome.IMPOSSIBLE, Reason(AdmissionCode.NO_ENABLED_POOL))
    placement_request = snapshot.placement_requests.build(
        start_request.template,
        start_request.flavor,
        start_request.resources,
        homes=start_request.homes,
        move_home=start_request.move_home,
    )
    if not placement_request.possible:
        return _impossible_verdict(placement_request, candidates)
    if (pool := placement_request.maintenance) is not None:
        return Verdict(Outcome.IMPOSSIBLE, blockers.maintenance_reason(pool))
    return placement_request


def is_refused(outcome: Outcome, shortfall: Shortfall) -> bool:
    """Return whether the request is kept out of the queue.

    Requests that exceed the capacity are queued: a node may return.
    """
    return outcome is not Outcome.IMPOSSIBLE or shortfall[0] is Rule.SITE_LIMIT


def denial_verdict(
    snapshot: ClusterSnapshot,
    start_request: StartRequest,
    pending: PendingWorkload,
    outcome: Outcome,
    shortfall: Shortfall,
) -> Verdict:
    blocker = blocker_of(snapshot.scheduler, pending.workload, shortfall)
    return Verdict(
        outcome,
        blockers.blocker_reason(
            snapshot, pending.workload, blocker, placement_request=pending.placement_request, outcome=outcome
        ),
        blocker=blockers.as_data(blocker),
        quota_request=_quota_request_draft(start_request, pending.workload.team, blocker),
    )


def _start_reason(
    placement_request: PlacementRequest, explanation: Explanation | None, home_move: HomeMoveAhead | None
) -> Reason:
    """Return why it starts now; of a request with a choice, with the model that it gets and why."""
    if home_move is not None:
        return Reason(
            AdmissionCode.FITS_NOW_WITH_HOME,
            {
                "node": home_move.target,
                "source": home_move.source,
                "size_mib": home_move.size_mib,
                "seconds": home_move.seconds,
            },
        )
    if explanation is None:
        return Reason(AdmissionCode.FITS_NOW)
    return Reason(
        AdmissionCode.FITS_NOW_ON_MODEL,
        {
            "resource": explanation.resource,
            "memory_mib": placement_request.request.accelerators.memory_mib,
            "kept": [
                {
                    "resource": spared.resource,
                    "waiting": spared.waiting,
                    "more_expensive": spared.more_expensive,
                }
                for spared in explanation.spared
            ],
        },
    )


def _quota_request_draft(
    start_request: StartRequest, team: str, blocker: model.Blocker
) -> QuotaRequestDraft | None:
    short = max(1, blocker.wanted - max(0, blocker.free))
    names = {"template": start_request.template.name, "flavor": start_request.flavor.name}
    note = _("To start %(template)s on %(flavor)s.") % names
    if blocker.rule is Rule.USER_CAP:
        return QuotaRequestDraft(team, "member_cap", blocker.resource, short, note)
    if blocker.rule in (Rule.TEAM_LIMIT, Rule.COHORT):
        return QuotaRequestDraft(team, "quota", blocker.resource, short, note)
    if blocker.rule is Rule.LEDGER:
        hours = MISSING_GPU_HOURS * units_per_whole(resources.GPU_HOURS)
        return QuotaRequestDraft(team, "ledger", resources.GPU_HOURS, hours, note)
    return None


def _capacity_verdict(snapshot: ClusterSnapshot, placement_request: PlacementRequest) -> Verdict:
    place = snapshot.placer.best_placement(placement_request)
    if place is not None:
        reason = Reason(AdmissionCode.FITS_NOW)
        return Verdict(Outcome.FITS_NOW, reason, pool=place.pool.pool, placement=place.placement)
    return Verdict(
        Outcome.QUEUED,
        blockers.no_capacity_reason(placement_request),
        reasons=blockers.node_reasons(placement_request),
    )


def _impossible_verdict(placement_request: PlacementRequest, candidates: Sequence[PoolNodes]) -> Verdict:
    if placement_request.lost_home:
        return Verdict(Outcome.IMPOSSIBLE, blockers.home_lost_reason(placement_request))
    if all(pool.pool.state == PoolState.UNKNOWN for pool in candidates):
        return Verdict(Outcome.IMPOSSIBLE, Reason(AdmissionCode.NO_NODE_REPORTED))
    reasons = list(placement_request.refusals)
    for pool in placement_request.pools:
        request = without_environments(placement_request.request)
        reasons += pool.reasons_if_empty(pool.with_requirements(request, placement_request.software))
    return Verdict(
        Outcome.IMPOSSIBLE, never_reason(placement_request, tuple(reasons)), reasons=tuple(reasons)
    )
