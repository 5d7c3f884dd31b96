"""What is wrong with a workspace, or why it failed: reasons, kept in its status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, reason_of, sentence_of
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import Workspace


def trouble_of(workspace: Workspace) -> str:
    """What is wrong with a workspace, in a sentence; empty where nothing is known to be."""
    return stored_sentence(workspace.status.reason)


def is_cut_off(workspace: Workspace) -> bool:
    """Whether its machine was revoked or has left: nobody can enter it, or see whether it goes on."""
    return bool(workspace.status.reason.get("code") == WorkspaceCode.MACHINE_GONE)


def stored_sentence(stored: Mapping[str, Any]) -> str:
    """The sentence of a reason that a row keeps; empty where it keeps none."""
    reason = reason_of(stored)
    return sentence_of(reason) if reason is not None else ""


def stored_message(stored: Mapping[str, Any]) -> str:
    """Like `stored_sentence`, without the next action: for what is shown beside actions of its own."""
    reason = reason_of(stored)
    return message_of(reason) if reason is not None else ""


def error_code_of(reason: Reason) -> str:
    """The code that programs know a failure by: the one in its params (a driver's own, say), else its own."""
    return str(reason.params.get("code") or reason.code.value)
