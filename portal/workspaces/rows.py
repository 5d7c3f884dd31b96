"""Rows of workspaces as REST shows them, without a model instance for each of the ten rows behind one.

Lists and single answers read the columns that `WorkspaceSerializer` shows and no others in one query, and
what the workspaces hold in another; their SQL is always the same, and made once. A list finds the keys of its
page first (`KEYS`).

The rows are read for each answer. What was made of those shown last is kept in the process, by all that the
database has given: a row of which one column has changed is another row.
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
from portal.common.prepared import Prepared, RawRow
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import Allocation
from portal.people.accounts.models import User
from portal.workspaces import selectors
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import Workspace

MAX_KEPT = 512
"""Rows of which a process keeps what it has made of them: some pages, about 11 KiB a row."""
# What a page's workspaces are found with: their keys, and what they are ordered by.
KEYS = ("id", "created_at")
# What stands before a column's name, and the columns.
_OWN = (
    *("id", "name", "state", "desired_state", "termination_reason", "resources", "generation", "created_at"),
    *("state_since", "requested_at", "admitted_at", "placed_at", "checks_began_at", "checks_ended_at"),
    *(
        "launched_at",
        "ready_at",
        "priority",
        "preemptible",
        "expected_s",
        "lifetime_s",
        "ends_at",
        "checkpointed",
        "loses_work",
        "released_resources",
    ),
    "secrets",
    "git",
)
_RELATED: dict[str, tuple[str, ...]] = {
    "owner": ("username",),
    "team": ("slug",),
    "template": ("slug", "open_path"),
    "flavor": ("slug", "pool__simulated"),
    "pool": ("slug", "simulated"),
    "queue_entry": ("outcome", "position", "eta_at", "eta_basis", "reason", "blocker"),
    "status": ("reason", "activity", "heartbeat_at", "checkouts", "gpu_shares"),
    "preemption": ("preempt_at", "cause"),
    "environment_version": ("number", "environment__slug"),
}
# For a workspace that has none, all its columns are null; these never are where there is one.
_OPTIONAL = {"pool": "slug", "preemption": "cause", "environment_version": "number"}

# A device of an allocation; all null for an allocation without devices.
_HELD_COLUMNS = (
    "devices__milli",
    "devices__device__uuid",
    "devices__device__model",
    "devices__device__memory_mib",
)

# Kept as JSON, and read as its text.
_JSON = frozenset(
    {"resources", "secrets", "git", "checkouts", "gpu_shares", "reason", "eta_basis", "blocker", "activity"}
)

COLUMNS = (*_OWN, *(f"{name}__{column}" for name, columns in _RELATED.items() for column in columns))


if TYPE_CHECKING:

    class WorkspaceRow(Workspace):
        """A workspace as far as REST shows it."""

        held: list[Any]
        shown: dict[Any, Any]

else:

    class WorkspaceRow(SimpleNamespace):
        """One row, to be read as a `Workspace` is, as far as REST shows it.

        `held` has its allocations by the names of their nodes. `shown` is for its serializer, which keeps
        there what follows from the row alone.
        """

        external_name = Workspace.external_name
        preempting = Workspace.preempting
        runs_until = Workspace.runs_until
        simulated = Workspace.simulated
        gpu_released = Workspace.gpu_released


_ROWS = Prepared(
    lambda keys: Workspace.objects.filter(pk__in=keys).order_by().values_list(*COLUMNS),
    lambda: Workspace._meta.pk,
    raw_json=True,
)
_HELD = Prepared(
    lambda keys: (
        Allocation.objects.filter(released_at__isnull=True, workspace__in=keys)
        .order_by("node__name", "pk", "devices__device__index")
        .values_list("workspace_id", "pk", "node__name", *_HELD_COLUMNS)
    ),
    lambda: Workspace._meta.pk,
)


def read(keys: Sequence[UUID]) -> list[WorkspaceRow]:
    """Return the workspaces with these keys in the same order, without those deleted since.

    They are only to be read: rows that say the same share the objects that say it.
    """
    held = defaultdict(list)
    for workspace_id, *allocated in _HELD.raw_rows(keys):
        held[workspace_id].append(tuple(allocated))
    rows = (_workspace(row, tuple(held[row[0]])) for row in _ROWS.raw_rows(keys))
    found = {workspace.pk: workspace for workspace in rows}
    return [found[key] for key in keys if key in found]


def read_by_id(actor: User, workspace_id: UUID) -> WorkspaceRow:
    """Return one workspace. Raises `NotFound` when there is none or the actor may not see it."""
    visible = selectors.rows_for(actor).filter(pk=workspace_id)
    found = read(list(visible.values_list("pk", flat=True)))
    if not found:
        raise NotFound(Reason(WorkspaceCode.NOT_VISIBLE))
    return found[0]


@lru_cache(maxsize=MAX_KEPT)
def _workspace(raw: RawRow, held: tuple[RawRow, ...]) -> WorkspaceRow:
    """What the rows say that the database has given: kept by these rows, it is never older than they are."""
    row = _ROWS.converted(raw)
    found = WorkspaceRow(pk=row[0], held=_held(held), shown={})
    own = found.__dict__
    own.update(zip(_OWN, row, strict=False))
    for name in _OWN_JSON:
        own[name] = _parsed(own[name])
    for name, first, last in _PLACES:
        own[name] = _part(name, tuple(row[first:last]))
    return found


@lru_cache(maxsize=MAX_KEPT)
def _part(name: str, values: tuple[Any, ...]) -> SimpleNamespace | None:
    """What stands behind a row under this name; None where there is nothing."""
    columns = _RELATED[name]
    part = SimpleNamespace(
        **{
            column: _parsed(value) if column in _JSON else value
            for column, value in zip(columns, values, strict=True)
        }
    )
    if name in _OPTIONAL and getattr(part, _OPTIONAL[name]) is None:
        return None
    if name == "flavor":
        part.simulated = bool(part.pool__simulated)
    if name == "environment_version":
        part.environment = SimpleNamespace(slug=part.environment__slug)
    return part


@lru_cache(maxsize=MAX_KEPT)
def _parsed(text: str) -> Any:
    return msgspec.json.decode(text)


_OWN_JSON = tuple(name for name in _OWN if name in _JSON)


def _places() -> tuple[tuple[str, int, int], ...]:
    """Where the columns of each of `_RELATED` begin and end in a row."""
    found, first = [], len(_OWN)
    for name, columns in _RELATED.items():
        found.append((name, first, first + len(columns)))
        first += len(columns)
    return tuple(found)


_PLACES = _places()


def _held(rows: tuple[RawRow, ...]) -> list[SimpleNamespace]:
    """The allocations of a workspace by the names of their nodes, with their devices by index."""
    found: dict[Any, SimpleNamespace] = {}
    for key, node, milli, uuid, model, memory_mib in rows:
        if key not in found:
            found[key] = SimpleNamespace(node=SimpleNamespace(name=node), shares=[])
        if milli is not None:
            device = SimpleNamespace(uuid=uuid, model=model, memory_mib=memory_mib)
            found[key].shares.append(SimpleNamespace(milli=milli, device=device))
    return list(found.values())
