"""Reads workspaces for REST without creating model instances for their ten related rows.

Lists and single responses read exactly the columns of `WorkspaceSerializer` in one query, and the allocations
in another. The SQL is prepared once. A list first selects the keys of its page (`KEYS`).

Rows are read for each response. Representations of recent rows are cached in the process, keyed by the raw
data from the database, so a changed column leads to a different key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from portal.common.errors import NotFound
from portal.common.prepared import PreparedRows, RawRow
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import Allocation
from portal.people.accounts.models import User
from portal.workspaces import selectors
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import Workspace
from provisioning.registry import traits_of

MAX_KEPT = 512
"""Number of cached representations, about 11 KiB each."""
# Columns that select and order the workspaces of a page.
KEYS = ("id", "created_at")
# Column prefixes and their columns.
_OWN = (
    *("id", "name", "state", "desired_state", "termination_reason", "resources", "generation", "created_at"),
    *("state_since", "requested_at", "admitted_at", "placed_at", "checks_began_at", "checks_ended_at"),
    *("approved_at", "approved_by", "home_move_began_at", "home_move_ended_at"),
    *(
        "launched_at",
        "began_at",
        "ready_at",
        "priority",
        "preemptible",
        "expected_s",
        "lifetime_s",
        "ends_at",
        "checkpointed",
        "loses_work",
        "released_resources",
        "flavor_choices",
        "bound_to",
    ),
    "secrets",
    "git",
)
_RELATED: dict[str, tuple[str, ...]] = {
    "owner": ("username",),
    "team": ("slug",),
    "template": ("slug", "open_path"),
    "flavor": ("slug", "pool__simulated"),
    "pool": ("slug", "simulated", "driver"),
    "queue_entry": (
        "outcome",
        "position",
        "eta_at",
        "eta_basis",
        "reason",
        "blocker",
        "member_order",
        "next_flavor",
    ),
    "status": (
        *("reason", "stopped", "activity", "heartbeat_at", "checkouts", "gpu_shares", "memory_kill"),
        "engine",
    ),
    "preemption": ("preempt_at", "cause"),
    "environment_version": ("number", "environment__slug"),
}
# For each optional relation, a column that is null only if the relation is missing.
_OPTIONAL = {"pool": "slug", "preemption": "cause", "environment_version": "number"}

# Columns of an allocation's device; all are null for an allocation without devices.
_HELD_COLUMNS = (
    "devices__milli",
    "devices__device__uuid",
    "devices__device__model",
    "devices__device__memory_mib",
)

# Columns read as JSON text.
_JSON = frozenset(
    {
        *("resources", "secrets", "git", "checkouts", "gpu_shares", "memory_kill", "reason", "stopped"),
        "engine",
        "eta_basis",
        *("blocker", "member_order", "next_flavor", "flavor_choices", "activity"),
    }
)

COLUMNS = (*_OWN, *(f"{name}__{column}" for name, columns in _RELATED.items() for column in columns))


if TYPE_CHECKING:

    class WorkspaceRow(Workspace):
        """A workspace with the attributes that REST shows."""

        held: list[Any]
        shown: dict[Any, Any]

else:

    class WorkspaceRow(SimpleNamespace):
        """One row with the attributes of a `Workspace` that REST shows.

        `held` are its allocations by node name. `shown` caches values that the serializer derives from this
        row alone.
        """

        external_name = Workspace.external_name
        preempting = Workspace.preempting
        runs_until = Workspace.runs_until
        simulated = Workspace.simulated
        gpu_released = Workspace.gpu_released
        bound = Workspace.bound


_ROWS = PreparedRows(
    lambda keys: Workspace.objects.filter(pk__in=keys).order_by().values_list(*COLUMNS),
    lambda: Workspace._meta.pk,
    raw_json=True,
)
_HELD = PreparedRows(
    lambda keys: (
        Allocation.objects.filter(released_at__isnull=True, workspace__in=keys)
        .order_by("node__name", "pk", "devices__device__index")
        .values_list("workspace_id", "pk", "node__name", *_HELD_COLUMNS)
    ),
    lambda: Workspace._meta.pk,
)


def read(keys: Sequence[UUID]) -> list[WorkspaceRow]:
    """Return the workspaces with these keys in the same order, except those deleted meanwhile.

    The objects are read-only, because equal rows share them.
    """
    allocations = defaultdict(list)
    for workspace_id, *allocated in _HELD.raw_rows(keys):
        allocations[workspace_id].append(tuple(allocated))
    rows = (_workspace(row, tuple(allocations[row[0]])) for row in _ROWS.raw_rows(keys))
    by_key = {workspace.pk: workspace for workspace in rows}
    return [by_key[key] for key in keys if key in by_key]


def read_by_id(actor: User, workspace_id: UUID) -> WorkspaceRow:
    """Return one workspace. Raises `NotFound` if it does not exist or is not visible to the actor."""
    visible = selectors.rows_for(actor).filter(pk=workspace_id)
    rows = read(list(visible.values_list("pk", flat=True)))
    if not rows:
        raise NotFound(Reason(WorkspaceCode.NOT_VISIBLE))
    return rows[0]


@lru_cache(maxsize=MAX_KEPT)
def _workspace(raw: RawRow, allocations: tuple[RawRow, ...]) -> WorkspaceRow:
    """Return the object for the raw rows. The cache is keyed by the rows, so it is never stale."""
    row = _ROWS.convert(raw)
    workspace_row = WorkspaceRow(pk=row[0], held=_allocations_of(allocations), shown={})
    own = workspace_row.__dict__
    own.update(zip(_OWN, row, strict=False))
    for name in _OWN_JSON:
        own[name] = _parse_json(own[name])
    for name, first, last in _PLACES:
        own[name] = _related(name, tuple(row[first:last]))
    return workspace_row


@lru_cache(maxsize=MAX_KEPT)
def _related(name: str, values: tuple[Any, ...]) -> SimpleNamespace | None:
    """Return the related object under this name, or `None`."""
    columns = _RELATED[name]
    part = SimpleNamespace(
        **{
            column: _parse_json(value) if column in _JSON else value
            for column, value in zip(columns, values, strict=True)
        }
    )
    if name in _OPTIONAL and getattr(part, _OPTIONAL[name]) is None:
        return None
    if name == "flavor":
        part.simulated = bool(part.pool__simulated)
    if name == "pool":
        part.traits = traits_of(part.driver)
    if name == "environment_version":
        part.environment = SimpleNamespace(slug=part.environment__slug)
    return part


@lru_cache(maxsize=MAX_KEPT)
def _parse_json(text: str) -> Any:
    return msgspec.json.decode(text)


_OWN_JSON = tuple(name for name in _OWN if name in _JSON)


def _places() -> tuple[tuple[str, int, int], ...]:
    """Return the column range of each entry of `_RELATED` in a row."""
    places, first = [], len(_OWN)
    for name, columns in _RELATED.items():
        places.append((name, first, first + len(columns)))
        first += len(columns)
    return tuple(places)


_PLACES = _places()


def _allocations_of(rows: tuple[RawRow, ...]) -> list[SimpleNamespace]:
    """Return a workspace's allocations, ordered by node name, each with its devices ordered by index."""
    by_key: dict[Any, SimpleNamespace] = {}
    for key, node, milli, uuid, model, memory_mib in rows:
        if key not in by_key:
            by_key[key] = SimpleNamespace(node=SimpleNamespace(name=node), shares=[])
        if milli is not None:
            device = SimpleNamespace(uuid=uuid, model=model, memory_mib=memory_mib)
            by_key[key].shares.append(SimpleNamespace(milli=milli, device=device))
    return list(by_key.values())
