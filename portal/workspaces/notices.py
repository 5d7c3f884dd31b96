"""What users are told about their workspaces while they are elsewhere."""

from __future__ import annotations

from datetime import timedelta

from django.utils.translation import gettext as _

from portal.common.formatting import format_duration
from portal.events.services import notify
from portal.workspaces.domain_events import WorkspaceReady

LONG_WAIT = timedelta(minutes=2)
"""Who waited for a place so long has gone on to something else, and is told when it is ready."""


def ready(event: WorkspaceReady) -> None:
    """Tell the owner of one that waited long for its place that it runs now."""
    workspace = event.workspace
    placed_at = workspace.placed_at or workspace.ready_at
    if placed_at is None or placed_at - workspace.requested_at < LONG_WAIT:
        return
    waited = placed_at - workspace.requested_at
    notify(
        [workspace.owner],
        kind="workspace.ready",
        title=_("%(name)s is ready") % {"name": workspace.name},
        body=_("It waited %(duration)s for its place and runs now.")
        % {"duration": format_duration(waited.total_seconds())},
        url=f"/workspaces/{workspace.pk}/",
    )
