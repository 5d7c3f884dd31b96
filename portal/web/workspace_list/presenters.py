"""Presents workspaces for the table and its export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from portal.catalog import selectors as catalog
from portal.common.completion import MAX_OPTIONS, CompletionOptions, truncate_options
from portal.common.csv_output import line
from portal.common.formatting import format_duration, format_size
from portal.fleet.inventory import selectors as inventory
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import User
from portal.reclaim.overview import UNKNOWN_IDLE_S
from portal.scheduling.bulk_acts import Planned
from portal.web.workspace_list.order import Order
from portal.web.workspace_list.selectors import MAX_COUNTED, Selection
from portal.workspaces import engine_queue, policies
from portal.workspaces.bulk import MAX_AT_ONCE
from portal.workspaces.lifecycle import LIVE, State
from portal.workspaces.models import Workspace
from portal.workspaces.wait_texts import WaitText, wait_text


@dataclass(frozen=True, slots=True)
class ListRow:
    """A row of the table. `may_act`: the reader can operate it. `idle` is a text; `stops_at` may be None."""

    workspace: Workspace
    may_act: bool
    size: str
    where: str
    idle: str
    stops_at: datetime | None
    wait: WaitText | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column heading: its label, the order in its link, and the current direction (ARIA)."""

    name: str
    label: str
    sort: str
    direction: str


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of the filters. If there are too many teams for a menu, they are suggestions."""

    states: list[tuple[str, str]]
    teams: CompletionOptions
    flavors: CompletionOptions
    pools: list[tuple[str, str]]


def rows(actor: User, workspaces: Iterable[Any]) -> list[ListRow]:
    """Return table rows for the workspaces of `selectors.with_columns`."""
    teams = policies.operated_teams(actor)
    return [
        ListRow(
            workspace=workspace,
            may_act=teams is None or workspace.owner_id == actor.pk or workspace.team_id in teams,
            size=format_size(workspace.resources),
            where=where(workspace),
            idle=idle_text(workspace),
            stops_at=workspace.stops_at,
            wait=wait_text(workspace),
        )
        for workspace in workspaces
    ]


def where(workspace: Any) -> str:
    """Return the pool and the nodes: “Training · gpu-1, gpu-2”; "" if it was never placed."""
    if workspace.pool is None:
        return ""
    nodes = nodes_of(workspace)
    return f"{workspace.pool.name} · {', '.join(nodes)}" if nodes else str(workspace.pool.name)


def nodes_of(workspace: Any) -> list[str]:
    """Return the names of the nodes on which the workspace has allocations, or where its engine placed it."""
    if engine_queue.places(workspace):
        return [part.node for part in engine_queue.place_of(workspace)]
    return list(dict.fromkeys(allocation.node.name for allocation in workspace.held))


def target_nodes(planned: Iterable[Planned]) -> CompletionOptions:
    """Return the nodes of the pools of these workspaces, as choices for a move."""
    pools = {step.workspace.pool_id for step in planned if step.workspace.pool_id is not None}
    rows = inventory.nodes().filter(pool__in=pools).order_by("name").distinct()
    return truncate_options(rows.values_list("name", "name")[: MAX_OPTIONS + 1])


def idle_text(workspace: Any) -> str:
    """Return the idle time of a running workspace, or ""."""
    if workspace.state != State.RUNNING:
        return ""
    if workspace.idle_s == UNKNOWN_IDLE_S:
        return _("unknown")
    return format_duration(workspace.idle_s) if workspace.idle_s else _("in use")


def columns(order: Order) -> list[Column]:
    """Return the headings, each with the order after a click."""
    labels = {
        "name": _("Name"),
        "owner": _("Owner"),
        "team": _("Team"),
        "state": _("State"),
        "flavor": _("Flavor"),
        "pool": _("Where"),
        "idle": _("Idle"),
        "left": _("Time left"),
        "started": _("Started"),
    }
    return [
        Column(
            name=name,
            label=label,
            sort=order.reverse_key if name == order.sort.name else name,
            direction=("descending" if order.descending else "ascending") if name == order.sort.name else "",
        )
        for name, label in labels.items()
    ]


def sorts() -> list[tuple[str, str]]:
    """Return the orders for the menu that replaces the headings on phones."""
    return [
        ("newest", _("Newest first")),
        ("name", _("Name")),
        ("owner", _("Owner")),
        ("team", _("Team")),
        ("state", _("State")),
        ("flavor", _("Flavor")),
        ("pool", _("Where")),
        ("idle", _("Longest idle first")),
        ("left", _("Least time left first")),
        ("started", _("Latest start first")),
    ]


def options(actor: User) -> Options:
    """Return the choices of the filters, limited to what the actor may see."""
    teams = accounts.teams_for(actor).order_by("name").values_list("slug", "name")
    flavors = catalog.flavors_for(actor).select_related(None).order_by("name").values_list("slug", "name")
    return Options(
        states=[(state.value, str(state.label)) for state in State if state in LIVE],
        teams=truncate_options(teams[: MAX_OPTIONS + 1]),
        flavors=truncate_options(flavors[: MAX_OPTIONS + 1]),
        pools=list(inventory.pools().order_by("name").values_list("slug", "name")),
    )


def count_text(count: int) -> str:
    """Return a count of `Selection.count` as text."""
    return _("more than %(count)d") % {"count": MAX_COUNTED} if count > MAX_COUNTED else str(count)


def all_label(count: int) -> str:
    """Return the label of the checkbox that selects all matching workspaces, up to the maximum."""
    if count > MAX_AT_ONCE:
        values = {"first": MAX_AT_ONCE, "count": count_text(count)}
        return _("Select the first %(first)d of %(count)s that match") % values
    return _("Select all %(count)d that match") % {"count": count}


CSV_COLUMNS = (
    *("id", "name", "owner", "team", "state", "flavor", "size", "pool", "nodes"),
    *("idle_s", "stops_at", "started_at", "created_at"),
)


def csv_lines(selection: Selection) -> Iterator[str]:
    """Yield the lines of the export: a heading, and one line per workspace. Times are UTC (ISO 8601)."""
    yield line(CSV_COLUMNS)
    for row in selection.all():
        yield line(_csv_values(row))


def _csv_values(row: Any) -> Iterable[Any]:
    yield from (row.pk, row.name, row.owner.username, row.team.slug, row.state, row.flavor.slug)
    yield from (format_size(row.resources), row.pool.slug if row.pool else None, " ".join(nodes_of(row)))
    yield None if row.idle_s == UNKNOWN_IDLE_S else row.idle_s
    yield from (
        moment.isoformat() if moment else None for moment in (row.stops_at, row.ready_at, row.created_at)
    )
