"""Returns a placed workspace to the queue before the start command was sent."""

from __future__ import annotations

from typing import Any

from portal.common.actors import SYSTEM
from portal.common.reasons.reason import Reason
from portal.workspaces import reconcile
from portal.workspaces.lifecycle import NOT_PREPARED, Trigger
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import advance


def requeue(workspace: Workspace, reason: Reason, **changes: Any) -> None:
    """Queue the workspace again with its original age, and release its allocation. Nothing was started.

    `changes` are further fields, as `advance` takes them.
    """
    advance(
        workspace,
        Trigger.NO_CAPACITY,
        actor=SYSTEM,
        message="queued the workspace again",
        cause=reason.as_json(),
        data={"reason": reason.code.value},
        pool=None,
        placed_at=None,
        began_at=None,
        admitted_at=None,
        next_reconcile_at=None,
        status={"reason": reason.as_json()},
        end_preemption=True,
        **NOT_PREPARED,
        **changes,
    )
    reconcile.release(workspace, used=False)
