"""The GPU map, with one cell per device. The number of queries is constant.

Large maps have small cells, grouped by pool, rack and node. Filters and zoom (`gpu_zoom`) narrow the map; if
few GPUs are left, they are shown in detail.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.core.paginator import Page, Paginator
from django.db.models import Q
from django.utils.functional import Promise
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from portal.fleet.inventory import locations
from portal.fleet.inventory.contact import contact_of_node, contact_of_pool
from portal.fleet.inventory.device_states import (
    KNOWN,
    LOOKS,
    DeviceState,
    StateLook,
    annotate_state,
)
from portal.fleet.inventory.models import Device, Node, Pool
from portal.people.accounts.models import User
from portal.web.fleet.presenters import gpu_notes, gpu_zoom
from portal.web.fleet.presenters.gpu_details import GpuDetails, gpu_details
from portal.web.fleet.presenters.gpu_notes import SilentPlace
from portal.web.fleet.presenters.gpu_zoom import BY, Crumb, Filters
from provisioning.types import DeviceKind

NODES_PER_PAGE = 128
FEW_NODES = 64
"""Maximum number of nodes whose devices are read by node instead of by pool."""
DETAILED_GPUS = 64
"""Maximum number of GPUs that are shown in detail."""
SLICES = 8
"""Length of a GPU's memory axis in slices; an A30 has half as many."""


def code_of(state: DeviceState) -> str:
    """Return the CSS class of a small cell. Two letters keep a map of 1,000 GPUs small."""
    return state.value[:2]


