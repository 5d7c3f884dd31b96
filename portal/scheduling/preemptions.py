"""Carries out what the queue or a drain has announced: a workspace makes room when its notice is over."""

from __future__ import annotations

from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.scheduling import drains
from portal.workspaces import dispatch
from portal.workspaces.domain_events import PreemptionDue
from portal.workspaces.lifecycle import Trigger
from portal.workspaces.transitions import advance
from provisioning.types import Op


def carry_out(event: PreemptionDue) -> None:
    """Its time to leave has come: it stops, its files stay, and it waits again."""
    workspace = event.workspace
    drained = workspace.leave_reason == drains.DRAIN
    if drained and not drains.still_drained(workspace):
        drains.let_stay(workspace)
        return
    why = "where it runs is drained" if drained else "another needs its place"
    advance(
        workspace,
        Trigger.STOP,
        actor=SYSTEM,
        message=f"stops it, since {why}; it is back in the queue",
        data={"reason": workspace.leave_reason, "for": workspace.leave_for},
        # Nobody went before it where it was drained.
        preempted=workspace.preempted + (0 if drained else 1),
        due_at=timezone.now(),
        attempts=0,
        error_code="",
        error_message="",
    )
    dispatch.send(workspace, Op.STOP)
