"""A workspace's problem or the cause of its failure, which its status stores as reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, reason_of, sentence_of
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import Workspace


def problem_sentence(workspace: Workspace) -> str:
    """Return the problem of a workspace as a sentence, or an empty string."""
    return stored_sentence(workspace.status.reason)


def is_cut_off(workspace: Workspace) -> bool:
    """Return whether its machine was revoked or has left, so that it can be neither entered nor observed."""
    return bool(workspace.status.reason.get("code") == WorkspaceCode.MACHINE_GONE)


def stored_sentence(stored: Mapping[str, Any]) -> str:
    """Return a stored reason as a sentence, or an empty string."""
    reason = reason_of(stored)
    return sentence_of(reason) if reason is not None else ""


def stored_message(stored: Mapping[str, Any]) -> str:
    """Return a stored reason's message without its next action, or an empty string."""
    reason = reason_of(stored)
    return message_of(reason) if reason is not None else ""


def error_code_of(reason: Reason) -> str:
    """Return a failure's code for programs: the code in its params, or else its reason code."""
    return str(reason.params.get("code") or reason.code.value)
