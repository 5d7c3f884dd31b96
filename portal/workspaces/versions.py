"""Versions of workspaces in REST: `ETag` and `If-Match`."""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import UUID

from django.utils.http import parse_etags
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from portal.common.errors import PreconditionFailed
from portal.common.reasons.reason import Reason
from portal.workspaces import rows
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.lifecycle import State
from portal.workspaces.rows import WorkspaceRow
from portal.workspaces.transitions import lock_workspace

IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="Only if the workspace is unchanged since the response with this `ETag`.",
)


def version_of(row: WorkspaceRow) -> str:
    """Return a version that changes with everything that matters to users, but not with measurements."""
    return _short_digest(
        row.state,
        row.state_since,
        row.desired_state,
        row.generation,
        row.pool.slug if row.pool is not None else None,
        row.approved_at,
        row.launched_at,
        row.began_at,
        {**row.status.engine.get("queue", {}), "seen_at": None},
        row.status.engine.get("placed"),
        row.ready_at,
        row.termination_reason,
        row.status.reason,
        row.status.stopped,
        row.queue_entry.outcome,
        row.queue_entry.reason,
        row.queue_entry.position,
        row.queue_entry.eta_at,
        row.preempting.preempt_at if row.preempting else None,
        row.runs_until,
        row.status.checkouts,
        row.status.gpu_shares,
        row.status.memory_kill,
        row.gpu_released,
        row.flavor.slug,
        row.queue_entry.next_flavor,
        row.name,
        row.expected_s,
        row.priority,
    )


def etag_of(row: WorkspaceRow) -> str:
    """Return a weak tag: the version, a dot, and a digest of the measurements."""
    wait = row.status.engine.get("queue", {})
    measured = _short_digest(row.status.heartbeat_at, row.status.activity, wait.get("seen_at"))
    return f'W/"{version_of(row)}.{measured}"'


def require_match(request: Request, workspace_id: UUID) -> None:
    """Lock the row and compare it with `If-Match`. Raises `PreconditionFailed`.

    Django's `condition` cannot be used, because a weak tag never matches there (RFC 9110, 13.1.1). Only the
    part before the dot is compared, which ignores measurements.
    """
    header = request.headers.get("If-Match", "").strip()
    if not header or header == "*":
        return
    lock_workspace(workspace_id)
    [present] = rows.read([workspace_id])
    versions = {tag.removeprefix("W/").strip('"').partition(".")[0] for tag in parse_etags(header)}
    if version_of(present) not in versions:
        label = State(present.state).label.lower()
        raise PreconditionFailed(
            Reason(
                WorkspaceCode.VERSION_CHANGED, {"name": present.name, "state": present.state, "label": label}
            ),
            state=present.state,
        )


def _short_digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
