"""Verdicts on requests, from the same decision that a new workspace would get now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from portal.catalog.lifetimes import expected_run_time
from portal.catalog.models import Flavor, Template
from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import Team, User
from portal.quota.ledger import budgets
from portal.scheduling import (
    blockers,
    decision,
    queue_status,
    snapshot_cache,
)
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine import model
from portal.scheduling.engine.outlook import blocker_of
from portal.scheduling.engine.usage import Shortfall
from portal.scheduling.engine.verdicts import refusal
from portal.scheduling.placement_request import PlacementRequest, candidate_pools
from portal.scheduling.snapshot import (
    ClusterSnapshot,
    FlavorChoice,
    PendingWorkload,
    enqueue,
    register,
)
from portal.scheduling.verdicts import (
    Outcome,
    Verdict,
    capacity_verdict,
    impossible_verdict,
    quota_request_draft,
    start_reason,
)
from portal.workspaces import gpu_requests
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes.places import NOWHERE, Homes
from portal.workspaces.models import Workspace
from portal.workspaces.resizing import resized_request
from portal.workspaces.software import add_software_need

REQUEST = "request"
"""The id in the queue of a request without a workspace."""


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
    """Return the current verdict on this request. A denial is a verdict too, not an exception.

    Without a team, only pools are checked (for operators). `resources`, as stored with a workspace, overrides
    the flavor's request. `environment` is the digest of the software environment. `move_home` is as in an
    order.
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
    """Return the verdicts on several flavors, from one snapshot."""
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
    """Return the verdict without accelerators if only that request would start at once, else None.

    `verdict` is the verdict on the full request. None also if the full request is denied.
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

    `homes` is None if the user is unknown; `move_home` is as in an order. `instead_of` is the id of a running
    or pending workspace that would end first. `blocked` lists the teams whose budgets are spent. `fallbacks`
    are the same request on later flavors, in order of preference.
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
        """Whether the request would exceed its team's budget. Simulated flavors are free."""
        if self.team is None or self.team.pk not in self.blocked:
            return False
        resources = self.flavor.as_request() if self.resources is None else self.resources
        priced = bool(self.flavor.price_cents) and not self.flavor.simulated
        return priced and bool(resources["accelerators"]["count"])

    def workload(self, team: Team, now: datetime) -> model.Workload:
        """Return the workload of the future workspace, without amounts and placement key."""
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

    Adds the request to a copy of the queue, and decides on the copy like a cycle.
    """
    if start_request.team is None:
        placement_request = _placement_request(snapshot, start_request)
        if isinstance(placement_request, Verdict):
            return placement_request
        return capacity_verdict(snapshot, placement_request)
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
    explanation = trial.placer.explanation_of(REQUEST)
    reason = start_reason(pool, placement, placement_request, explanation, home_move)
    flavor = chosen.flavor if chosen is not None else None
    return Verdict(
        Outcome.FITS_NOW, reason, pool=pool.pool, placement=placement, flavor=flavor, home_move=home_move
    )


def incoming_request(
    snapshot: ClusterSnapshot, start_request: StartRequest, team: Team
) -> PendingWorkload | Verdict:
    """Return the request for the queue, or the verdict on its first flavor if no flavor is possible."""
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
        return impossible_verdict(placement_request, candidates)
    if (pool := placement_request.maintenance) is not None:
        return Verdict(Outcome.IMPOSSIBLE, blockers.maintenance_reason(pool))
    return placement_request


def is_refused(outcome: Outcome, shortfall: Shortfall) -> bool:
    """Return whether the request is kept out of the queue.

    Requests that exceed the capacity are queued, because a node may return.
    """
    return outcome is not Outcome.IMPOSSIBLE or shortfall[0] is Rule.SITE_LIMIT


def denial_verdict(
    snapshot: ClusterSnapshot,
    start_request: StartRequest,
    pending: PendingWorkload,
    outcome: Outcome,
    shortfall: Shortfall,
) -> Verdict:
    blocker = blockers.with_known_ends(
        blocker_of(snapshot.scheduler, pending.workload, shortfall), pending.placement_request
    )
    return Verdict(
        outcome,
        blockers.blocker_reason(
            snapshot, pending.workload, blocker, placement_request=pending.placement_request, outcome=outcome
        ),
        blocker=blockers.as_data(blocker),
        quota_request=quota_request_draft(
            template=start_request.template.name,
            flavor=start_request.flavor.name,
            team=pending.workload.team,
            blocker=blocker,
        ),
    )
