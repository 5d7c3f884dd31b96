"""Records who approved the start of a workspace."""

from __future__ import annotations

from uuid import UUID

from django.utils import timezone

from portal.people.accounts.models import User
from portal.workspaces.lifecycle import QueueOutcome, State
from portal.workspaces.transitions import lock_workspace


def record_approval(*, actor: User, workspace_id: UUID) -> None:
    """Record that `actor` approved a queued workspace. The queue decides when the workspace starts.

    Does nothing if the workspace does not wait for an approval. The caller has checked the permission.
    """
    workspace = lock_workspace(workspace_id)
    if workspace.state != State.PENDING or workspace.queue_entry.outcome != QueueOutcome.NEEDS_APPROVAL:
        return
    workspace.approved_at, workspace.approved_by = timezone.now(), actor.username
    workspace.save(update_fields=["approved_at", "approved_by"])
