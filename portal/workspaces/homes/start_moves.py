"""Moves homes for starts: the workspace is placed first, then its home moves there, then it starts.

Meanwhile the workspace is PROVISIONING and keeps its allocation, with no command in flight. Once the home has
arrived, the workspace is started. If the move fails or is cancelled, the workspace releases its allocation
and is queued again with its original age; starts do not move the home for an hour (`places.PAUSE`).

`moves` never locks a workspace, so a workspace that is locked may lock the move of its home.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import Pool
from portal.workspaces import dispatch
from portal.workspaces.domain_events import HomeMoveDue, HomeMoveEnded, WorkspaceWaits
from portal.workspaces.homes import moves
from portal.workspaces.homes.codes import HomeMoveCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeMove, HomeMoveState, HomePlace, Workspace
from portal.workspaces.requeueing import requeue
from provisioning.types import Op

RECHECK = timedelta(seconds=30)
"""Interval at which a waiting workspace is checked, in case the event at the end of the move is lost."""


def begin(*, workspace: Workspace, pool: Pool, node: str, now: datetime) -> HomeMove:
    """Start moving the home of a workspace that is being placed on the node.

    Raises the errors of `moves.begin`, such as `StateConflict` if the home is in use or locked meanwhile.
    """
    home = HomePlace.objects.filter(owner=workspace.owner_id, team=workspace.team_id, pool=pool)
    place_id = home.values_list("pk", flat=True).first() or 0
    move = moves.begin(place_id=place_id, node=node, actor=SYSTEM, workspace=workspace)
    home.update(used_at=now)
    return move


def handle_due(event: HomeMoveDue) -> None:
    """Start a locked workspace if its home has arrived, or queue it again if the move failed."""
    workspace = event.workspace
    move = workspace.home_moves.order_by("-asked_at").first()
    if move is not None and move.active:
        _check_again(workspace)
    elif move is not None and move.state == HomeMoveState.DONE:
        workspace.home_move_ended_at = timezone.now()
        workspace.save(update_fields=["home_move_ended_at"])
        dispatch.send(workspace, Op.START)
    else:
        requeue(workspace, _failure(move))
        emit(WorkspaceWaits(workspace))


def _check_again(workspace: Workspace) -> None:
    notice = workspace.preempting
    due = timezone.now() + RECHECK
    workspace.next_reconcile_at = min(due, notice.preempt_at) if notice is not None else due
    workspace.save(update_fields=["next_reconcile_at"])


def _failure(move: HomeMove | None) -> Reason:
    if move is None:
        return Reason(HomeMoveCode.NOT_WITH_START, {"node": "", "cause": {}})
    return Reason(HomeMoveCode.NOT_WITH_START, {"node": move.target_name, "cause": move.reason})


def move_ended(event: HomeMoveEnded) -> None:
    """Reconcile the workspace that waits for the move, after the transaction commits."""
    transaction.on_commit(partial(_wake, event.workspace))


def _wake(workspace_id: UUID) -> None:
    waiting = Workspace.objects.filter(
        pk=workspace_id, state=State.PROVISIONING, home_move_began_at__isnull=False, launched_at=None
    )
    if waiting.filter(home_move_ended_at=None).update(next_reconcile_at=timezone.now()):
        dispatch.hint(workspace_id)


def abandon(workspace: Workspace) -> None:
    """Cancel the home move of a locked workspace that is being stopped or deleted."""
    for move_id in workspace.home_moves.filter(open=True).values_list("pk", flat=True):
        moves.withdraw(move_id)
