"""Reads the input of rebalancing with a constant number of queries.

Reads samples of the last 10 minutes, allocations, the last activity, and the moves of the last few days.
Cool-down times keep their number small.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from django.db.models import F, IntegerField, Sum, TextField
from django.db.models.functions import Cast

from portal.common.reasons.codes import Rule
from portal.fleet.inventory.models import AllocatedDevice, Device, DeviceMinute, DeviceSeries
from portal.reclaim.engine.activity import SignalKind
from portal.reclaim.engine.pace import Pace
from portal.reclaim.engine.placement_health import (
    DeviceView,
    Headroom,
    PlacementView,
    Work,
    best_clocks,
    has_shortage,
    is_good_for_any,
    is_overcommitted,
    is_throttled,
)
from portal.reclaim.engine.rebalancing import BlockedRequest, PastMove
from portal.reclaim.models import BestClock
from portal.reclaim.rebalancing.nodes import NodeView, nodes_of_all
from portal.scheduling import snapshot_cache
from portal.scheduling.models import Move
from portal.scheduling.moves import parse_placement
from portal.scheduling.placement_request import PlacementRequests
from portal.scheduling.pool_nodes import PoolNodes
from portal.scheduling.snapshot import ClusterSnapshot
from portal.workspaces.homes import places as home_places
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Workspace
from provisioning.types import WHOLE_DEVICE_MILLI, Placement, ResourceRequest

WINDOW_S = 600
MAX_ACTIVITY_AGE = timedelta(minutes=5)
"""Maximum age of the last observed activity."""
MAX_CLOCK_AGE = timedelta(days=7)
MAX_BLOCKED_REQUESTS = 200
MAX_FILTERED_BY_KEY = 1000
COLUMNS = (
    "pk", "generation", "preemption__cause", "reclaim_activity__active", "reclaim_activity__observed_at",
    "reclaim_activity__generation", "owner_id_text", "team_id_text", "template_id_text", "flavor_id_text",
    "resources_text", "preemptible", "loses_work", "placed_at", "reclaim_activity__signals",
)  # fmt: skip
AS_TEXT = ("owner_id", "team_id", "template_id", "flavor_id", "resources")
"""Read as text, because most values are equal, and parsing each one is expensive."""
NodeAllocation = tuple[UUID, Placement, ResourceRequest]
"""A workspace's allocation on a node: pool, placement and request."""
UNKNOWN_DEVICE = DeviceView()


class _Signal(msgspec.Struct):
    kind: str = ""
    value: float | None = None


class _Resources(msgspec.Struct):
    cpu_milli: int = 0


_signals = msgspec.json.Decoder(list[_Signal]).decode
_resources = msgspec.json.Decoder(_Resources).decode


@dataclass(frozen=True, slots=True)
class RunningWorkspace:
    """A running workspace, its request, and its allocations.

    `home` is the (user, team) of its home. `resources` is JSON text.
    """

    pk: UUID
    generation: int
    under_notice: bool
    is_active: bool | None
    allocations: Sequence[NodeAllocation]
    home: tuple[UUID, UUID]
    template: UUID
    flavor: UUID
    resources: str
    preemptible: bool
    loses_work: bool
    placed_at: datetime | None
    signals: str | None = None
    """As `WorkspaceActivity.signals`, but only if fresh; see `is_active`."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measurements of devices by UUID, and of nodes by (pool, name).

    `suspects` are devices and nodes that may have problems. Workspaces elsewhere need no check.
    """

    devices: Mapping[str, DeviceView]
    nodes: Mapping[tuple[UUID, str], NodeView]
    suspects: frozenset[str | tuple[UUID, str]]


