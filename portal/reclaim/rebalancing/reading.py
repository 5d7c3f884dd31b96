"""What the engine of rebalancing decides on, read with a number of queries that nothing makes grow.

Samples of the last ten minutes, allocations and the last look at activity: no history is read but moves of
the last days, which rests limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, IntegerField, Sum
from django.db.models.functions import Cast

from portal.catalog.models import Flavor, Template
from portal.common.reasons.codes import Rule
from portal.inventory.models import Device, DeviceMinute
from portal.reclaim.engine.activity import SignalKind
from portal.reclaim.engine.contentment import DeviceView, View, best_clocks
from portal.reclaim.engine.rebalancing import Movable, Past, Waiting
from portal.reclaim.models import BestClock
from portal.scheduling import capacity
from portal.scheduling.capacity import PoolNodes
from portal.scheduling.models import Move
from portal.scheduling.moves import placement_of
from portal.scheduling.placement_request import PlacementRequests
from portal.workspaces.homes import places as home_places
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Workspace
from provisioning.types import Placement, ResourceRequest

WINDOW_S = 600
LOOKED_AT = timedelta(minutes=5)
"""How old the last look at activity may be."""
BEST_KEPT = timedelta(days=7)
WAITING_LOOKED_AT = 200
COLUMNS = (
    "pk", "generation", "preemption__cause", "reclaim_activity__active", "reclaim_activity__observed_at",
    "reclaim_activity__generation",
)  # fmt: skip
ASKED_FOR = (
    "pk", "generation", "owner_id", "team_id", "template_id", "flavor_id", "resources", "preemptible",
    "loses_work", "placed_at",
)  # fmt: skip
"""What is read only where somebody may have to move: keys and JSON of thousands take as long as all else."""


@dataclass(frozen=True, slots=True)
class Runs:
    """A running workspace, and what it holds: pool, placement and amounts on each of its nodes."""

    pk: UUID
    generation: int
    noticed: bool
    at_work: bool | None
    held: Sequence[tuple[UUID, Placement, ResourceRequest]]


@dataclass(frozen=True, slots=True)
class Seen:
    """All that runs, with the view of its place; and what devices are like."""

    pools: Mapping[UUID, PoolNodes]
    running: Sequence[Runs]
    views: Mapping[UUID, View]
    devices: Mapping[str, DeviceView]


def seen(now: datetime) -> Seen:
    """Read it all."""
    pools = capacity.load()
    running = _running(now)
    devices = _devices(now)
    bests = _bests(list(devices.values()), now)
    devices = {uuid: replace(each, best_clock_mhz=bests.get(each.model)) for uuid, each in devices.items()}
    return Seen(pools, running, _views(pools, running, devices), devices)


def _running(now: datetime) -> list[Runs]:
    rows: list[Any] = list(Workspace.objects.filter(state=State.RUNNING).values_list(*COLUMNS))
    held = capacity.held_by([row[0] for row in rows])
    found = []
    for row in rows:
        pk, generation, cause, active, observed_at, looked_at = row
        fresh = observed_at is not None and now - observed_at <= LOOKED_AT and looked_at == generation
        found.append(
            Runs(
                pk=pk,
                generation=generation,
                noticed=cause is not None,
                at_work=_at_work(active) if fresh else None,
                held=held.get(str(pk), ()),
            )
        )
    return found


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


def _views(
    pools: Mapping[UUID, PoolNodes], running: Sequence[Runs], devices: Mapping[str, DeviceView]
) -> dict[UUID, View]:
    nodes = {(key, node.name): node for key, pool in pools.items() for node in pool.nodes}
    sharers: dict[str, list[bool | None]] = {}
    for each in running:
        for _pool, placement, _request in each.held:
            for grant in placement.nodes[0].devices:
                sharers.setdefault(grant.uuid, []).append(each.at_work)
    found = {}
    for each in running:
        if len(each.held) != 1:
            # What runs on several nodes is as it is.
            continue
        pool, placement, _request = each.held[0]
        part = placement.nodes[0]
        node = nodes.get((pool, part.node))
        if node is None:
            continue
        found[each.pk] = View(
            tuple(
                replace(
                    devices.get(grant.uuid, DeviceView()),
                    share_milli=grant.milli,
                    at_work=tuple(sharers[grant.uuid]),
                )
                for grant in part.devices
            ),
            part.node,
            node.cpu_milli,
            node.cpu_milli - node.free_cpu_milli,
            node.memory_mib,
            node.memory_mib - node.free_memory_mib,
        )
    return found


# --- what may move, and what waits -----------------------------------------------------------------------


def movables(found: Seen, scores: Mapping[UUID, Any]) -> list[Movable]:
    """Those that could be placed again in their own pool: on one node, by a request that names its model.

    A request for GPUs of any model is left where it is: elsewhere it would be charged otherwise.
    """
    requests = PlacementRequests(found.pools)
    single = {(each.pk, each.generation): each for each in found.running if each.pk in found.views}
    # Who has stopped or begun anew since it was seen is left out.
    rows = [
        row
        for row in Workspace.objects.filter(state=State.RUNNING).values_list(*ASKED_FOR)
        if row[:2] in single
    ]
    templates = Template.objects.in_bulk({row[4] for row in rows})
    flavors = Flavor.objects.select_related("pool").in_bulk({row[5] for row in rows})
    homes = home_places.of_users([(row[2], row[3]) for row in rows])
    movable = []
    for pk, generation, owner, team, template, flavor, resources, *flags, placed_at in rows:
        preemptible, loses_work = flags
        each = single[pk, generation]
        pool_pk, placement, held = each.held[0]
        try:
            asked = requests.of(
                templates[template], flavors[flavor], resources, homes=homes.get((owner, team), {})
            )
        except ValueError:
            continue
        pool = next((pool for pool in asked.pools if pool.pool.pk == pool_pk), None)
        if pool is None or len(asked.variants) != 1:
            continue
        verdict = scores[each.pk]
        movable.append(
            Movable(
                id=str(each.pk),
                pool=str(pool_pk),
                placement=placement,
                held=held,
                request=pool.adapted(asked.variants[0].request, asked.software),
                milli=sum(grant.milli for grant in placement.nodes[0].devices),
                score=verdict.score,
                reasons=verdict.reasons,
                preemptible=preemptible,
                loses_work=loses_work,
                started_s=int(placed_at.timestamp()) if placed_at else 0,
                free=not each.noticed,
            )
        )
    return movable


def waiting(pools: Mapping[UUID, PoolNodes]) -> list[Waiting]:
    """Requests for one node that only their place keeps waiting, the first of the queue first."""
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
    first = list(rows[:WAITING_LOOKED_AT])
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
