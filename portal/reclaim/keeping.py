"""Keeps idle workspaces at the request of their users, or of long jobs in them."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from portal.common.errors import InvalidInput, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.formatting import format_day_time
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.reclaim.codes import LifetimeCode
from portal.reclaim.engine.ladder import KEEPABLE
from portal.reclaim.models import ReclaimNotice, WorkspaceActivity
from portal.workspaces import policies
from portal.workspaces.codes import ExtensionCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import lock_workspace

MAX_KEEP_S = 24 * 3600
MIN_KEEP_S = 900
OFFERED_S = 2 * 3600
"""Seconds for which one click keeps a workspace."""


@transaction.atomic
def keep_workspace(*, actor: User, workspace_id: UUID, seconds: int = OFFERED_S) -> Workspace:
    """Ignore idleness of a running workspace for `seconds`. Its end is unchanged.

    Withdraws an announced stop due to idleness. If repeated, the later time applies. Raises `InvalidInput`,
    `NotAllowed`, `NotFound`, and `StateConflict` if it is not running.
    """
    workspace = lock_workspace(workspace_id)
    policies.require_operate(actor, workspace)
    if workspace.state != State.RUNNING:
        reason = Reason(ExtensionCode.NOT_RUNNING_NOW, {"name": workspace.name})
        raise StateConflict(reason, state=workspace.state)
    if not MIN_KEEP_S <= seconds <= MAX_KEEP_S:
        reason = Reason(LifetimeCode.KEPT_OUT_OF_RANGE, {"least_s": MIN_KEEP_S, "most_s": MAX_KEEP_S})
        raise InvalidInput(reason, errors={"hours": [reason]})
    now = timezone.now()
    until = now + timedelta(seconds=seconds)
    row = WorkspaceActivity.objects.filter(workspace=workspace, generation=workspace.generation).first()
    before = row.kept_until if row is not None else None
    ignore_idleness(workspace, until)
    if before is not None and before >= until - timedelta(seconds=MIN_KEEP_S):
        # Already kept for as long. Do not record repeated calls, for example from a loop.
        return workspace
    ReclaimNotice.objects.filter(workspace=workspace).filter(cause__in=KEEPABLE).delete()
    events.record(
        actor=actor,
        kind=AuditKind.WORKSPACE_KEPT,
        workspace=workspace,
        message=f"set the workspace to be kept until {format_day_time(until)}, even if it is idle",
        data={"seconds": seconds, "until": until.isoformat()},
    )
    return workspace


def ignore_idleness(workspace: Workspace, until: datetime) -> None:
    """Ignore the causes in `KEEPABLE` for a locked workspace until `until`, or a later stored time."""
    rows = WorkspaceActivity.objects.filter(workspace=workspace)
    row = rows.filter(generation=workspace.generation).first()
    if row is None:
        rows.delete()
        WorkspaceActivity.objects.create(
            workspace=workspace,
            generation=workspace.generation,
            observed_at=timezone.now(),
            kept_until=until,
        )
    elif row.kept_until is None or row.kept_until < until:
        rows.update(kept_until=until)