def read_measurements(now: datetime) -> Measurements:
    """Read the measurements of all devices and nodes, without workspaces."""
    devices = _devices(now)
    bests = _bests(list(devices.values()), now)
    # The best clock matters only for throttled devices.
    devices |= {
        uuid: replace(view, best_clock_mhz=bests.get(view.model))
        for uuid, view in devices.items()
        if is_throttled(view)
    }
    parts = AllocatedDevice.objects.filter(active=True, milli__lt=WHOLE_DEVICE_MILLI)
    shared = set(parts.values_list("device__uuid", flat=True))
    suspect_devices = {
        uuid for uuid, view in devices.items() if not is_good_for_any(view, shared=uuid in shared)
    }
    nodes = nodes_of_all(now)
    overloaded_nodes = {
        key
        for key, view in nodes.items()
        if is_overcommitted(view.cpu_milli, view.cpu_granted_milli)
        or is_overcommitted(view.memory_mib, view.memory_granted_mib)
        or has_shortage(view.headroom)
    }
    return Measurements(devices, nodes, frozenset(suspect_devices | overloaded_nodes))


@contextmanager
def read_snapshot(now: datetime) -> Iterator[tuple[ClusterSnapshot, RunningWorkspaces]]:
    """Yield the queue's snapshot and its running workspaces."""
    with snapshot_cache.preview_cache.use(now) as snapshot:
        yield snapshot, RunningWorkspaces(snapshot.placer.running_allocations(), now)


class RunningWorkspaces:
    """Running workspaces and their allocations in the queue's snapshot. Rows are read on demand."""

    def __init__(self, allocations: Mapping[str, Sequence[NodeAllocation]], now: datetime) -> None:
        self._allocations = allocations
        self._now = now
        self._read_names: set[str] = set()
        self._rows: dict[str, RunningWorkspace] = {}
        self.by_node: dict[tuple[UUID, str], list[str]] = {}
        """Ids of the workspaces on each (pool, node)."""
        for name, places in allocations.items():
            for pool, placement, _request in places:
                self.by_node.setdefault((pool, placement.nodes[0].node), []).append(name)

    def get(self, names: Collection[str]) -> list[RunningWorkspace]:
        """Return those of these workspaces that are running, with a constant number of queries."""
        fresh = [name for name in names if name not in self._read_names]
        if fresh:
            self._read_names.update(fresh)
            self._read(fresh)
        return [self._rows[name] for name in names if name in self._rows]

    def devices_of(self, names: Collection[str]) -> frozenset[str | tuple[UUID, str]]:
        """Return the devices that these workspaces use, and the nodes of workspaces without devices."""
        devices: set[str | tuple[UUID, str]] = set()
        for name in names:
            for pool, placement, _request in self._allocations.get(name, ()):
                part = placement.nodes[0]
                devices.update(grant.uuid for grant in part.devices)
                if not part.devices:
                    devices.add((pool, part.node))
        return frozenset(devices)

    def using(self, suspects: Collection[str | tuple[UUID, str]]) -> list[RunningWorkspace]:
        """Return the workspaces that use these devices or run on these nodes."""
        return self.get(
            [
                name
                for name, places in self._allocations.items()
                if any(
                    (pool, placement.nodes[0].node) in suspects
                    or any(grant.uuid in suspects for grant in placement.nodes[0].devices)
                    for pool, placement, _request in places
                )
            ]
        )

    def generations(self) -> dict[UUID, int]:
        """Return the generations of all workspaces read so far."""
        return {row.pk: row.generation for row in self._rows.values()}

    def _read(self, names: Collection[str]) -> None:
        running = Workspace.objects.filter(state=State.RUNNING)
        if len(names) <= MAX_FILTERED_BY_KEY:
            # Filter by key only for few workspaces: a list of thousands is slower than reading all.
            running = running.filter(pk__in=names)
        else:
            self._read_names.update(self._allocations)
        rows: Any = running.annotate(**{f"{name}_text": Cast(name, TextField()) for name in AS_TEXT})
        rows = list(rows.values_list(*COLUMNS))
        keys = {text: UUID(text) for text in {key for row in rows for key in row[6:10]}}
        for row in rows:
            workspace = _running_workspace(row, self._allocations, keys, self._now)
            # The snapshot does not include later placements.
            if workspace.placed_at is None or workspace.placed_at <= self._now:
                self._rows[str(workspace.pk)] = workspace


