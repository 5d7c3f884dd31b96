"""Notifies users about their workspaces."""

from __future__ import annotations

from datetime import timedelta

from django.utils.translation import gettext as _

from portal.common.events.services import notify
from portal.common.formatting import format_duration
from portal.common.reasons.wording import message_of
from portal.fleet.inventory import notices as node_notices
from portal.workspaces import engine_queue, memory_kills
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import EngineRequeued, WorkspaceFailed, WorkspaceReady
from portal.workspaces.lifecycle import TerminationReason
from portal.workspaces.problems import error_code_of

FOLD = timedelta(minutes=15)
"""Failures within this time, for example on one node, are combined into one notification."""
MACHINE_OUT_OF_MEMORY = "machine_out_of_memory"
"""A driver's code: the machine's memory was full, while the workspace was below its limit."""
LONG_WAIT = timedelta(minutes=2)
"""If a start takes longer than this, the owner is notified when the workspace is ready."""


def notify_failure(event: WorkspaceFailed) -> None:
    """Notify the owner of a workspace that failed to start or ended unexpectedly.

    If the machine's memory was full, operators are notified too. Lost devices and removed machines have their
    own notifications.
    """
    if event.reason.code in (WorkspaceCode.DEVICE_LOST, WorkspaceCode.MACHINE_REMOVED):
        return
    workspace = event.workspace
    if error_code_of(event.reason) == MACHINE_OUT_OF_MEMORY:
        for allocation in workspace.allocations.filter(released_at=None).select_related("node__pool"):
            node_notices.memory_full(allocation.node.pool, allocation.node)
    params = {"name": workspace.name}
    match event.termination:
        case TerminationReason.LOST:
            kind, title = "workspace.lost", _("%(name)s has disappeared") % params
        case TerminationReason.APP_EXITED:
            kind, title = "workspace.lost", _("%(name)s exited") % params
        case _:
            kind, title = "workspace.failed", _("%(name)s failed to start") % params
    body = _("%(why)s Files are kept.") % {"why": message_of(event.reason)}
    if error_code_of(event.reason) == memory_kills.OUT_OF_MEMORY:
        body = " ".join(filter(None, (body, memory_kills.suggestion_for(workspace))))
    notify(
        [workspace.owner],
        kind=kind,
        title=_("Simulated: %(title)s") % {"title": title} if workspace.simulated else title,
        body=body,
        url=f"/workspaces/{workspace.pk}/",
        fold=FOLD,
    )


def notify_ready(event: WorkspaceReady) -> None:
    """Notify the owner that a workspace is ready after a long wait."""
    workspace = event.workspace
    placed_at = workspace.began_at or workspace.placed_at or workspace.ready_at
    if placed_at is None:
        return
    waited = placed_at - (engine_queue.requeued_at(workspace) or workspace.requested_at)
    if waited < LONG_WAIT:
        return
    notify(
        [workspace.owner],
        kind="workspace.ready",
        title=_("%(name)s is ready") % {"name": workspace.name},
        body=_("The workspace waited %(duration)s and is now running.")
        % {"duration": format_duration(waited.total_seconds())},
        url=f"/workspaces/{workspace.pk}/",
    )


def notify_requeue(event: EngineRequeued) -> None:
    """Notify the owner that the engine has preempted a running workspace and has queued it again."""
    workspace = event.workspace
    pool = workspace.pool.name if workspace.pool is not None else ""
    title = _("%(name)s was preempted") % {"name": workspace.name}
    notify(
        [workspace.owner],
        kind="workspace.requeued",
        title=_("Simulated: %(title)s") % {"title": title} if workspace.simulated else title,
        body=_("%(pool)s stopped the workspace for another job and queued it again. It restarts there.")
        % {"pool": pool},
        url=f"/workspaces/{workspace.pk}/",
        fold=FOLD,
    )
