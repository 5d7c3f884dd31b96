"""The map of all GPUs, one cell per device with its state. The number of queries is constant."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.core.paginator import Page, Paginator
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from portal.fleet.inventory import counting, locations
from portal.fleet.inventory.contact import contact_of_node, contact_of_pool
from portal.fleet.inventory.device_states import (
    KNOWN,
    LOOKS,
    DeviceState,
    StateLook,
    annotate_state,
)
from portal.fleet.inventory.models import Device, Node, Pool
from provisioning.types import DeviceKind

NODES_PER_PAGE = 128
SHOWN = 5
"""Maximum number of silent pools and nodes, and of notes, above the map."""
SLICES = 8
"""Length of a GPU's memory axis in slices; an A30 has half as many."""


@dataclass(frozen=True, slots=True)
class Segment:
    """An instance of a partitioned GPU on its memory axis, in eighths."""

    state: DeviceState
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A device. `label` is its description for screen readers."""

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
    """A node with its cells. `at` is the path prefix of each cell; `location` is empty if unknown."""

    id: UUID
    name: str
    location: str
    note: str
    tone: str
    at: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes of this page that belong together; `pool` is its slug if the group is a pool."""

    name: str
    simulated: bool
    pool: str
    nodes: tuple[MapNode, ...]


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A state with its number of devices; `chosen` if the map is filtered by it."""

    state: DeviceState
    look: StateLook
    count: int
    chosen: bool


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of the map; empty fields match all."""

    pool: str = ""
    model: str = ""
    state: str = ""
    q: str = ""
    by: str = ""


BY = (
    ("", gettext_lazy("By pool")),
    ("model", gettext_lazy("By model")),
    ("state", gettext_lazy("By state")),
    ("rack", gettext_lazy("By rack")),
)
"""Groupings of devices, and of nodes by rack."""


@dataclass(frozen=True, slots=True)
class GpuMap:
    """The map page: headline, legend and cells."""

    headline: str
    simulated_headline: str
    legend: tuple[LegendEntry, ...]
    groups: tuple[Group, ...]
    page: Page[Any]
    filters: Filters
    pools: tuple[tuple[str, str], ...]
    models: tuple[str, ...]
    notes: tuple[tuple[str, str], ...]
    silent: tuple[SilentPlace, ...]
    total: int
    ways: tuple[tuple[str, str | Promise], ...] = BY


@dataclass(frozen=True, slots=True)
class SilentPlace:
    """A silent pool, or a silent node of a pool that reports. `age` says since when, `cause` why."""

    name: str
    url: str
    age: str
    cause: str


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


def gpu_map(filters: Filters, page: str | None, now: datetime) -> GpuMap:
    """Return the map under these filters."""
    pools = {pool.pk: pool for pool in Pool.objects.filter(enabled=True)}
    nodes = _nodes(pools, filters)
    rows = _rows(nodes, now)
    models = tuple(sorted({row.model for row in rows if row.kind == DeviceKind.GPU}))
    devices_shown = [row for row in _with_instances(rows) if not filters.model or row.model == filters.model]
    pretended = {key for key, node in nodes.items() if pools[node.pool_id].simulated}
    counted: dict[bool, list[_DeviceRow]] = {False: [], True: []}
    for row in devices_shown:
        counted[row.node in pretended].extend(row.parts or [row])
    state_counts = Counter(row.state for group in counted.values() for row in group)
    shown = [row for row in devices_shown if not filters.state or filters.state in _states(row)]
    by_node: dict[UUID, list[_DeviceRow]] = defaultdict(list)
    for row in shown:
        by_node[row.node].append(row)
    narrowed = filters.state or filters.model or filters.by in ("model", "state")
    listed = [node for node in nodes.values() if by_node[node.pk] or not narrowed]
    listed.sort(key=lambda node: (pools[node.pool_id].simulated, pools[node.pool_id].slug, node.name))
    if filters.by == "rack":
        # Nodes of one rack are on one page.
        listed.sort(key=lambda node: (pools[node.pool_id].simulated, not any(node.location), _rack_of(node)))
    chunk = Paginator(listed, NODES_PER_PAGE).get_page(page)
    return GpuMap(
        headline=_headline(counted[False]),
        simulated_headline=_headline(counted[True]),
        legend=tuple(
            LegendEntry(state, LOOKS[state], state_counts[state], filters.state == state)
            for state in LOOKS
            if state_counts[state]
            or filters.state == state
            or state in (DeviceState.ALLOCATED, DeviceState.FREE)
        ),
        groups=tuple(_groups(chunk.object_list, by_node, pools, filters.by, now)),
        page=chunk,
        filters=filters,
        pools=tuple((pool.slug, pool.name) for pool in sorted(pools.values(), key=lambda pool: pool.slug)),
        models=models,
        notes=tuple(_notes(nodes.values())),
        silent=tuple(_silent(nodes.values(), pools, now)),
        total=sum(state_counts.values()),
    )


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
    pools = {node.pool_id for node in nodes.values()}
    columns: Iterable[Any] = (
        annotate_state(Device.objects.filter(KNOWN, node__pool__in=pools), now)
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
    by: str,
    now: datetime,
) -> Iterable[Group]:
    places = list(LOOKS)
    groups: dict[tuple[bool, int, str, str], list[MapNode]] = defaultdict(list)
    for node in nodes:
        pool = pools[node.pool_id]
        cells: dict[tuple[bool, int, str, str], list[Cell]] = defaultdict(list)
        where = (pool.simulated, 0, pool.slug, pool.name)
        if by == "rack":
            where = (pool.simulated, 0 if any(node.location) else 1, "", _rack_of(node))
        if by not in ("model", "state"):
            cells[where] = []
        for row in sorted(by_node[node.pk], key=lambda device: device.index):
            if by == "model":
                key = (pool.simulated, 0, "", row.model)
            elif by == "state":
                key = (pool.simulated, places.index(row.state), "", str(row.look.word))
            else:
                key = where
            cells[key].append(_cell(row, stale=not contact_of_node(node).heard))
        for key, cell_rows in cells.items():
            groups[key].append(_map_node(node, pool, cell_rows, now))
    for (simulated, _place, slug, name), listed in sorted(groups.items()):
        yield Group(name, simulated, slug, tuple(listed))


