"""Rows of a list of workspaces, without a model instance for each of the ten rows that stand behind one.

A list reads the columns that `WorkspaceSerializer` shows and no others, in one query, and what the page's
workspaces hold in two more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from portal.inventory.models import AllocatedDevice, Allocation
from portal.workspaces.models import Workspace

# What stands before a column's name, and the columns.
_OWN = (
    *("id", "name", "state", "desired_state", "termination_reason", "resources", "generation", "created_at"),
    *("state_since", "requested_at", "admitted_at", "placed_at", "checks_began_at", "checks_ended_at"),
    *("launched_at", "ready_at", "priority", "preemptible", "expected_s", "checkpointed", "loses_work"),
    "secrets",
)
_RELATED: dict[str, tuple[str, ...]] = {
    "owner": ("username",),
    "team": ("slug",),
    "template": ("slug", "open_path"),
    "flavor": ("slug", "pool__simulated"),
    "pool": ("slug", "simulated"),
    "queue_entry": ("outcome", "position", "eta_at", "eta_basis", "reason", "blocker"),
    "status": ("reason", "activity", "heartbeat_at"),
    "preemption": ("preempt_at", "cause"),
    "environment_version": ("number", "environment__slug"),
}
# For a workspace that has none, all its columns are null; these never are where there is one.
_OPTIONAL = {"pool": "slug", "preemption": "cause", "environment_version": "number"}

COLUMNS = (*_OWN, *(f"{name}__{column}" for name, columns in _RELATED.items() for column in columns))


class ListedWorkspace(SimpleNamespace):
    """One row, to be read as a `Workspace` is, as far as a list shows it."""

    external_name = Workspace.external_name
    origin = Workspace.origin
    preempting = Workspace.preempting
    simulated = Workspace.simulated


def listed(rows: Sequence[dict[str, Any]]) -> list[ListedWorkspace]:
    """What the rows of a query of `COLUMNS` say, each with what it holds (`held`)."""
    held = _held([row["id"] for row in rows])
    return [_listed(row, held) for row in rows]


def _listed(row: dict[str, Any], held: dict[Any, list[SimpleNamespace]]) -> ListedWorkspace:
    found = ListedWorkspace(pk=row["id"], held=held.get(row["id"], []), **{name: row[name] for name in _OWN})
    for name, columns in _RELATED.items():
        part = SimpleNamespace(**{column: row[f"{name}__{column}"] for column in columns})
        if name in _OPTIONAL and getattr(part, _OPTIONAL[name]) is None:
            part = None  # type: ignore[assignment]
        setattr(found, name, part)
    found.flavor.simulated = bool(found.flavor.pool__simulated)
    if found.environment_version is not None:
        slug = found.environment_version.environment__slug
        found.environment_version.environment = SimpleNamespace(slug=slug)
    return found


def _held(workspace_ids: Sequence[Any]) -> dict[Any, list[SimpleNamespace]]:
    """The allocations of each workspace by the names of their nodes, with their devices by index."""
    allocations = {}
    by_workspace: dict[Any, list[SimpleNamespace]] = defaultdict(list)
    for key, workspace_id, node in (
        Allocation.objects.filter(released_at=None, workspace__in=workspace_ids)
        .order_by("node__name")
        .values_list("pk", "workspace_id", "node__name")
    ):
        allocations[key] = SimpleNamespace(node=SimpleNamespace(name=node), shares=[])
        by_workspace[workspace_id].append(allocations[key])
    if allocations:
        for key, milli, uuid, model, memory_mib in (
            AllocatedDevice.objects.filter(allocation__in=list(allocations))
            .order_by("device__index")
            .values_list("allocation_id", "milli", "device__uuid", "device__model", "device__memory_mib")
        ):
            device = SimpleNamespace(uuid=uuid, model=model, memory_mib=memory_mib)
            allocations[key].shares.append(SimpleNamespace(milli=milli, device=device))
    return by_workspace
