"""Bulk actions on workspaces. Each workspace is handled as if the request named only this one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from django.db import DatabaseError, transaction

from portal.common import storage
from portal.common.errors import NotFound, PortalError, StateConflict
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.workspaces import selectors
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import lock_workspace

MAX_AT_ONCE = 100
"""Maximum number of workspaces in one request. Stopping that many takes a few seconds."""


def fingerprint(workspace: Workspace) -> str:
    """Return a digest of what the user saw before acting on the workspace: state, start, flavor and end."""
    parts = (workspace.state, workspace.desired_state, workspace.generation, workspace.flavor_id)
    return hashlib.sha256(repr((*parts, workspace.runs_until)).encode()).hexdigest()[:16]


def act_on_each(
    *,
    actor: User,
    workspaces: Iterable[UUID],
    act: Callable[[UUID], object],
    seen: Mapping[UUID, str] | None = None,
) -> dict[UUID, PortalError | None]:
    """Call `act` for each workspace in its own transaction. Returns the error, or `None`, by id.

    Locks are held for one workspace at a time. `seen` has the fingerprints that the actor saw; `act` is not
    called for workspaces that have changed since. Workspaces that the actor may not see get a `NotFound`.
    """
    results: dict[UUID, PortalError | None] = {}
    for workspace_id in dict.fromkeys(workspaces):
        results[workspace_id] = None
        try:
            selectors.workspace_by_id(actor, workspace_id)
            with transaction.atomic():
                if seen is not None:
                    require_unchanged(lock_workspace(workspace_id), seen.get(workspace_id, ""))
                act(workspace_id)
        except PortalError as error:
            results[workspace_id] = error
        except DatabaseError as error:
            # Try the other workspaces, and report which ones succeeded.
            unavailable = storage.unavailable_error(error)
            if unavailable is None:
                raise
            results[workspace_id] = unavailable
    return results


def visible(actor: User, workspaces: Iterable[UUID], *, lock: bool = False) -> dict[UUID, Workspace]:
    """Return the workspaces that the actor may see, by id, in one query. `lock` locks them in key order."""
    rows = selectors.workspaces_for(actor).filter(pk__in=list(workspaces))
    if lock:
        rows = rows.order_by("pk").select_for_update(of=("self",))
    return {row.pk: row for row in rows}


def not_found() -> NotFound:
    """Return the error for a workspace that does not exist or is not visible."""
    return NotFound(Reason(WorkspaceCode.NOT_VISIBLE))


def require_unchanged(workspace: Workspace, seen: str) -> None:
    """Raise `StateConflict` if a locked workspace no longer has the fingerprint `seen`."""
    if fingerprint(workspace) != seen:
        reason = Reason(
            WorkspaceCode.CHANGED_SINCE_PREVIEW, {"name": workspace.name, "state": workspace.state}
        )
        raise StateConflict(reason, state=workspace.state)