@dataclass(frozen=True, slots=True)
class Segment:
    """An instance of a partitioned GPU on its memory axis, in eighths."""

    state: DeviceState
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The cell of a device. `label` is its description for screen readers; empty on a compact map."""

    index: int
    state: DeviceState
    label: str
    stale: bool
    segments: tuple[Segment, ...] = ()

    @property
    def look(self) -> StateLook:
        return LOOKS[self.state]


@dataclass(frozen=True, slots=True)
class MapNode:
    """A node with its cells. `at` is the path prefix of each cell; `location` is empty if unknown.

    `zoom` is the query string that shows only this node.
    """

    id: UUID
    name: str
    location: str
    note: str
    tone: str
    at: str
    zoom: str
    cells: tuple[Cell, ...]

    @property
    def small_cells(self) -> SafeString:
        """The cells of a compact map. A template loop would take 10 times as long for 1,000 GPUs."""
        return format_html_join(
            "",
            "<i class={}{}>{}</i>",
            (
                (
                    code_of(cell.state),
                    "" if cell.index == place else f" data-index={cell.index}",
                    cell.look.glyph,
                )
                for place, cell in enumerate(self.cells)
            ),
        )

    @property
    def stale(self) -> bool:
        """Whether the states are the last known ones, because the node is silent."""
        return any(cell.stale for cell in self.cells)

    @property
    def summary(self) -> str:
        """The number of GPUs by state, and the note, for screen readers."""
        counts = Counter(cell.state for cell in self.cells)
        texts = [f"{counts[state]} {str(LOOKS[state].word).lower()}" for state in LOOKS if counts[state]]
        texts = texts or [_("no GPU")]
        return ", ".join((*texts, self.note) if self.note else texts)


@dataclass(frozen=True, slots=True)
class Rack:
    """Nodes of a group in one rack. `name` is empty if the group is not divided into racks."""

    name: str
    zoom: str
    nodes: tuple[MapNode, ...]

    @property
    def gpu_count(self) -> int:
        return sum(len(node.cells) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes of this page that belong together; `pool` is the slug if the group is a pool.

    `zoom` is the query string that shows only this group, or empty. `racks` is empty on a detailed map.
    """

    name: str
    simulated: bool
    pool: str
    nodes: tuple[MapNode, ...]
    zoom: str = ""
    racks: tuple[Rack, ...] = ()


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A state with its number of devices; `chosen` if the map is filtered by this state."""

    state: DeviceState
    look: StateLook
    count: int
    chosen: bool

    @property
    def code(self) -> str:
        return code_of(self.state)


@dataclass(frozen=True, slots=True)
class GpuMap:
    """The map page: headline, legend and cells.

    `lost` is a note that the selected rack or node does not exist. `details` are the selected node's GPUs.
    """

    headline: str
    simulated_headline: str
    legend: tuple[LegendEntry, ...]
    groups: tuple[Group, ...]
    page: Page[Any]
    compact: bool
    filters: Filters
    crumbs: tuple[Crumb, ...]
    lost: str
    details: tuple[GpuDetails, ...]
    pools: tuple[tuple[str, str], ...]
    models: tuple[str, ...]
    notes: tuple[tuple[str, str], ...]
    silent: tuple[SilentPlace, ...]
    total: int
    ways: tuple[tuple[str, str | Promise], ...] = BY


@dataclass(slots=True)
class _DeviceRow:
    """A device as read from the database."""

    node: UUID
    index: int
    model: str
    kind: str
    uuid: str
    parent: str
    profile: str
    start: int
    slices: int
    state: DeviceState
    parts: list[_DeviceRow] = field(default_factory=list)

    @property
    def look(self) -> StateLook:
        return LOOKS[self.state]


def gpu_map(actor: User, filters: Filters, page: str | None, now: datetime) -> GpuMap:
    """Return the map with these filters. Workspaces that `actor` may not see are not named."""
    pools = {pool.pk: pool for pool in Pool.objects.filter(enabled=True)}
    nodes, filters, lost = gpu_zoom.zoomed(_nodes(pools, filters), filters)
    rows = _rows(nodes, now)
    devices_shown = [row for row in _with_instances(rows) if not filters.model or row.model == filters.model]
    counted = _countable(devices_shown, nodes, pools)
    state_counts = Counter(row.state for group in counted.values() for row in group)
    shown = [row for row in devices_shown if not filters.state or filters.state in _states(row)]
    by_node: dict[UUID, list[_DeviceRow]] = defaultdict(list)
    for row in shown:
        by_node[row.node].append(row)
    compact = len(shown) > DETAILED_GPUS
    narrowed = filters.state or filters.model or filters.by in ("model", "state")
    listed = [node for node in nodes.values() if by_node[node.pk] or not narrowed]
    listed.sort(key=_order(pools, filters.by, compact=compact))
    chunk = Paginator(listed, NODES_PER_PAGE).get_page(page)
    return GpuMap(
        headline=gpu_notes.headline((row.kind, row.state) for row in counted[False]),
        simulated_headline=gpu_notes.headline((row.kind, row.state) for row in counted[True]),
        legend=_legend(state_counts, filters),
        groups=tuple(_groups(chunk.object_list, by_node, pools, filters, compact=compact, now=now)),
        page=chunk,
        compact=compact,
        filters=filters,
        crumbs=gpu_zoom.crumbs(filters, pools.values()),
        lost=lost,
        details=_details(actor, nodes.values(), filters, now),
        pools=tuple((pool.slug, pool.name) for pool in sorted(pools.values(), key=lambda pool: pool.slug)),
        models=tuple(sorted({row.model for row in rows if row.kind == DeviceKind.GPU})),
        notes=tuple(gpu_notes.accelerator_notes(nodes.values())),
        silent=tuple(gpu_notes.silent_places(nodes.values(), pools, now)),
        total=sum(state_counts.values()),
    )


def _countable(
    devices: Iterable[_DeviceRow], nodes: Mapping[UUID, Node], pools: Mapping[UUID, Pool]
) -> dict[bool, list[_DeviceRow]]:
    """Return unpartitioned GPUs and instances, by whether they are simulated."""
    simulated = {key for key, node in nodes.items() if pools[node.pool_id].simulated}
    counted: dict[bool, list[_DeviceRow]] = {False: [], True: []}
    for row in devices:
        counted[row.node in simulated].extend(row.parts or [row])
    return counted


def _legend(counts: Counter[DeviceState], filters: Filters) -> tuple[LegendEntry, ...]:
    always = (DeviceState.ALLOCATED, DeviceState.FREE)
    return tuple(
        LegendEntry(state, LOOKS[state], counts[state], filters.state == state)
        for state in LOOKS
        if counts[state] or filters.state == state or state in always
    )


def _order(pools: Mapping[UUID, Pool], by: str, *, compact: bool) -> Callable[[Node], tuple[Any, ...]]:
    """Return the sort key of nodes. If racks are shown, nodes of the same rack are adjacent."""

    def rack(node: Node) -> tuple[bool, str]:
        return (not any(node.location), gpu_zoom.rack_key(node))

    def key(node: Node) -> tuple[Any, ...]:
        pool = pools[node.pool_id]
        if by == "rack":
            return (pool.simulated, *rack(node), pool.slug, node.name)
        return (pool.simulated, pool.slug, *(rack(node) if compact else ()), node.name)

    return key


def _details(actor: User, nodes: Collection[Node], filters: Filters, now: datetime) -> tuple[GpuDetails, ...]:
    """Return the GPUs of the selected node in detail. Nodes in several pools can have the same name."""
    if not filters.node:
        return ()
    return tuple(details for node in nodes for details in gpu_details(actor, node, now))


def _nodes(pools: Mapping[UUID, Pool], filters: Filters) -> dict[UUID, Node]:
    nodes = Node.objects.filter(pool__in=list(pools), retired=False).defer(
        "facts", "programs", "warnings", "labels"
    )
    if filters.pool:
        nodes = nodes.filter(pool__slug=filters.pool)
    if filters.q:
        nodes = nodes.filter(name__icontains=filters.q)
    for node in nodes:
        # Reuse the loaded pool.
        node.pool = pools[node.pool_id]
    return {node.pk: node for node in nodes}


def _rows(nodes: Mapping[UUID, Node], now: datetime) -> list[_DeviceRow]:
    of_nodes = Q(node__in=list(nodes))
    if len(nodes) > FEW_NODES:
        of_nodes = Q(node__pool__in={node.pool_id for node in nodes.values()})
    columns: Iterable[Any] = (
        annotate_state(Device.objects.filter(KNOWN, of_nodes), now)
        .order_by("index", "mig_start", "uuid")
        .values_list(
            "node_id", "index", "model", "kind", "uuid", "parent_uuid", "mig_profile", "mig_start",
            "facts__memory_slices", "state",
        )
    )  # fmt: skip
    return [
        _DeviceRow(node, index, model, kind, uuid, parent, profile, start, slices or 1, DeviceState(state))
        for node, index, model, kind, uuid, parent, profile, start, slices, state in columns
        if node in nodes
    ]


def _with_instances(rows: Sequence[_DeviceRow]) -> list[_DeviceRow]:
    """Return GPUs with their instances. An instance without a known GPU is listed separately."""
    by_uuid = {row.uuid: row for row in rows if row.kind != DeviceKind.MIG}
    devices = list(by_uuid.values())
    for row in rows:
        if row.kind != DeviceKind.MIG:
            continue
        parent = by_uuid.get(row.parent)
        if parent is None:
            devices.append(row)
        else:
            parent.parts.append(row)
    return devices


def _states(row: _DeviceRow) -> set[str]:
    return {row.state, *(part.state for part in row.parts)}


def _groups(
    nodes: Iterable[Node],
    by_node: Mapping[UUID, list[_DeviceRow]],
    pools: Mapping[UUID, Pool],
    filters: Filters,
    *,
    compact: bool,
    now: datetime,
) -> Iterable[Group]:
    places = list(LOOKS)
    by = filters.by
    groups: dict[tuple[bool, int, str, str], list[tuple[Node, MapNode]]] = defaultdict(list)
    for node in nodes:
        pool = pools[node.pool_id]
        stale = not contact_of_node(node).heard
        cells: dict[tuple[bool, int, str, str], list[Cell]] = defaultdict(list)
        where = (pool.simulated, 0, pool.slug, pool.name)
        if by == "rack":
            where = (pool.simulated, 0 if any(node.location) else 1, "", gpu_zoom.rack_key(node))
        if by not in ("model", "state"):
            cells[where] = []
        for row in sorted(by_node[node.pk], key=lambda device: device.index):
            if by == "model":
                key = (pool.simulated, 0, "", row.model)
            elif by == "state":
                key = (pool.simulated, places.index(row.state), "", str(row.look.word))
            else:
                key = where
            cells[key].append(_small_cell(row, stale=stale) if compact else _cell(row, stale=stale))
        for key, cell_rows in cells.items():
            groups[key].append((node, _map_node(node, pool, cell_rows, filters, now)))
    for (simulated, _place, slug, name), listed in sorted(groups.items(), key=lambda item: item[0]):
        zoom = gpu_zoom.zoom_query(filters, rack=name) if by == "rack" else ""
        yield Group(
            name=gpu_zoom.rack_name(name) if by == "rack" else name,
            simulated=simulated,
            pool=slug,
            nodes=tuple(row for _node, row in listed),
            zoom=zoom,
            racks=tuple(_racks(listed, slug, filters)) if compact else (),
        )


def _racks(listed: Sequence[tuple[Node, MapNode]], pool: str, filters: Filters) -> Iterable[Rack]:
    """Return the racks of a pool. Other groups, and pools without locations, have no racks."""
    if not pool or not any(any(node.location) for node, _row in listed):
        yield Rack("", "", tuple(row for _node, row in listed))
        return
    for key, rows in groupby(listed, key=lambda item: gpu_zoom.rack_key(item[0])):
        zoom = gpu_zoom.zoom_query(filters, pool=pool, rack=key)
        yield Rack(gpu_zoom.rack_name(key), zoom, tuple(row for _node, row in rows))


def _map_node(node: Node, pool: Pool, cells: Iterable[Cell], filters: Filters, now: datetime) -> MapNode:
    contact, note, tone = contact_of_node(node), "", ""
    if contact_of_pool(pool).heard and not contact.heard:
        note, tone = contact.age_text(now), "bad"
    elif node.cordoned:
        note, tone = _("cordoned"), "wait"
    at = f"/gpus/at/{pool.slug}/{quote(node.name, safe='')}/"
    zoom = gpu_zoom.zoom_query(filters, pool=pool.slug, node=node.name)
    location = locations.location_text(node)
    return MapNode(node.pk, node.name, location, note, tone, at, zoom, tuple(cells))


def _small_cell(row: _DeviceRow, *, stale: bool) -> Cell:
    """Return a cell without its label, which the browser creates from the legend."""
    return Cell(row.index, row.state, "", stale)


def _cell(row: _DeviceRow, *, stale: bool) -> Cell:
    name = f"GPU {row.index}"
    if not row.parts:
        label = f"{name} {str(LOOKS[row.state].word).lower()}"
        if stale:
            label = _("%(gpu)s, last known state") % {"gpu": label}
        return Cell(row.index, row.state, label, stale)
    parts = ", ".join(f"{part.profile} {str(LOOKS[part.state].word).lower()}" for part in row.parts)
    segments = tuple(
        Segment(part.state, max(0, min(part.start, SLICES - 1)), max(1, min(part.slices, SLICES)))
        for part in row.parts
    )
    return Cell(
        row.index,
        row.state,
        _("%(gpu)s, partitioned: %(instances)s") % {"gpu": name, "instances": parts},
        stale,
        segments,
    )
