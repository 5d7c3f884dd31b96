"""Values in rows related to a workspace, as tests read them."""

from __future__ import annotations

from datetime import datetime

from portal.common.reasons.wording import message_of, reason_of, sentence_of
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.problems import error_code_of


def reloaded(workspace: Workspace) -> Workspace:
    """Return the workspace as stored in the database now."""
    return Workspace.objects.get(pk=workspace.pk)


def error_code(workspace: Workspace) -> str:
    """Return the code that REST shows as the workspace's error, or an empty string."""
    if workspace.state == State.PENDING and workspace.queue_entry.outcome:
        return workspace.queue_entry.outcome
    reason = reason_of(workspace.status.reason)
    return error_code_of(reason) if reason is not None else ""


def error_message(workspace: Workspace) -> str:
    """Return the sentence of the error code."""
    waits = workspace.state == State.PENDING and workspace.queue_entry.outcome
    reason = reason_of(workspace.queue_entry.reason if waits else workspace.status.reason)
    if reason is None:
        return ""
    return message_of(reason) if waits else sentence_of(reason)


def preempt_at(workspace: Workspace) -> datetime | None:
    return workspace.preempting.preempt_at if workspace.preempting else None


def preempt_cause(workspace: Workspace) -> str:
    return workspace.preempting.cause if workspace.preempting else ""


def preempted_by(workspace: Workspace) -> str:
    return workspace.preempting.preempted_by if workspace.preempting else ""