def _rack_of(node: Node) -> str:
    return locations.location_text(node) or _("Unknown rack")


def _map_node(node: Node, pool: Pool, cells: Iterable[Cell], now: datetime) -> MapNode:
    contact, note, tone = contact_of_node(node), "", ""
    if contact_of_pool(pool).heard and not contact.heard:
        note, tone = contact.age_text(now), "bad"
    elif node.cordoned:
        note, tone = _("cordoned"), "wait"
    at = f"/gpus/at/{pool.slug}/{quote(node.name, safe='')}/"
    return MapNode(node.pk, node.name, locations.location_text(node), note, tone, at, tuple(cells))


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


def _headline(rows: Sequence[_DeviceRow]) -> str:
    """Return a summary such as “37 of 96 GPUs in use, 12 idle”; MIG instances are counted separately."""
    gpus = Counter(row.state for row in rows if row.kind != DeviceKind.MIG)
    instances = Counter(row.state for row in rows if row.kind == DeviceKind.MIG)
    texts = []
    if total := sum(gpus.values()):
        noun = ngettext("%(busy)s of %(total)s GPU in use", "%(busy)s of %(total)s GPUs in use", total)
        texts.append(_shares(noun, gpus, total))
    if total := sum(instances.values()):
        noun = ngettext(
            "%(busy)s of %(total)s MIG instance in use", "%(busy)s of %(total)s MIG instances in use", total
        )
        texts.append(_shares(noun, instances, total))
    return "; ".join(texts)


def _shares(noun: str, counts: Counter[DeviceState], total: int) -> str:
    """Return the counts of one kind by state, which add up to the total."""
    groups = counting.summarize(counts)
    parts = [noun % {"busy": groups.in_use, "total": total}]
    for text, number in (
        (_("%(number)s idle"), groups.idle),
        (_("%(number)s free"), groups.free),
        (_("%(number)s being checked"), groups.checking),
        (_("%(number)s in maintenance"), groups.maintenance),
        (_("%(number)s out of service"), groups.out_of_service),
    ):
        if number:
            parts.append(text % {"number": number})
    return ", ".join(parts)


def _silent(nodes: Iterable[Node], pools: Mapping[UUID, Pool], now: datetime) -> Iterable[SilentPlace]:
    """Return the silent pools of these nodes with their cause, then single silent nodes, up to `SHOWN`."""
    rows = list(nodes)
    of_pools = {key: contact_of_pool(pools[key]) for key in {node.pool_id for node in rows}}
    places = [
        SilentPlace(
            pools[key].name,
            reverse("fleet:pool", args=[pools[key].slug]),
            contact.age_text(now),
            contact.cause,
        )
        for key, contact in of_pools.items()
        if not contact.heard
    ]
    places += [
        SilentPlace(node.name, reverse("fleet:node", args=[node.pk]), contact.age_text(now), contact.cause)
        for node in rows
        if of_pools[node.pool_id].heard and not (contact := contact_of_node(node)).heard
    ]
    return places[:SHOWN]


def _notes(nodes: Iterable[Node]) -> Iterable[tuple[str, str]]:
    """Return distinct notes about accelerators of nodes, such as a missing driver."""
    names_by_note: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if node.accelerator_note and contact_of_node(node).heard:
            names_by_note[node.accelerator_note].append(node.name)
    for text, names in sorted(names_by_note.items(), key=lambda item: -len(item[1]))[:SHOWN]:
        more = _("%(node)s and %(count)s more") % {"node": names[0], "count": len(names) - 1}
        yield text, names[0] if len(names) == 1 else more
