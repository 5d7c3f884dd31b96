"""GPU use over time: how many GPUs were allocated, how busy they were, and how much memory they used.

Allocations are exact. Measurements come from `series`, and gaps are not filled. Simulated devices have no
measurements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q, QuerySet, Sum

from portal.common.plots import DAY_S, HOUR_S, Values, moment
from portal.fleet.inventory.models import AllocatedDevice, Device, DeviceHour, DeviceMinute
from provisioning.gpu.rollup import MINUTE_S
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind

WEEK = "week"
MONTH = "month"
DAYS = {WEEK: 7, MONTH: 30}


@dataclass(frozen=True, slots=True)
class Window:
    """`count` steps of `step_s` seconds from `start_s` (Unix time). The last step contains `now_s`."""

    start_s: int
    step_s: int
    count: int
    now_s: int

    @property
    def end_s(self) -> int:
        return self.start_s + self.step_s * self.count

    def elapsed_s(self, step: int) -> int:
        """Return how many seconds of a step have elapsed, at least 1."""
        return max(1, min(self.step_s, self.now_s - self.start_s - self.step_s * step))


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """Values per step: mean utilisation in percent, and used memory in MiB. None means not measured."""

    gpu_pct: Values
    memory_mib: Values


@dataclass(frozen=True, slots=True)
class AllocatedUse(MeasuredUse):
    """Like `MeasuredUse`, for allocated devices, with maxima of use and of memory.

    A maximum is None if a device was allocated for only part of the step, since another workspace may have
    caused it.
    """

    gpu_max_pct: Values
    memory_max_mib: Values


@dataclass(frozen=True, slots=True)
class _Interval:
    """A period in which `milli` of 1000 of a device was allocated, in Unix time."""

    device: UUID
    milli: int
    whole: bool
    begun_s: float
    ended_s: float


def window(span: str, now: datetime) -> Window:
    """Return the last days of a span by hour. Raises `KeyError` for another span."""
    return _until(now, HOUR_S, DAYS[span] * DAY_S // HOUR_S)


def _until(now: datetime, step_s: int, count: int) -> Window:
    now_s = int(now.timestamp())
    end_s = now_s - now_s % step_s + step_s
    return Window(end_s - step_s * count, step_s, count, now_s)


def measured_use(devices: QuerySet[Device], window: Window) -> MeasuredUse:
    """Return the mean utilisation and total used memory of these GPUs. One query."""
    model = _model(window)
    gpus = devices.filter(kind=DeviceKind.GPU.value).order_by().values("pk")
    rows = (
        model.objects.filter(series__device__in=gpus, start_s__gte=window.start_s, start_s__lt=window.end_s)
        .order_by()
        .values_list("start_s")
        .annotate(Sum("gpu_pct_s"), Sum("gpu_s"), Sum("memory_mib"))
    )
    percents: list[float | None] = [None] * window.count
    memory: list[float | None] = [None] * window.count
    for start_s, percent_s, seconds, memory_mib in rows:
        step = (start_s - window.start_s) // window.step_s
        percents[step] = percent_s / seconds if seconds else None
        memory[step] = memory_mib
    return MeasuredUse(tuple(percents), tuple(memory))


def allocated(rows: QuerySet[AllocatedDevice], window: Window) -> Values:
    """Return the average number of allocated devices per step. Shares count as fractions. One query.

    MIG instances count as devices, as in `counting`.
    """
    amounts = [0.0] * window.count
    for interval in _intervals(rows, window):
        for step, overlap_s in _steps(interval, window):
            share = interval.milli / WHOLE_DEVICE_MILLI
            amounts[step] += share * min(1.0, overlap_s / window.elapsed_s(step))
    return tuple(amounts)


def allocated_use(rows: QuerySet[AllocatedDevice], window: Window) -> AllocatedUse:
    """Return the use of devices while they were allocated by these rows. Two queries.

    Shares count as fractions. Memory is that of whole GPUs only, because other workspaces use the rest of a
    shared GPU.
    """
    intervals = list(_intervals(rows, window))
    measured = _measurements({interval.device for interval in intervals}, window)
    sums = [_StepSum() for _step in range(window.count)]
    for interval in intervals:
        of_device = measured.get(interval.device, {})
        for step, overlap_s in _steps(interval, window):
            measurement = of_device.get(step)
            if measurement is not None:
                sums[step].add(interval, measurement, min(1.0, overlap_s / window.elapsed_s(step)))
    return AllocatedUse(
        gpu_pct=tuple(total.gpu_pct for total in sums),
        memory_mib=tuple(total.memory_mib for total in sums),
        gpu_max_pct=tuple(total.gpu_max_pct if total.throughout else None for total in sums),
        memory_max_mib=tuple(total.memory_max_mib if total.throughout else None for total in sums),
    )


def _model(window: Window) -> type[DeviceMinute] | type[DeviceHour]:
    return DeviceMinute if window.step_s == MINUTE_S else DeviceHour


def _intervals(rows: QuerySet[AllocatedDevice], window: Window) -> Iterator[_Interval]:
    lasting = Q(allocation__released_at=None) | Q(allocation__released_at__gt=moment(window.start_s))
    for device, milli, kind, begun, ended in rows.filter(
        lasting, allocation__granted_at__lt=moment(window.end_s)
    ).values_list("device_id", "milli", "device__kind", "allocation__granted_at", "allocation__released_at"):
        assert begun is not None  # by the filter
        begun_s = max(begun.timestamp(), window.start_s)
        ended_s = min(ended.timestamp() if ended else window.now_s, window.now_s)
        if ended_s > begun_s:
            whole = milli == WHOLE_DEVICE_MILLI and kind == DeviceKind.GPU.value
            yield _Interval(device, milli, whole, begun_s, ended_s)


def _steps(interval: _Interval, window: Window) -> Iterator[tuple[int, float]]:
    """Yield each step that overlaps the interval, and the overlap in seconds."""
    step = int(interval.begun_s - window.start_s) // window.step_s
    while step < window.count:
        start_s = window.start_s + window.step_s * step
        if start_s >= interval.ended_s:
            return
        yield step, min(interval.ended_s, start_s + window.step_s) - max(interval.begun_s, start_s)
        step += 1


@dataclass(frozen=True, slots=True)
class _Measurement:
    """The measurements of a device in one step; None means not measured."""

    pct_s: int | None
    gpu_s: int | None
    gpu_max_pct: int | None
    memory_mib: int | None
    memory_max_mib: int | None


_MEASURED_COLUMNS = ("gpu_pct_s", "gpu_s", "gpu_max_pct", "memory_mib", "memory_max_mib")


class _StepSum:
    """The use of several devices in one step. `throughout`: all were allocated for the whole step."""

    __slots__ = ("gpu_max_pct", "memory_max_mib", "memory_mib", "seen_s", "throughout", "used_s")

    def __init__(self) -> None:
        self.used_s = 0.0
        self.seen_s = 0.0
        self.gpu_max_pct: float | None = None
        self.memory_mib: float | None = None
        self.memory_max_mib: float | None = None
        self.throughout = True

    def add(self, interval: _Interval, measurement: _Measurement, part: float) -> None:
        """Add a device that was allocated for this fraction of the step."""
        share = part * interval.milli / WHOLE_DEVICE_MILLI
        self.used_s += (measurement.pct_s or 0) / 100 * share
        self.seen_s += (measurement.gpu_s or 0) * share
        self.throughout = self.throughout and part >= 1
        if measurement.gpu_max_pct is not None:
            self.gpu_max_pct = max(self.gpu_max_pct or 0, measurement.gpu_max_pct)
        if interval.whole and measurement.memory_mib is not None:
            self.memory_mib = (self.memory_mib or 0.0) + measurement.memory_mib * part
        if interval.whole and measurement.memory_max_mib is not None:
            self.memory_max_mib = (self.memory_max_mib or 0) + measurement.memory_max_mib

    @property
    def gpu_pct(self) -> float | None:
        return 100 * self.used_s / self.seen_s if self.seen_s else None


def _measurements(devices: Iterable[UUID], window: Window) -> dict[UUID, dict[int, _Measurement]]:
    measurements: dict[UUID, dict[int, _Measurement]] = defaultdict(dict)
    rows = _model(window).objects.filter(
        series__device__in=list(devices), start_s__gte=window.start_s, start_s__lt=window.end_s
    )
    for device, start_s, *values in rows.values_list(
        "series__device_id", "start_s", *_MEASURED_COLUMNS
    ).iterator(chunk_size=5000):
        measurements[device][(start_s - window.start_s) // window.step_s] = _Measurement(*values)
    return measurements
