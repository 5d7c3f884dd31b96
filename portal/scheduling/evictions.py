"""Stops preempted, drained or moved workspaces after their notice period, and queues them again."""

from __future__ import annotations

from django.utils import timezone
from django.utils.translation import gettext_noop

from portal.common.actors import SYSTEM
from portal.scheduling import drains, moves
from portal.workspaces import dispatch
from portal.workspaces.domain_events import PreemptionDue
from portal.workspaces.lifecycle import NO_TROUBLE, PreemptionCause, Trigger
from portal.workspaces.transitions import advance
from provisioning.types import Op


def evict(event: PreemptionDue) -> None:
    """Stop a workspace whose notice period is over, keep its files, and queue it again."""
    workspace = event.workspace
    notice = workspace.preempting
    if notice is None:
        return
    drained = notice.cause == PreemptionCause.DRAIN
    if drained and not drains.is_drained(workspace):
        drains.cancel_preemption(workspace)
        return
    moved = notice.cause == PreemptionCause.MOVE
    if moved and not moves.still_possible(workspace):
        moves.cancel(workspace, actor=SYSTEM, reason=gettext_noop("the target is no longer free"))
        return
    cause = "another workspace needs the capacity"
    if drained or moved:
        cause = "its node or GPU is being drained" if drained else "it is being moved"
    now = timezone.now()
    advance(
        workspace,
        Trigger.STOP,
        actor=SYSTEM,
        message=f"stopped the workspace and queued it again, because {cause}",
        data={"reason": notice.cause, "for": notice.preempted_by},
        # A drain or move is not a preemption for another workspace.
        queue={"preemption_count": workspace.queue_entry.preemption_count + (0 if drained or moved else 1)},
        status=NO_TROUBLE,
        next_reconcile_at=now,
        attempts=0,
    )
    if moved:
        moves.record_stop(workspace, now)
    dispatch.send(workspace, Op.STOP)
