"""Extends workspaces within their limits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from portal.catalog.lifetimes import terms_of
from portal.catalog.models import MAX_LIFETIME_H
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.formatting import format_day_time, format_duration
from portal.common.idempotency import KeyUse, digest_of
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.workspaces import policies
from portal.workspaces.codes import ExtensionCode
from portal.workspaces.domain_events import WorkspaceExtended
from portal.workspaces.ends import move_end
from portal.workspaces.extension_policy import extension_policy
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.services import workspace_of_key
from portal.workspaces.transitions import lock_workspace

HOUR_S = 3600
OFFERED_S = 2 * HOUR_S
"""Seconds added by one click."""
MIN_EXTENSION_S = 900


@dataclass(frozen=True, slots=True)
class Extension:
    """A workspace, and whether an earlier request with the same idempotency key had extended it."""

    workspace: Workspace
    replayed: bool


def max_lifetime_s(workspace: Workspace) -> int | None:
    """Return the maximum lifetime in seconds by template, flavor, site and policies; `None` for no limit."""
    lives = (terms_of(workspace.template, workspace.flavor).max_s, extension_policy().longest_s(workspace))
    return min((life for life in lives if life is not None), default=None)


def longest_end(workspace: Workspace) -> datetime | None:
    """Return the latest possible end of a running workspace, or `None` for no limit."""
    max_s = max_lifetime_s(workspace)
    began = workspace.ready_at
    return None if max_s is None or began is None else began + timedelta(seconds=max_s)


def remaining_extension_s(workspace: Workspace) -> int:
    """Return the seconds left for extensions; 0 without an end, if not running, or at the limit."""
    ends_at = workspace.runs_until
    if ends_at is None:
        return 0
    longest = longest_end(workspace)
    if longest is None:
        return MAX_LIFETIME_H * HOUR_S
    return max(0, int((longest - ends_at).total_seconds()))


def extension_step_s(workspace: Workspace) -> int:
    """Return the seconds that one click adds; 0 if the workspace cannot be extended."""
    return min(OFFERED_S, remaining_extension_s(workspace))


def extend(*, actor: User, workspace_id: UUID, seconds: int, idempotency_key: str = "") -> Extension:
    """Move the end of a running workspace by `seconds`, and cancel an announced stop.

    Raises `InvalidInput` (too little, too much), `NotAllowed`, `NotFound` and `StateConflict`: not running,
    no end, maximum lifetime reached, team GPU-hours spent, or idempotency key already used with another
    request.
    """
    with transaction.atomic():
        workspace = lock_workspace(workspace_id)
        policies.require_operate(actor, workspace)
        if idempotency_key:
            use = KeyUse(actor, f"workspaces.extend {workspace_id}", idempotency_key, digest_of(seconds))
            if (repeated := workspace_of_key(use)) is not None:
                return Extension(repeated, replayed=True)
            use.claim()
            use.record(workspace=str(workspace_id))
        require_extendable(workspace, seconds)
        _move_end(actor, workspace, seconds)
    return Extension(workspace, replayed=False)


def require_extendable(workspace: Workspace, seconds: int) -> None:
    """Raise the errors of `extend` if the workspace cannot run `seconds` longer. Ignores permissions."""
    name = {"name": workspace.name}
    if workspace.state != State.RUNNING:
        raise StateConflict(Reason(ExtensionCode.NOT_RUNNING_NOW, name), state=workspace.state)
    if workspace.ends_at is None:
        raise StateConflict(Reason(ExtensionCode.HAS_NO_END, name), code=ProblemCode.HAS_NO_END)
    most_s = remaining_extension_s(workspace)
    if most_s <= 0:
        max_s = max_lifetime_s(workspace)
        raise StateConflict(
            Reason(ExtensionCode.AT_LONGEST_LIFETIME, {**name, "max_s": max_s}),
            code=ProblemCode.AT_LONGEST_LIFETIME,
        )
    if not min(MIN_EXTENSION_S, most_s) <= seconds <= most_s:
        short = seconds < MIN_EXTENSION_S
        reason = (
            Reason(ExtensionCode.EXTENSION_TOO_SHORT, {"least_s": min(MIN_EXTENSION_S, most_s)})
            if short
            else Reason(ExtensionCode.EXTENSION_TOO_LONG, {"most_s": most_s, "asked_s": seconds})
        )
        raise InvalidInput(reason, errors={"hours": [reason]})
    extension_policy().require_extendable(workspace, workspace.ends_at + timedelta(seconds=seconds))


def end_after(workspace: Workspace, seconds: int) -> datetime:
    """Return the end after an extension that `require_extendable` permits."""
    before = workspace.ends_at
    assert before is not None  # checked by `require_extendable`
    # A workspace past its end, about to be stopped, gets the full extension from now.
    ends_at = max(before, timezone.now()) + timedelta(seconds=seconds)
    longest = longest_end(workspace)
    return ends_at if longest is None else min(ends_at, max(longest, before))


def _move_end(actor: User, workspace: Workspace, seconds: int) -> None:
    before = workspace.ends_at
    assert before is not None  # checked by `require_extendable`
    ends_at = end_after(workspace, seconds)
    move_end(workspace, ends_at)
    emit(WorkspaceExtended(workspace, seconds))
    events.record(
        actor=actor,
        kind=AuditKind.WORKSPACE_EXTENDED,
        workspace=workspace,
        message=f"extended the workspace by {format_duration(seconds)}, to {format_day_time(ends_at)}",
        data={"seconds": seconds, "before": before.isoformat(), "ends_at": ends_at.isoformat()},
    )
