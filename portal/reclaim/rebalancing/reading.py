"""What the engine of rebalancing decides on, read with a number of queries that nothing makes grow.

Samples of the last ten minutes, allocations and the last look at activity: no history is read but moves of
the last days, which rests limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, IntegerField, Sum, TextField
from django.db.models.functions import Cast

from portal.catalog.models import Flavor, Template
from portal.common.reasons.codes import Rule
from portal.inventory.models import AllocatedDevice, Allocation, Device, DeviceMinute, Node
from portal.reclaim.engine.activity import SignalKind
from portal.reclaim.engine.contentment import (
    Contentment,
    DeviceView,
    View,
    best_clocks,
    is_blameless,
    is_overcommitted,
)
from portal.reclaim.engine.rebalancing import Movable, Past, Waiting
from portal.reclaim.models import BestClock
from portal.scheduling import snapshot_cache
from portal.scheduling.capacity import PoolNodes
from portal.scheduling.models import Move
from portal.scheduling.moves import placement_of
from portal.scheduling.placement_request import PlacementRequests
from portal.scheduling.snapshot import ClusterSnapshot
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes.places import Homes
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Workspace
from provisioning.types import WHOLE_DEVICE_MILLI, Placement, ResourceRequest

WINDOW_S = 600
LOOKED_AT = timedelta(minutes=5)
"""How old the last look at activity may be."""
BEST_KEPT = timedelta(days=7)
WAITING_LOOKED_AT = 200
COLUMNS = (
    "pk", "generation", "preemption__cause", "reclaim_activity__active", "reclaim_activity__observed_at",
    "reclaim_activity__generation", "owner_id_text", "team_id_text", "template_id_text", "flavor_id_text",
    "resources_text", "preemptible", "loses_work", "placed_at",
)  # fmt: skip
AS_TEXT = ("owner_id", "team_id", "template_id", "flavor_id", "resources")
"""Read as text: most are alike, and each would be made into a value by itself."""
UNKNOWN = DeviceView()
AT_EASE = Contentment()


@dataclass(frozen=True, slots=True)
class Runs:
    """A running workspace, what it has asked for, and what it holds on each of its nodes: pool, placement and
    amounts. `home` is of whom in which team its home is; `resources` is text."""

    pk: UUID
    generation: int
    noticed: bool
    at_work: bool | None
    held: Sequence[tuple[UUID, Placement, ResourceRequest]]
    home: tuple[UUID, UUID]
    template: UUID
    flavor: UUID
    resources: str
    preemptible: bool
    loses_work: bool
    placed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Given:
    """What a node has, and what of it is given out."""

    cpu_milli: int
    cpu_given_milli: int
    memory_mib: int
    memory_given_mib: int


@dataclass(frozen=True, slots=True)
class Places:
    """What devices did, by UUID, and nodes, by pool and name.

    `suspects` are the devices and nodes against which something may speak: nothing does against any other,
    so that those who run there are content.
    """

    devices: Mapping[str, DeviceView]
    nodes: Mapping[tuple[UUID, str], Given]
    suspects: frozenset[str | tuple[UUID, str]]


def places(now: datetime) -> Places:
    """Read what there is, without anybody who runs there."""
    devices = _devices(now)
    bests = _bests(list(devices.values()), now)
    devices = {uuid: replace(each, best_clock_mhz=bests.get(each.model)) for uuid, each in devices.items()}
    parts = AllocatedDevice.objects.filter(active=True, milli__lt=WHOLE_DEVICE_MILLI)
    shared = set(parts.values_list("device__uuid", flat=True))
    blamed = {uuid for uuid, each in devices.items() if not is_blameless(each, shared=uuid in shared)}
    nodes = _nodes()
    over = {
        key
        for key, each in nodes.items()
        if is_overcommitted(each.cpu_milli, each.cpu_given_milli)
        or is_overcommitted(each.memory_mib, each.memory_given_mib)
    }
    return Places(devices, nodes, frozenset(blamed | over))


def _nodes() -> dict[tuple[UUID, str], Given]:
    """The nodes of all pools; two queries."""
    given = {
        node: (cpu, memory)
        for node, cpu, memory in Allocation.objects.filter(released_at=None)
        .order_by()
        .values_list("node_id")
        .annotate(Sum("cpu_milli"), Sum("memory_mib"))
    }
    rows = Node.objects.filter(pool__deleted_at=None).order_by()
    return {
        (pool, name): Given(cpu, given.get(pk, (0, 0))[0], memory, given.get(pk, (0, 0))[1])
        for pk, pool, name, cpu, memory in rows.values_list(
            "pk", "pool_id", "name", "cpu_milli", "memory_mib"
        )
    }


@contextmanager
def seen(now: datetime) -> Iterator[tuple[ClusterSnapshot, list[Runs]]]:
    """The pools as the queue knows them, and all that runs in them with what it holds."""
    running = Workspace.objects.filter(state=State.RUNNING).annotate(
        **{f"{name}_text": Cast(name, TextField()) for name in AS_TEXT}
    )
    rows: list[Any] = list(running.values_list(*COLUMNS))
    # Read in this order: what begins or ends meanwhile is held in the pools, or by nobody who is moved.
    with snapshot_cache.previews.use(now) as snapshot:
        held = snapshot.placer.held()
        keys = {text: UUID(text) for text in {each for row in rows for each in row[6:10]}}
        yield snapshot, [_runs(row, held, keys, now) for row in rows]


def _runs(row: Sequence[Any], held: Mapping[str, Any], keys: Mapping[str, UUID], now: datetime) -> Runs:
    pk, generation, cause, active, observed_at, looked_at, owner, team, template, flavor, *asked = row
    fresh = observed_at is not None and now - observed_at <= LOOKED_AT and looked_at == generation
    return Runs(
        pk,
        generation,
        cause is not None,
        _at_work(active) if fresh else None,
        held.get(str(pk), ()),
        (keys[owner], keys[team]),
        keys[template],
        keys[flavor],
        *asked,
    )


def _at_work(active: str | None) -> bool | None:
    """Whether it was seen at work by what is its own: the use of a shared GPU is everybody's.

    What comes and goes by the gateway needs no GPU.
    """
    if active is None:
        return None
    return any(kind not in ("", SignalKind.GPU, SignalKind.TRAFFIC) for kind in active.split(","))


def _devices(now: datetime) -> dict[str, DeviceView]:
    """What devices did in the last ten minutes, by UUID; one query."""
    from_s = int(now.timestamp()) - WINDOW_S - 60
    minutes = DeviceMinute.objects.filter(series__newest_s__gte=from_s, start_s__gte=from_s)
    rows = (
        minutes.order_by()
        .values_list("series__device__uuid", "series__device__model")
        .annotate(
            gpu_s=Sum("gpu_s"),
            pct_s=Sum("gpu_pct_s"),
            throttle=Sum("throttle_s"),
            thermal=Sum("thermal_s"),
            slowed=Sum("slowed_s"),
            # Both are small numbers of two bytes, and their product is none.
            clock_s=Sum(Cast("sm_clock_mhz", IntegerField()) * F("measured_s")),
            measured=Sum("measured_s"),
        )
    )
    found = {}
    for uuid, model, gpu_s, pct_s, throttle, thermal, slowed, clock_s, measured in rows:
        found[uuid] = DeviceView(
            model=model,
            gpu_s=gpu_s,
            gpu_pct=pct_s // gpu_s if gpu_s and pct_s is not None else None,
            watched_s=throttle,
            # A second may count as both; so the larger of the two, and not their sum.
            held_down_s=max(thermal or 0, slowed or 0) if throttle else None,
            clock_mhz=clock_s // measured if clock_s is not None and measured else None,
        )
    return found


def _bests(devices: list[DeviceView], now: datetime) -> dict[str, int]:
    """The best clock of each model within a week, with those of now taken in; a row for each model."""
    kept = {row.model: row for row in BestClock.objects.all()}
    fresh = best_clocks(devices)
    for model, clock in fresh.items():
        row = kept.get(model)
        if row is None or clock >= row.clock_mhz or now - row.seen_at > BEST_KEPT:
            kept[model] = BestClock(model=model, clock_mhz=clock, seen_at=now)
            BestClock.objects.update_or_create(model=model, defaults={"clock_mhz": clock, "seen_at": now})
    return {model: row.clock_mhz for model, row in kept.items() if now - row.seen_at <= BEST_KEPT}


def views(found: Places, running: Sequence[Runs]) -> dict[UUID, View]:
    """The place of each against which something may speak. Where none is suspect nobody has to be read."""
    sharers: dict[str, list[bool | None]] = {}
    suspected = []
    for each in running:
        # What runs on several nodes is as it is, but its devices may have others on them.
        single = len(each.held) == 1
        for pool, placement, _request in each.held:
            part = placement.nodes[0]
            suspect = (pool, part.node) in found.suspects
            for grant in part.devices:
                if grant.uuid in found.suspects:
                    suspect = True
                    sharers.setdefault(grant.uuid, []).append(each.at_work)
            if single and suspect and (pool, part.node) in found.nodes:
                suspected.append((each.pk, found.nodes[pool, part.node], part))
    return {
        pk: View(
            tuple(
                replace(
                    found.devices.get(grant.uuid, UNKNOWN),
                    share_milli=grant.milli,
                    at_work=tuple(sharers.get(grant.uuid, ())),
                )
                for grant in part.devices
            ),
            part.node,
            node.cpu_milli,
            node.cpu_given_milli,
            node.memory_mib,
            node.memory_given_mib,
        )
        for pk, node, part in suspected
    }


# --- what may move, and what waits -----------------------------------------------------------------------


def movables(
    pools: Mapping[UUID, PoolNodes], running: Sequence[Runs], scores: Mapping[UUID, Contentment]
) -> list[Movable]:
    """Those that could be placed again in their own pool: on one node, by a request that names its model.

    A request for GPUs of any model is left where it is: elsewhere it would be charged otherwise. Who has no
    score is content.
    """
    known = {(key, node.name) for key, pool in pools.items() for node in pool.nodes}
    single = [
        each
        for each in running
        if len(each.held) == 1 and (each.held[0][0], each.held[0][1].nodes[0].node) in known
    ]
    templates = Template.objects.in_bulk({each.template for each in single})
    flavors = Flavor.objects.select_related("pool").in_bulk({each.flavor for each in single})
    homes = home_places.of_users([each.home for each in single])
    requests = PlacementRequests(pools)
    # Thousands ask for the same.
    again: dict[object, ResourceRequest | None] = {}
    movable = []
    for each in single:
        pool, placement, held = each.held[0]
        at_home = homes.get(each.home, home_places.NOWHERE)
        key = (pool, each.template, each.flavor, each.resources, frozenset(at_home.items()))
        if key not in again:
            again[key] = _in_its_pool(
                requests,
                pool,
                templates[each.template],
                flavors[each.flavor],
                json.loads(each.resources),
                at_home,
            )
        request = again[key]
        if request is None:
            continue
        verdict = scores.get(each.pk, AT_EASE)
        movable.append(
            Movable(
                id=str(each.pk),
                pool=str(pool),
                placement=placement,
                held=held,
                request=request,
                milli=sum(grant.milli for grant in placement.nodes[0].devices),
                score=verdict.score,
                reasons=verdict.reasons,
                preemptible=each.preemptible,
                loses_work=each.loses_work,
                started_s=int(each.placed_at.timestamp()) if each.placed_at else 0,
                free=not each.noticed,
            )
        )
    return movable


def _in_its_pool(
    requests: PlacementRequests, pool: UUID, template: Template, flavor: Flavor, data: Any, homes: Homes
) -> ResourceRequest | None:
    """What its pool would be asked for again; None where it would not be, or in more ways than one."""
    try:
        asked = requests.of(template, flavor, data, homes=homes)
    except ValueError:
        return None
    own = next((each for each in asked.pools if each.pool.pk == pool), None)
    if own is None or len(asked.variants) != 1:
        return None
    return own.adapted(asked.variants[0].request, asked.software)


def first_waiting() -> list[Workspace]:
    """Requests that only their place keeps waiting, the first of the queue first."""
    rows = (
        Workspace.objects.filter(
            state=State.PENDING,
            desired_state=DesiredState.RUNNING,
            queue_entry__blocker__rule=Rule.PLACEMENT.value,
            queue_entry__nominated=False,
        )
        .select_related("template", "flavor__pool", "queue_entry")
        .order_by(F("queue_entry__position").asc(nulls_last=True), "requested_at", "pk")
    )
    return list(rows[:WAITING_LOOKED_AT])


def waiting(pools: Mapping[UUID, PoolNodes], first: Sequence[Workspace]) -> list[Waiting]:
    """Of these, the requests for one node."""
    homes = home_places.of_users([(row.owner_id, row.team_id) for row in first])
    requests = PlacementRequests(pools)
    found = []
    for row in first:
        try:
            asked = requests.of(
                row.template, row.flavor, row.resources, homes=homes.get((row.owner_id, row.team_id), {})
            )
        except ValueError:
            continue
        if len(asked.variants) != 1 or asked.request.nodes != 1:
            continue
        wanted = asked.request.accelerators
        eta = row.queue_entry.eta_at
        found.append(
            Waiting(
                id=str(row.pk),
                requests=tuple(
                    (str(pool.pool.pk), pool.adapted(asked.variants[0].request, asked.software))
                    for pool in asked.pools
                ),
                milli=wanted.count * wanted.share_milli,
                duration_s=row.expected_s,
                since_s=int(row.requested_at.timestamp()),
                eta_s=int(eta.timestamp()) if eta else None,
            )
        )
    return found


def past(since: datetime) -> list[Past]:
    """Who was asked to move since then, and from where; also who stayed: nobody is asked again so soon."""
    rows = Move.objects.filter(asked_at__gte=since).values_list("workspace_id", "asked_at", "source")
    found = []
    for workspace, asked_at, source in rows:
        part = placement_of(source).nodes[0]
        devices = frozenset(grant.uuid for grant in part.devices)
        found.append(Past(str(workspace), int(asked_at.timestamp()), part.node, devices))
    return found


def device_names(uuids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Model and index of devices, for people."""
    rows = Device.objects.filter(uuid__in=uuids).values_list("uuid", "model", "index")
    return {uuid: (model, index) for uuid, model, index in rows}
