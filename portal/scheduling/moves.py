"""Moves in progress: their targets, whether they are still possible, and their outcomes.

A move is a preemption after which the workspace goes to a placement that was free. The target is not reserved
during the notice period; it is checked again right before the workspace stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SystemActor
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.people.accounts.models import User
from portal.scheduling import capacity, snapshot_feed
from portal.scheduling.models import Move, MoveOutcome
from portal.scheduling.placement_request import MoveTarget, PlacementRequests
from portal.workspaces.homes import places as home_places
from portal.workspaces.lifecycle import DesiredState, PreemptionCause, State
from portal.workspaces.models import Preemption, Workspace
from portal.workspaces.transitions import set_rows
from provisioning import messages
from provisioning.types import Placement

TARGET_VALID_FOR = timedelta(minutes=10)
"""Time after the stop during which the queue tries the target before any other placement."""
KEPT_FOR = timedelta(days=30)
STATES_IN_TRANSIT = (State.STOPPING, State.STOPPED, State.PENDING)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A planned move of a running workspace within its pool."""

    workspace: UUID
    generation: int
    pool: UUID
    source: Placement
    target: Placement


def parse_placement(data: object) -> Placement:
    """Parse a stored placement."""
    return messages.load(data, Placement)


def move_targets(now: datetime) -> dict[UUID, MoveTarget]:
    """Return the targets of workspaces that were stopped for a move."""
    rows = Move.objects.filter(ended_at=None, left_at__gt=now - TARGET_VALID_FOR)
    values = rows.values_list("workspace_id", "pool_id", "target")
    return {workspace: MoveTarget(pool, parse_placement(target)) for workspace, pool, target in values}


def count_in_progress() -> int:
    """Return the number of moves in progress."""
    return Move.objects.filter(ended_at=None).count()


def record_arrivals(placed: Sequence[tuple[Workspace, Placement]], now: datetime) -> None:
    """End the moves of workspaces that have just been placed."""
    if not placed:
        return
    where = {workspace.pk: placement for workspace, placement in placed}
    for move in Move.objects.filter(ended_at=None, left_at__isnull=False, workspace__in=list(where)):
        at_target = where[move.workspace_id] == parse_placement(move.target)
        _end(move, MoveOutcome.ARRIVED if at_target else MoveOutcome.ELSEWHERE, now)


def _end(move: Move, outcome: MoveOutcome, now: datetime) -> None:
    Move.objects.filter(pk=move.pk, ended_at=None).update(ended_at=now, outcome=outcome)


def record_stop(workspace: Workspace, now: datetime) -> None:
    """Record that a locked workspace is being stopped for its move."""
    Move.objects.filter(workspace=workspace, ended_at=None).update(left_at=now)


def still_possible(workspace: Workspace) -> bool:
    """Return whether a locked workspace fits its target once all workspaces of the same plan have left."""
    move = Move.objects.select_related("pool").filter(workspace=workspace, ended_at=None).first()
    if move is None or move.generation != workspace.generation:
        return False
    placement = parse_placement(move.target)
    pool = capacity.pool_of_node(move.pool, placement.nodes[0].node)
    if not pool.nodes:
        return False
    # Workspaces that leave for the same request can swap places.
    notice = workspace.preempting
    together = {workspace.pk}
    if notice is not None and notice.preempted_by:
        same = Move.objects.filter(ended_at=None, workspace__preemption__preempted_by=notice.preempted_by)
        together.update(same.values_list("workspace_id", flat=True))
    for places in capacity.allocations_by_workspace(together).values():
        for pool_pk, place, request in places:
            if pool_pk == move.pool_id and place.nodes[0].node == placement.nodes[0].node:
                pool.cluster.release(place, request)
    homes = home_places.home_places(workspace.owner_id, workspace.team_id)
    placement_request = PlacementRequests({move.pool_id: pool}).build(
        workspace.template, workspace.flavor, workspace.resources, homes=homes
    )
    return any(
        pool.is_free(
            placement,
            pool_nodes.with_requirements(placement_request.variants[0].request, placement_request.software),
        )
        for pool_nodes in placement_request.pools
    )


def cancel(workspace: Workspace, *, actor: User | SystemActor, reason: str) -> None:
    """Cancel the move of a locked workspace that has not begun to stop.

    `reason` is marked with `gettext_noop`: the audit log keeps it, the notice translates it.
    """
    now = timezone.now()
    set_rows([workspace], end_preemption=True)
    Move.objects.filter(workspace=workspace, ended_at=None).update(ended_at=now, outcome=MoveOutcome.STAYED)
    workspace.next_reconcile_at = now
    workspace.save(update_fields=["next_reconcile_at"])
    snapshot_feed.workloads([workspace.pk])
    events.record(
        actor=actor,
        kind=AuditKind.WORKSPACE_PREEMPTION_CANCELLED,
        workspace=workspace,
        message="cancelled the move of the workspace",
        reason=reason,
    )
    events.notify(
        [workspace.owner],
        kind="workspace.may_stay",
        title=_("%(name)s stays on its node") % {"name": workspace.name},
        body=_("The move was cancelled: %(why)s.") % {"why": _(reason)},
        url=f"/workspaces/{workspace.pk}/",
    )


def end_obsolete(now: datetime) -> int:
    """End moves that are obsolete, for example because the user has stopped the workspace.

    Also deletes old rows. Returns the number of ended moves.
    """
    preemptions = Preemption.objects.filter(workspace=OuterRef("workspace"), cause=PreemptionCause.MOVE)
    in_transit = Q(workspace__state__in=STATES_IN_TRANSIT, workspace__desired_state=DesiredState.RUNNING)
    obsolete_moves = (
        Move.objects.filter(ended_at=None)
        .annotate(asked=Exists(preemptions))
        .exclude(asked=True)
        .exclude(in_transit, left_at__gt=now - TARGET_VALID_FOR)
    )
    obsolete_after_stop = obsolete_moves.filter(left_at__isnull=False).values_list("pk", flat=True)
    ended = Move.objects.filter(pk__in=list(obsolete_after_stop), ended_at=None).update(
        ended_at=now, outcome=MoveOutcome.ELSEWHERE
    )
    obsolete_before_stop = obsolete_moves.filter(left_at=None).values_list("pk", flat=True)
    ended += Move.objects.filter(pk__in=list(obsolete_before_stop), ended_at=None).update(
        ended_at=now, outcome=MoveOutcome.STAYED
    )
    Move.objects.filter(asked_at__lt=now - KEPT_FOR).exclude(ended_at=None).delete()
    return ended
