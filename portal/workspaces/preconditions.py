"""Preconditions of actions on a workspace, shared by services and previews."""

from __future__ import annotations

from portal.common.actors import SystemActor
from portal.common.errors import StateConflict
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.workspaces import policies
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.lifecycle import STOPPABLE, DesiredState, State
from portal.workspaces.models import Workspace

STOPS_ALREADY = frozenset({State.STOPPING, State.STOPPED})


def require_stoppable(actor: User | SystemActor, workspace: Workspace) -> None:
    """Raise `NotAllowed`, or `StateConflict` unless the workspace can be stopped or is already stopping."""
    policies.require_operate(actor, workspace)
    if workspace.state not in STOPPABLE | STOPS_ALREADY:
        raise state_error(workspace, WorkspaceCode.NOT_STOPPABLE)


def require_not_stopping(workspace: Workspace) -> None:
    """Raise `StateConflict` if the workspace is stopping or stopped, and will not be queued again."""
    if workspace.state in STOPS_ALREADY and workspace.desired_state != DesiredState.RUNNING:
        raise state_error(workspace, WorkspaceCode.STOPS_ALREADY)


def state_error(workspace: Workspace, code: WorkspaceCode) -> StateConflict:
    """Return the error for an action that is not possible in the workspace's state."""
    return StateConflict(
        Reason(code, {"name": workspace.name, "state": workspace.state}), state=workspace.state
    )
