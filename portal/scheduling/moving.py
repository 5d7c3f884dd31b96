"""Moves running workspaces to placements chosen by the queue and the placement engine.

A plan is first simulated on a copy: the workspaces leave and are queued again, and a cycle decides. The move
is requested only if all of them get their targets in that cycle and the waiting request starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SystemActor
from portal.common.errors import StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.formatting import format_clock
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import PlacementLock
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from portal.scheduling import capacity, cycle, decision, hints, moves, snapshot_cache, snapshot_feed
from portal.scheduling.codes import MoveCode
from portal.scheduling.models import Move
from portal.scheduling.moves import PlannedMove
from portal.scheduling.placement_request import MoveTarget
from portal.scheduling.snapshot import ClusterSnapshot
from portal.workspaces.homes import places as home_places
from portal.workspaces.lifecycle import PreemptionCause, State
from portal.workspaces.models import Preemption, Workspace
from provisioning import messages


def notice_s() -> int:
    """Return the notice period before a move in seconds: at least that of a preemption."""
    return max(settings.BERTH_PREEMPTION_GRACE_S, settings.BERTH_MOVE_NOTICE_MINUTES * 60)


def is_feasible(
    snapshot: ClusterSnapshot, planned: Sequence[PlannedMove], waiting: UUID | None = None
) -> bool:
    """Return whether one cycle places all workspaces on their targets and starts `waiting`. Read-only."""
    return len(arriving(snapshot, planned, waiting)) == len(planned)


def arriving(
    snapshot: ClusterSnapshot, planned: Sequence[PlannedMove], waiting: UUID | None = None
) -> list[PlannedMove]:
    """Return the moves that reach their targets if all happen in one cycle. Changes nothing.

    Empty if that cycle does not start `waiting`, or if a workspace of `planned` no longer runs or has several
    variants.
    """
    names = {str(move.workspace) for move in planned}
    if not names <= set(snapshot.scheduler.running):
        return []
    if waiting is not None and str(waiting) not in snapshot.scheduler.pending.items:
        return []
    rows = {
        row.pk: row
        for row in Workspace.objects.select_related("owner", "team", "template", "flavor__pool").filter(
            pk__in=[move.workspace for move in planned]
        )
    }
    homes = home_places.home_places_by_user([(row.owner_id, row.team_id) for row in rows.values()])
    with _without_workspaces(snapshot, [move.workspace for move in planned]), snapshot.trial() as copy:
        for move in planned:
            row = rows.get(move.workspace)
            if row is None:
                return []
            name = str(move.workspace)
            placement_request = copy.placement_requests.build(
                row.template, row.flavor, row.resources, homes=homes.get((row.owner_id, row.team_id), {})
            )
            if len(placement_request.variants) != 1:
                return []
            placement_request = replace(placement_request, target=MoveTarget(move.pool, move.target))
            finished = copy.scheduler.finish(name)
            copy.placer.register(name, placement_request)
            copy.scheduler.submit(
                replace(finished.workload, place=placement_request.place_key, nominated=False, choice=0)
            )
        if waiting is not None:
            copy.scheduler.pending.nominate(str(waiting))
        started = set(decision.decide(copy).cycle.starts)
        if waiting is not None and str(waiting) not in started:
            return []
        return [move for move in planned if str(move.workspace) in started and _reaches_target(copy, move)]


def _reaches_target(snapshot: ClusterSnapshot, planned: PlannedMove) -> bool:
    pool, placement = snapshot.placer.placement_of(str(planned.workspace))
    return (pool.pool.pk, placement) == (planned.pool, planned.target)


@contextmanager
def _without_workspaces(snapshot: ClusterSnapshot, workspaces: Sequence[UUID]) -> Iterator[None]:
    """Set the clusters as if these workspaces had left."""
    placements = [
        place for places in capacity.allocations_by_workspace(workspaces).values() for place in places
    ]
    released = []
    try:
        for pool_pk, placement, request in placements:
            if (pool := snapshot.pools.get(pool_pk)) is not None:
                pool.cluster.release(placement, request)
                pool.invalidate_reasons()
                released.append((pool, placement, request))
        yield
    finally:
        for pool, placement, request in reversed(released):
            pool.cluster.restore(placement, request)
            pool.invalidate_reasons()


@transaction.atomic
def request_moves(
    *,
    actor: User | SystemActor,
    planned: Sequence[PlannedMove],
    reason: str,
    waiting: UUID | None = None,
    preemptible_only: bool = False,
) -> list[Workspace]:
    """Request moves, all or none. Notifies the owners; the workspaces stop after the notice period.

    `waiting` is the request that gets the freed capacity. Must not run inside a transaction that has locked
    workspaces. Raises `NotAllowed`, and `StateConflict` if the plan no longer works: a workspace has stopped
    or is already being preempted, or its target is taken.
    """
    require_operator(actor)
    PlacementLock.hold()
    keys = [move.workspace for move in planned]
    locked = Workspace.objects.filter(pk__in=keys).order_by("pk").select_for_update(of=("self",))
    rows = {row.pk: row for row in locked.select_related("owner", "team", "preemption")}
    moving = set(
        Move.objects.filter(workspace__in=keys, ended_at=None).values_list("workspace_id", flat=True)
    )
    for move in planned:
        row = rows.get(move.workspace)
        if (
            row is None
            or (row.state, row.generation) != (State.RUNNING, move.generation)
            or row.preempting is not None
            or row.pk in moving
            or (preemptible_only and not row.preemptible)
        ):
            raise StateConflict(Reason(MoveCode.CHANGED_MEANWHILE))
    now = timezone.now()
    with snapshot_cache.cycle_cache.use(now) as snapshot:
        if not is_feasible(snapshot, planned, waiting):
            raise StateConflict(Reason(MoveCode.NO_PLACE_ANY_MORE))
    announce(actor=actor, planned=planned, rows=rows, reason=reason, waiting=waiting)
    return list(rows.values())


def announce(
    *,
    actor: User | SystemActor,
    planned: Sequence[PlannedMove],
    rows: Mapping[UUID, Workspace],
    reason: str,
    waiting: UUID | None = None,
) -> datetime:
    """Start the notice period of feasible moves of locked workspaces, and notify owners. Returns its end.

    The caller holds the placement lock and has checked permission and feasibility.
    """
    now = timezone.now()
    preempt_at = now + timedelta(seconds=notice_s())
    for move in planned:
        row = rows[move.workspace]
        row.preemption = Preemption.objects.create(
            workspace=row,
            preempt_at=preempt_at,
            preempted_by=str(waiting) if waiting is not None else "",
            cause=PreemptionCause.MOVE,
        )
        Move.objects.create(
            workspace=row,
            generation=row.generation,
            pool_id=move.pool,
            source=messages.dump(move.source),
            target=messages.dump(move.target),
            asked_at=now,
        )
        row.next_reconcile_at = min(row.next_reconcile_at or preempt_at, preempt_at)
        row.save(update_fields=["next_reconcile_at"])
        events.notify(
            [row.owner],
            kind="workspace.preempting",
            title=_("%(name)s will be moved and stops at %(time)s")
            % {"name": row.name, "time": format_clock(preempt_at, now)},
            body=_("%(why)s Save your work. Files are kept, and the workspace restarts elsewhere.")
            % {"why": reason},
            url=f"/workspaces/{row.pk}/",
        )
    events.record_all(
        actor=actor,
        kind=AuditKind.WORKSPACE_PREEMPTING,
        entries=[
            (
                rows[move.workspace],
                f"announced the move of the workspace from {move.source.nodes[0].node} to "
                f"{move.target.nodes[0].node} within {notice_s()} s",
            )
            for move in planned
        ],
        reason=reason,
        data={"reason": PreemptionCause.MOVE.value, "for": str(waiting) if waiting is not None else ""},
    )
    snapshot_feed.workloads([move.workspace for move in planned])
    if waiting is not None:
        cycle.nominate(str(waiting))
    hints.request_cycle()
    return preempt_at


@transaction.atomic
def cancel_moves(*, actor: User | SystemActor, workspaces: Sequence[UUID], reason: str) -> int:
    """Cancel moves that have not begun, and return their number."""
    require_operator(actor)
    PlacementLock.hold()
    moving = Workspace.objects.filter(
        pk__in=workspaces, state=State.RUNNING, preemption__cause=PreemptionCause.MOVE
    )
    rows = list(moving.order_by("pk").select_for_update(of=("self",)).select_related("owner", "team"))
    for row in rows:
        moves.cancel(row, actor=actor, reason=reason)
    if rows:
        hints.request_cycle()
    return len(rows)
