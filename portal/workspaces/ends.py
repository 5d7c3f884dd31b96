"""Scheduled ends of running workspaces. Once a workspace is ready, only this module changes its end."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import F

from portal.common.domain_events import emit
from portal.workspaces.domain_events import RequestChanged
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace


def move_end(workspace: Workspace, ends_at: datetime) -> None:
    """Set the end of a locked workspace, and invalidate the stop that is scheduled for its old end.

    Also updates the expected time, which estimates use.
    """
    began = workspace.placed_at or workspace.requested_at
    workspace.ends_at = ends_at
    workspace.ends_version += 1
    workspace.expected_s = max(1, round((ends_at - began).total_seconds()))
    Workspace.objects.filter(pk=workspace.pk).update(
        ends_at=ends_at, expected_s=workspace.expected_s, ends_version=F("ends_version") + 1
    )
    emit(RequestChanged(workspace))


def shift_ends(by: timedelta) -> int:
    """Move the ends of all running workspaces by `by`, and return their number.

    `by` is negative after a clock was set back.
    """
    running = Workspace.objects.filter(state=State.RUNNING, ends_at__isnull=False)
    return running.update(ends_at=F("ends_at") + by)
