"""Queries for device measurements. Gaps are not filled: unknown is neither idle nor busy.

Allocations show who used a device. If a device was allocated for a part of an hour, its use in that hour
counts in proportion.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import redis
from django.db.models import Q

from portal.common.events import live
from portal.fleet.inventory.models import AllocatedDevice, Device, DeviceHour, DeviceMinute, DeviceSeries
from portal.fleet.inventory.samples import COLUMNS
from portal.people.accounts.models import Team
from provisioning.gpu.rollup import HOUR_S, MINUTE_S
from provisioning.gpu.samples import Sample
from provisioning.live_samples import live_key, parse_live

log = logging.getLogger(__name__)

HOUR = "hour"
MONTH = "month"
SPANS = {HOUR: (MINUTE_S, 60), MONTH: (HOUR_S, 30 * 24)}
"""Seconds per point and number of points, by span."""
FRESH_S = 3 * MINUTE_S
"""Maximum age in seconds of a minute that counts as current."""
FEW_DEVICES = 256
"""Maximum number of devices whose minutes are read by device. For more devices, all minutes are read."""


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Measurements of a device from `start_s` (UTC); None means not measured.

    Unqualified values are means.
    """

    start_s: int
    measured_s: int
    gpu_pct: float | None = None
    gpu_max_pct: int | None = None
    gpu_p95_pct: int | None = None
    gpu_s: int | None = None
    gpu_used_s: int | None = None
    memory_mib: int | None = None
    memory_max_mib: int | None = None
    power_mw: int | None = None
    power_max_mw: int | None = None
    temperature_c: int | None = None
    temperature_max_c: int | None = None
    sm_clock_mhz: int | None = None
    pcie_tx_kib_s: int | None = None
    pcie_rx_kib_s: int | None = None
    throttle_s: int | None = None
    thermal_s: int | None = None
    power_s: int | None = None
    slowed_s: int | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """`points` from `start_s` on, one per `step_s` seconds; None is a gap.

    `live` is the newest sample, a few seconds old, if there is one.
    """

    span: str
    start_s: int
    step_s: int
    points: tuple[SeriesPoint | None, ...]
    simulated: bool = False
    live: Sample | None = None

    @property
    def end_s(self) -> int:
        return self.start_s + self.step_s * len(self.points)

    @property
    def measured(self) -> tuple[SeriesPoint, ...]:
        return tuple(point for point in self.points if point is not None)


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """Allocation of `milli` of 1000 of a device to a workspace. `until` is None while it lasts."""

    workspace_id: UUID
    team_id: UUID
    milli: int
    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Device-seconds of a team: held, measured, and with GPU activity.

    `used_s` sums the driver's utilization, the share of time with a kernel running: an hour at 50 % is half
    an hour. A share of a device counts proportionally.
    """

    held_s: int = 0
    used_s: int = 0
    measured_s: int = 0

    @property
    def percent(self) -> int | None:
        """Used share of the measured time in percent, or None without measurements."""
        return round(100 * self.used_s / self.measured_s) if self.measured_s else None


def device_series(device: Device, span: str = HOUR, *, now: datetime | None = None) -> Series:
    """Return the last hour by minute or the last 30 days by hour. Raises `KeyError` for another span."""
    step_s, count = SPANS[span]
    now_s = int(now.timestamp()) if now else int(time.time())
    # The current minute has no rollup yet; the current hour has a partial one.
    end_s = now_s - now_s % step_s + (step_s if span == MONTH else 0)
    start_s = end_s - step_s * count
    model = DeviceMinute if span == HOUR else DeviceHour
    rows = model.objects.filter(series__device=device, start_s__gte=start_s, start_s__lt=end_s)
    point_at = {row[0]: _point(row) for row in rows.order_by("start_s").values_list("start_s", *COLUMNS)}
    points = tuple(point_at.get(start_s + step_s * number) for number in range(count))
    simulated = device.node.pool.simulated
    sampled = device.node.pool.traits.measured and span == HOUR
    sample = None if not sampled else newest([device], now_s=now_s).get(device.uuid)
    return Series(span, start_s, step_s, points, simulated, sample)


def start_of(series: Series) -> datetime:
    """Return the start as a datetime."""
    return datetime.fromtimestamp(series.start_s, UTC)


def _point(row: tuple[int | None, ...]) -> SeriesPoint:
    values = dict(zip(COLUMNS, row[1:], strict=True))
    pct_s, gpu_s = values.pop("gpu_pct_s"), values["gpu_s"]
    measured_s = values.pop("measured_s") or 0
    mean = pct_s / gpu_s if pct_s is not None and gpu_s else None
    return SeriesPoint(start_s=row[0] or 0, measured_s=measured_s, gpu_pct=mean, **values)


def newest(devices: Iterable[Device], *, now_s: float | None = None) -> dict[str, Sample]:
    """Return the newest sample by UUID. Empty without Redis. `devices` have their nodes loaded.

    Samples from a node about devices of other nodes are ignored.
    """
    uuids = defaultdict(list)
    for device in devices:
        uuids[device.node.name].append(device.uuid)
    if not uuids:
        return {}
    try:
        with live.connection().pipeline(transaction=False) as pipe:
            for node_name, of_node in uuids.items():
                pipe.hmget(live_key(node_name), of_node)
            values = pipe.execute()
    except redis.RedisError as error:
        log.debug("could not read live samples: %s", error)
        return {}
    raw = {
        uuid.encode(): value
        for of_node, row in zip(uuids.values(), values, strict=True)
        for uuid, value in zip(of_node, row, strict=True)
        if value is not None
    }
    return parse_live(raw, now_s=now_s)


def newest_minutes(
    *, now_s: float | None = None, devices: Collection[UUID] | None = None
) -> dict[str, Sample]:
    """Return the newest current minute of all (or these) devices, by UUID, in the form of a sample.

    One query.
    """
    now_s = time.time() if now_s is None else now_s
    oldest_s = int(now_s - FRESH_S) - MINUTE_S
    samples: dict[str, Sample] = {}
    rows = DeviceMinute.objects.filter(
        # Filter by series first, to avoid a lookup per device.
        series__newest_s__gte=oldest_s,
        start_s__gte=oldest_s,
    ).order_by("start_s")
    if devices is not None:
        rows = rows.filter(series__device__in=devices)
    for uuid, *row in rows.values_list("series__device__uuid", "start_s", *COLUMNS):
        point = _point(tuple(row))
        samples[uuid] = Sample(
            at_s=float(point.start_s + MINUTE_S),
            gpu_util_pct=round(point.gpu_pct) if point.gpu_pct is not None else None,
            memory_used_mib=point.memory_mib,
            power_mw=point.power_mw,
            temperature_c=point.temperature_c,
            sm_clock_mhz=point.sm_clock_mhz,
            pcie_tx_kib_s=point.pcie_tx_kib_s,
            pcie_rx_kib_s=point.pcie_rx_kib_s,
        )
    return samples


def current_samples(devices: Collection[Device], *, now: datetime) -> dict[str, Sample]:
    """Return the current measurements by UUID: the node's newest sample, or else the newest minute.

    `devices` have their nodes and pools loaded. One query and one Redis read.
    """
    now_s = now.timestamp()
    keys = [device.pk for device in devices] if len(devices) <= FEW_DEVICES else None
    sampled = (device for device in devices if device.node.pool.traits.measured)
    return newest_minutes(now_s=now_s, devices=keys) | newest(sampled, now_s=now_s)


# --- Idle -----------------------------------------------------------------------------------------


def idle_s(device: Device, now: datetime) -> int:
    """Return how many seconds the GPU has been idle, up to the newest minute.

    Missing data counts as use.
    """
    return idle_times(now, devices=[device.pk]).get(device.pk, 0)


def idle_times(now: datetime, *, devices: Collection[UUID] | None = None) -> dict[UUID, int]:
    """Return seconds without GPU activity by device, for all (or these) currently idle devices. One query."""
    rows = DeviceSeries.objects.filter(
        idle_since_s__isnull=False, newest_s__gte=int(now.timestamp()) - FRESH_S
    )
    if devices is not None:
        rows = rows.filter(device__in=devices)
    return {
        device: newest_s - idle_since_s
        for device, newest_s, idle_since_s in rows.values_list("device_id", "newest_s", "idle_since_s")
        if idle_since_s is not None
    }


# --- Allocations and their use -----------------------------------------------------------------------


def holders(device: Device, since: datetime, until: datetime) -> list[DeviceAllocation]:
    """Return the allocations of the device between `since` and `until`, oldest first."""
    lasting = Q(allocation__released_at=None) | Q(allocation__released_at__gt=since)
    rows = AllocatedDevice.objects.filter(lasting, device=device, allocation__granted_at__lt=until)
    return [
        DeviceAllocation(workspace, team, milli, begun, ended)
        for workspace, team, milli, begun, ended in rows.order_by("allocation__granted_at", "pk").values_list(
            "allocation__workspace_id",
            "allocation__workspace__team_id",
            "milli",
            "allocation__granted_at",
            "allocation__released_at",
        )
        if begun is not None
    ]


def gpu_use(team: Team, since: datetime, *, now: datetime | None = None) -> GpuUse:
    """Return how long the team held real devices since then, and how much they were used."""
    return gpu_uses([team.pk], since, now=now).get(team.pk, GpuUse())


def gpu_uses(teams: Iterable[UUID], since: datetime, *, now: datetime | None = None) -> dict[UUID, GpuUse]:
    """Return `gpu_use` by team, in two queries. Teams without allocations are omitted."""
    now_s = int((now or datetime.now(UTC)).timestamp())
    since_s = int(since.timestamp())
    lasting = Q(allocation__released_at=None) | Q(allocation__released_at__gt=since)
    rows = AllocatedDevice.objects.filter(
        lasting,
        allocation__workspace__team__in=list(teams),
        allocation__granted_at__isnull=False,
        device__node__pool__simulated=False,
    )
    intervals_by_device: dict[UUID, list[tuple[UUID, int, int, int]]] = defaultdict(list)
    first_s = now_s
    for device, team, milli, begun, ended in rows.values_list(
        "device_id", "allocation__workspace__team_id", "milli",
        "allocation__granted_at", "allocation__released_at",
    ):  # fmt: skip
        assert begun is not None  # by the filter
        begun_s = max(int(begun.timestamp()), since_s)
        ended_s = min(int(ended.timestamp()), now_s) if ended else now_s
        if ended_s > begun_s:
            intervals_by_device[device].append((team, milli, begun_s, ended_s))
            first_s = min(first_s, begun_s)
    hours = _hours(intervals_by_device, first_s - first_s % HOUR_S)
    sums: dict[UUID, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for device, intervals in intervals_by_device.items():
        of_device = hours.get(device, [])
        for team, milli, begun_s, ended_s in intervals:
            share = milli / 1000
            total = sums[team]
            total[0] += (ended_s - begun_s) * share
            first = bisect_left(of_device, (begun_s - HOUR_S + 1,))
            for start_s, measured_s, used_s in of_device[first:]:
                if start_s >= ended_s:
                    break
                overlap = min(ended_s, start_s + HOUR_S) - max(begun_s, start_s)
                # The current hour has elapsed only partly.
                part = share * overlap / max(1, min(HOUR_S, now_s - start_s))
                total[1] += used_s * part
                total[2] += measured_s * part
    return {
        team: GpuUse(round(held_s), round(used_s), min(round(measured_s), round(held_s)))
        for team, (held_s, used_s, measured_s) in sums.items()
    }


def _hours(devices: Collection[UUID], from_s: int) -> dict[UUID, list[tuple[int, int, float]]]:
    """Return the hours of each device, in order: start, measured seconds, used seconds."""
    hours: dict[UUID, list[tuple[int, int, float]]] = defaultdict(list)
    if not devices:
        return hours
    rows = DeviceHour.objects.filter(
        series__device__in=list(devices), start_s__gte=from_s, gpu_s__isnull=False
    ).order_by("series_id", "start_s")
    for device, start_s, gpu_s, pct_s in rows.values_list(
        "series__device_id", "start_s", "gpu_s", "gpu_pct_s"
    ).iterator(chunk_size=5000):
        hours[device].append((start_s, gpu_s or 0, (pct_s or 0) / 100))
    return hours
