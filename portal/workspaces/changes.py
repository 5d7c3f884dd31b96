"""Changes of an existing workspace: name, expected time, priority."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from portal.common.constraints import violates
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.workspaces import policies
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import RequestChanged
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.order import require_in_range
from portal.workspaces.services import NAME_UNIQUE
from portal.workspaces.transitions import lock_workspace

CHANGEABLE = frozenset({State.PENDING, State.PROVISIONING, State.RUNNING, State.STOPPED, State.FAILED})
"""Workspaces in other states are on their way to one of these states, or have ended."""
RENAMEABLE = CHANGEABLE - {State.PROVISIONING, State.RUNNING}
"""The node of a running workspace already knows its name from the start specification."""


@transaction.atomic
def change(
    *,
    actor: User,
    workspace_id: UUID,
    name: str | None = None,
    expected_s: int | None = None,
    priority: int | None = None,
) -> Workspace:
    """Change the given fields; unchanged values have no effect.

    Raises `InvalidInput` (name, time, priority), `NotAllowed` (the workspace, a priority above 0) and
    `StateConflict` (in transition, name taken, running, or the end determines the expected time).
    """
    workspace = lock_workspace(workspace_id)
    policies.require_operate(actor, workspace)
    requested = {
        "name": None if name is None else name.strip().lower(),
        "expected_s": _within_life(workspace, expected_s),
        "priority": priority,
    }
    changes: dict[str, Any] = {
        field: value
        for field, value in requested.items()
        if value is not None and value != getattr(workspace, field)
    }
    if not changes:
        return workspace
    _require_state(workspace, changes)
    require_in_range(changes.get("expected_s"), changes.get("priority", 0))
    if "priority" in changes:
        policies.require_priority(actor, workspace.team, changes["priority"])
    before = {field: getattr(workspace, field) for field in changes}
    for field, value in changes.items():
        setattr(workspace, field, value)
    _save(workspace, sorted(changes))
    if changes.keys() - {"name"}:
        # The new values affect its rank in the queue and its estimated end.
        emit(RequestChanged(workspace))
    events.record(
        actor=actor,
        kind=AuditKind.WORKSPACE_CHANGED,
        workspace=workspace,
        message=f"changed the {_join_labels(changes)} of the workspace",
        data={"before": before, "after": changes},
    )
    return workspace


def _within_life(workspace: Workspace, expected_s: int | None) -> int | None:
    """Return the expected time, limited to the lifetime of the workspace."""
    if expected_s is None or workspace.lifetime_s is None:
        return expected_s
    return min(expected_s, workspace.lifetime_s)


def _require_state(workspace: Workspace, changes: dict[str, Any]) -> None:
    params = {"name": workspace.name, "state": workspace.state}
    if workspace.state not in CHANGEABLE:
        raise StateConflict(Reason(WorkspaceCode.NOT_CHANGEABLE, params), state=workspace.state)
    if "name" in changes and workspace.state not in RENAMEABLE:
        raise StateConflict(Reason(WorkspaceCode.NOT_RENAMEABLE, params), state=workspace.state)
    if "expected_s" in changes and workspace.ends_at is not None and workspace.state == State.RUNNING:
        raise StateConflict(
            Reason(WorkspaceCode.EXPECTED_BY_END, {"name": workspace.name}), state=workspace.state
        )


def _save(workspace: Workspace, fields: list[str]) -> None:
    try:
        workspace.clean_fields(exclude={field.name for field in workspace._meta.fields} - set(fields))
    except ValidationError as error:
        raise InvalidInput(Reason(WorkspaceCode.NOT_VALID), errors=error.message_dict) from error
    try:
        with transaction.atomic():
            workspace.save(update_fields=fields)
    except IntegrityError as error:
        if not violates(error, Workspace, NAME_UNIQUE):
            raise
        reason = Reason(WorkspaceCode.NAME_TAKEN, {"name": workspace.name, "team": workspace.team.name})
        raise StateConflict(reason, code=ProblemCode.NAME_TAKEN) from error


def _join_labels(changes: dict[str, Any]) -> str:
    labels = {"name": "name", "expected_s": "expected time", "priority": "priority"}
    return " and ".join(labels[field] for field in changes)