def _running_workspace(
    row: Sequence[Any], allocations: Mapping[str, Any], keys: Mapping[str, UUID], now: datetime
) -> RunningWorkspace:
    pk, generation, cause, active, observed_at, looked_at, *request_fields = row
    owner, team, template, flavor, resources, preemptible, loses_work, placed_at, signals = request_fields
    fresh = observed_at is not None and now - observed_at <= MAX_ACTIVITY_AGE and looked_at == generation
    return RunningWorkspace(
        pk,
        generation,
        cause is not None,
        _is_working(active) if fresh else None,
        allocations.get(str(pk), ()),
        (keys[owner], keys[team]),
        keys[template],
        keys[flavor],
        resources,
        preemptible,
        loses_work,
        placed_at,
        signals if fresh else None,
    )


def _is_working(active: str | None) -> bool | None:
    """Return whether signals other than the usage of a shared GPU show that the workspace is working.

    Ignores traffic through the gateway, which needs no GPU.
    """
    if active is None:
        return None
    return any(kind not in ("", SignalKind.GPU, SignalKind.TRAFFIC) for kind in active.split(","))


def _devices(now: datetime) -> dict[str, DeviceView]:
    """Return the measurements of devices in the last 10 minutes by UUID; two queries."""
    from_s = int(now.timestamp()) - WINDOW_S - 60
    fresh = DeviceSeries.objects.filter(newest_s__gte=from_s)
    named = {
        pk: (uuid, model) for pk, uuid, model in fresh.values_list("pk", "device__uuid", "device__model")
    }
    minutes = DeviceMinute.objects.filter(series__newest_s__gte=from_s, start_s__gte=from_s)
    # Group by the primary key, which avoids sorting.
    rows = (
        minutes.order_by()
        .values_list("series_id")
        .annotate(
            gpu_s=Sum("gpu_s"),
            pct_s=Sum("gpu_pct_s"),
            throttle=Sum("throttle_s"),
            thermal=Sum("thermal_s"),
            slowed=Sum("slowed_s"),
            # Convert the values, because the product of these 2-byte integers overflows.
            clock_s=Sum(Cast("sm_clock_mhz", IntegerField()) * F("measured_s")),
            measured=Sum("measured_s"),
        )
    )
    views = {}
    for series, gpu_s, pct_s, throttle, thermal, slowed, clock_s, measured in rows:
        if series not in named:
            # The device's first minute was written between the two queries.
            continue
        uuid, model = named[series]
        views[uuid] = DeviceView(
            model=model,
            gpu_s=gpu_s,
            gpu_pct=pct_s // gpu_s if gpu_s and pct_s is not None else None,
            watched_s=throttle,
            # A second may have both kinds of throttling, so take the maximum instead of the sum.
            throttled_s=max(thermal or 0, slowed or 0) if throttle else None,
            clock_mhz=clock_s // measured if clock_s is not None and measured else None,
        )
    return views


def _bests(devices: list[DeviceView], now: datetime) -> dict[str, int]:
    """Return the best clock of each model within a week, and store new ones; one row per model."""
    rows = {row.model: row for row in BestClock.objects.all()}
    fresh = best_clocks(devices)
    for model, clock in fresh.items():
        row = rows.get(model)
        if row is None or clock >= row.clock_mhz or now - row.seen_at > MAX_CLOCK_AGE:
            rows[model] = BestClock(model=model, clock_mhz=clock, seen_at=now)
            BestClock.objects.update_or_create(model=model, defaults={"clock_mhz": clock, "seen_at": now})
    return {model: row.clock_mhz for model, row in rows.items() if now - row.seen_at <= MAX_CLOCK_AGE}


def _work(workspace: RunningWorkspace, headroom: Headroom, slow: tuple[str, Pace] | None) -> Work:
    """Return the part of a workspace's work that matters for its score."""
    used = granted_milli = None
    if has_shortage(headroom):
        try:
            cores = next(
                (
                    signal.value
                    for signal in _signals(workspace.signals or "[]")
                    if signal.kind == SignalKind.CPU
                ),
                None,
            )
            used = None if cores is None else int(1000 * cores)
            granted_milli = _resources(workspace.resources).cpu_milli
        except msgspec.MsgspecError:
            pass
    if slow is None:
        return Work(used, granted_milli)
    name, pace = slow
    best = pace.elsewhere.rate if pace.elsewhere is not None else 0.0
    return Work(used, granted_milli, pace.percent, name, pace.rate, best)


