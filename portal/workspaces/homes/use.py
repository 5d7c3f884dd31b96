"""Checks shared by home moves and archives: whether a home is in use or locked."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from portal.common.domain_events import emit
from portal.common.errors import StateConflict
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.domain_events import CapacityFreed
from portal.fleet.inventory.models import Allocation, Pool
from portal.fleet.machines import selectors as machines
from portal.fleet.machines.models import MachineState
from portal.workspaces.domain_events import RequestChanged
from portal.workspaces.homes.codes import ArchiveCode, HomeMoveCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import (
    ACTIVE_ARCHIVES,
    ACTIVE_MOVES,
    HomeArchive,
    HomeMove,
    HomePlace,
    Workspace,
)

NOTED = timedelta(minutes=10)
"""Minimum interval between two updates of a home's last use."""


def require_not_in_transfer(owner_id: UUID, team_id: UUID) -> None:
    """Raise `StateConflict` while the home is moved, archived or restored, because changes would be lost."""
    move = HomeMove.objects.filter(owner=owner_id, team=team_id, state__in=ACTIVE_MOVES).first()
    if move is not None:
        reason = Reason(HomeMoveCode.HOME_BEING_MOVED, {"node": move.target_name})
        raise StateConflict(reason, code=reason.code)
    if HomeArchive.objects.filter(owner=owner_id, team=team_id, state__in=ACTIVE_ARCHIVES).exists():
        raise StateConflict(Reason(ArchiveCode.BEING_WORKED_ON), code=ArchiveCode.BEING_WORKED_ON)


def require_not_archived(owner_id: UUID, team_id: UUID, pool: Pool, node: str) -> None:
    """Raise `StateConflict` if the only copy of the home is an archive on this node."""
    away = HomeArchive.objects.filter(owner=owner_id, team=team_id, away_at__isnull=False)
    if away.filter(node__pool=pool, node__name=node).exists():
        raise StateConflict(Reason(ArchiveCode.AWAY), code=ArchiveCode.AWAY)


def note_used(owner_id: UUID, team_id: UUID) -> None:
    """Record that the home's files were used."""
    now = timezone.now()
    stale = Q(used_at=None) | Q(used_at__lt=now - NOTED) | Q(used_at__gt=now)
    HomePlace.objects.filter(stale, owner=owner_id, team=team_id).update(used_at=now)


def is_home_in_use(owner_id: UUID, team_id: UUID, node_id: UUID) -> bool:
    """Return whether any of the user's workspaces in the team is allocated on the node."""
    return Allocation.objects.filter(
        workspace__owner=owner_id, workspace__team=team_id, node=node_id, released_at=None
    ).exists()


def is_node_trusted(pool: Pool, node: str) -> bool:
    """Return whether the node is trusted: its machine has neither left nor been revoked."""
    machine = machines.machine_of_node(pool, node)
    return machine is None or machine.state == MachineState.ACTIVE


def notify_scheduler(owner_id: UUID, team_id: UUID) -> None:
    """Notify the scheduler that the user's home in the team is now locked or free."""
    for workspace in Workspace.objects.filter(owner=owner_id, team=team_id, state=State.PENDING):
        emit(RequestChanged(workspace))
    emit(CapacityFreed())
