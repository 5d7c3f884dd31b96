"""When running workspaces end by themselves: written here alone, after they have become ready."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import F

from portal.common.domain_events import emit
from portal.workspaces.domain_events import RequestChanged
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace


def move_end(workspace: Workspace, ends_at: datetime) -> None:
    """Have a locked workspace end at `ends_at`. Whoever was about to stop it for its end before does not.

    Somebody has said how long it is needed: estimates of others rest on it from now on.
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
    """Have all that runs end later (or, where a clock was put back, as much earlier); how many these are."""
    running = Workspace.objects.filter(state=State.RUNNING, ends_at__isnull=False)
    return running.update(ends_at=F("ends_at") + by)