def suspect_views(
    measurements: Measurements,
    running: Sequence[RunningWorkspace],
    slow: Mapping[UUID, tuple[str, Pace]] | None = None,
) -> dict[UUID, PlacementView]:
    """Return the views of placements that may have problems, by workspace.

    `slow` are workspaces whose work is slower than elsewhere, from `pacing.slow_workspaces`.
    """
    slow = slow or {}
    # Also read the users of devices that are shared with slow work.
    watched = measurements.suspects | {
        grant.uuid
        for workspace in running
        if workspace.pk in slow
        for _pool, placement, _request in workspace.allocations
        for grant in placement.nodes[0].devices
    }
    sharers: dict[str, list[bool | None]] = {}
    suspected = []
    for workspace in running:
        # Multi-node workspaces are not scored, but their devices may be shared.
        single = len(workspace.allocations) == 1
        for pool, placement, _request in workspace.allocations:
            part = placement.nodes[0]
            suspect = workspace.pk in slow or (pool, part.node) in measurements.suspects
            for grant in part.devices:
                if grant.uuid in watched:
                    suspect = True
                    sharers.setdefault(grant.uuid, []).append(workspace.is_active)
            if single and suspect and (pool, part.node) in measurements.nodes:
                suspected.append((workspace, measurements.nodes[pool, part.node], part))
    return {
        workspace.pk: PlacementView(
            tuple(
                replace(
                    measurements.devices.get(grant.uuid, UNKNOWN_DEVICE),
                    share_milli=grant.milli,
                    at_work=tuple(sharers.get(grant.uuid, ())),
                )
                for grant in part.devices
            ),
            part.node,
            node.cpu_milli,
            node.cpu_granted_milli,
            node.memory_mib,
            node.memory_granted_mib,
            node.headroom,
            _work(workspace, node.headroom, slow.get(workspace.pk)),
        )
        for workspace, node, part in suspected
    }


# --- movable workspaces and pending requests --------------------------------------------------------------


def blocked_requests() -> list[Workspace]:
    """Return requests that are blocked by placement only, in queue order."""
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
    return list(rows[:MAX_BLOCKED_REQUESTS])


def single_node_requests(pools: Mapping[UUID, PoolNodes], first: Sequence[Workspace]) -> list[BlockedRequest]:
    """Return the blocked requests that need a single node."""
    homes = home_places.home_places_by_user([(row.owner_id, row.team_id) for row in first])
    requests = PlacementRequests(pools)
    blocked = []
    for row in first:
        try:
            placement_request = requests.build(
                row.template, row.flavor, row.resources, homes=homes.get((row.owner_id, row.team_id), {})
            )
        except ValueError:
            continue
        if len(placement_request.variants) != 1 or placement_request.request.nodes != 1:
            continue
        accelerators = placement_request.request.accelerators
        eta = row.queue_entry.eta_at
        blocked.append(
            BlockedRequest(
                id=str(row.pk),
                requests=tuple(
                    (
                        str(pool.pool.pk),
                        pool.with_requirements(
                            placement_request.variants[0].request, placement_request.software
                        ),
                    )
                    for pool in placement_request.pools
                ),
                milli=accelerators.count * accelerators.share_milli,
                duration_s=row.expected_s,
                since_s=int(row.requested_at.timestamp()),
                eta_s=int(eta.timestamp()) if eta else None,
            )
        )
    return blocked


def past_moves(since: datetime) -> list[PastMove]:
    """Return all moves since then with their sources, including those that did not happen."""
    rows = Move.objects.filter(asked_at__gte=since).values_list("workspace_id", "asked_at", "source")
    moves = []
    for workspace, asked_at, source in rows:
        part = parse_placement(source).nodes[0]
        devices = frozenset(grant.uuid for grant in part.devices)
        moves.append(PastMove(str(workspace), int(asked_at.timestamp()), part.node, devices))
    return moves


def device_names(uuids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return the model and index of devices, for display."""
    rows = Device.objects.filter(uuid__in=uuids).values_list("uuid", "model", "index")
    return {uuid: (model, index) for uuid, model, index in rows}
