"""CPU, memory and GPU use of a workspace over its life, for its page, REST and `berth usage`.

Gaps are not filled. Measurements of whole GPUs come from the devices, those of shares and MIG instances from
the agent (`UsageMinute`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from enum import StrEnum

from portal.common.plots import DAY_S, HOUR_S, mean, peak
from portal.fleet.inventory import use_history
from portal.fleet.inventory.models import AllocatedDevice
from portal.fleet.inventory.use_history import AllocatedUse, Window
from portal.workspaces.models import UsageHour, UsageMinute, Workspace
from portal.workspaces.usage_samples import HOURS_KEPT_S, MAXIMA, MEANS, MINUTES_KEPT_S
from provisioning.gpu.rollup import MINUTE_S
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind

MAX_STEPS = 180
STEPS_S = (60, 120, 300, 600, 3600, 7200, 14_400, 43_200)
"""Intervals between points in seconds. All divide a day. Those below an hour are computed from minutes."""
FRESH_S = 3 * MINUTE_S
"""Seconds within which measurements arrive. Newer points without values are omitted, not shown as gaps."""


class Span(StrEnum):
    """A period that ends now, and begins no earlier than the workspace was created."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    ALL = "all"


SPANS = frozenset(span.value for span in Span)
LENGTHS_S = {Span.HOUR: HOUR_S, Span.DAY: DAY_S, Span.WEEK: 7 * DAY_S, Span.ALL: HOURS_KEPT_S}


def span_of(requested: str) -> Span:
    """Return the requested span, or a day for an unknown one."""
    return Span(requested) if requested in SPANS else Span.DAY


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """Means and maxima of an interval; None means not measured.

    CPU is in thousandths of a core, memory in MiB. `gpu_pct` is the mean of its GPUs, `gpu_max_pct` the
    maximum of any of them, `gpu_memory_mib` their sum, and `gpu_memory_max_mib` the sum of their maxima.
    """

    cpu_milli: float | None = None
    memory_mib: float | None = None
    gpu_pct: float | None = None
    gpu_memory_mib: float | None = None
    cpu_max_milli: float | None = None
    memory_max_mib: float | None = None
    gpu_max_pct: float | None = None
    gpu_memory_max_mib: float | None = None

    @property
    def measured(self) -> bool:
        """Whether at least one value was measured."""
        return any(value is not None for value in astuple(self))


assert tuple(field.name for field in fields(UsagePoint)) == (*MEANS, *MAXIMA)


@dataclass(frozen=True, slots=True)
class UsageLimits:
    """The limits of the workspace, in the units of `UsagePoint`.

    `gpu_memory_mib` is the memory of the whole GPUs and MIG instances of its last start; None if it had none,
    or a GPU share.
    """

    cpu_milli: int
    memory_mib: int
    gpu_memory_mib: int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """`points` from `start_s` (UTC seconds) on, one per `step_s` seconds.

    `accelerated`: it has or had GPUs. `shared`: its last start had a share of a GPU.
    """

    span: Span
    start_s: int
    step_s: int
    points: tuple[UsagePoint, ...]
    limits: UsageLimits
    accelerated: bool
    shared: bool

    @property
    def end_s(self) -> int:
        return self.start_s + self.step_s * len(self.points)


def usage_of(workspace: Workspace, span: Span, now: datetime) -> Usage:
    """Return the use of a workspace in a span, in up to six queries.

    There are at most `MAX_STEPS` points and the current one.
    """
    allocated_devices = AllocatedDevice.objects.filter(allocation__workspace=workspace)
    last_start = list(
        allocated_devices.filter(allocation__generation=workspace.generation).values_list(
            "milli", "device__kind", "device__memory_mib"
        )
    )
    window, bundle = _window(workspace, span, now)
    points = _points(workspace, window)
    whole = allocated_devices.filter(milli=WHOLE_DEVICE_MILLI, device__kind=DeviceKind.GPU.value)
    had_gpus = bool(last_start) or allocated_devices.exists()
    if had_gpus:
        points = _with_devices(points, use_history.allocated_use(whole, window))
    points = [_merged(points[first : first + bundle]) for first in range(0, len(points), bundle)]
    return Usage(
        span=span,
        start_s=window.start_s,
        step_s=window.step_s * bundle,
        points=tuple(_without_expected(points, window, bundle)),
        limits=UsageLimits(
            workspace.resources["cpu_milli"], workspace.resources["memory_mib"], _gpu_memory_mib(last_start)
        ),
        accelerated=had_gpus or workspace.accelerated,
        shared=any(milli < WHOLE_DEVICE_MILLI for milli, _kind, _memory in last_start),
    )


def _gpu_memory_mib(devices: Sequence[tuple[int, str, int]]) -> int | None:
    if any(milli < WHOLE_DEVICE_MILLI for milli, _kind, _memory in devices):
        return None
    return sum(memory for _milli, _kind, memory in devices) or None


def _window(workspace: Workspace, span: Span, now: datetime) -> tuple[Window, int]:
    """Return the window in steps of minutes or hours, and the number of steps per point."""
    now_s = int(now.timestamp())
    begun_s = max(now_s - LENGTHS_S[span], min(int(workspace.created_at.timestamp()), now_s))
    length_s = now_s - begun_s
    step_s = next(
        step_s
        for step_s in STEPS_S
        if length_s <= step_s * MAX_STEPS and (step_s >= HOUR_S or length_s <= MINUTES_KEPT_S)
    )
    first_s = begun_s - begun_s % step_s
    count = (now_s - first_s) // step_s + 1
    base_s = MINUTE_S if step_s < HOUR_S else HOUR_S
    bundle = step_s // base_s
    return Window(first_s, base_s, count * bundle, now_s), bundle


def _points(workspace: Workspace, window: Window) -> list[UsagePoint]:
    """Return the agents' measurements for each step of the window."""
    steps: dict[int, list[UsagePoint]] = defaultdict(list)
    in_window = {"workspace": workspace, "start_s__gte": window.start_s, "start_s__lt": window.end_s}
    for start_s, *means in UsageMinute.objects.filter(**in_window).values_list("start_s", *MEANS):
        steps[(start_s - window.start_s) // window.step_s].append(UsagePoint(*means, *means))
    if window.step_s >= HOUR_S:
        for start_s, *values in UsageHour.objects.filter(**in_window).values_list("start_s", *MEANS, *MAXIMA):
            steps[(start_s - window.start_s) // window.step_s].append(UsagePoint(*values))
    return [_merged(steps.get(step, ())) for step in range(window.count)]


def _with_devices(points: Sequence[UsagePoint], use: AllocatedUse) -> list[UsagePoint]:
    """Fill in the measurements of whole GPUs in points for which the agent reported none."""
    columns = zip(use.gpu_pct, use.memory_mib, use.gpu_max_pct, use.memory_max_mib, strict=True)
    return [
        point
        if point.gpu_pct is not None or point.gpu_memory_mib is not None
        else UsagePoint(
            point.cpu_milli, point.memory_mib, gpu_pct, gpu_memory_mib,
            point.cpu_max_milli, point.memory_max_mib, gpu_max_pct, gpu_memory_max_mib,
        )
        for point, (gpu_pct, gpu_memory_mib, gpu_max_pct, gpu_memory_max_mib) in zip(
            points, columns, strict=True
        )
    ]  # fmt: skip


def _merged(points: Sequence[UsagePoint]) -> UsagePoint:
    """Combine several points into one: means of means, and maxima of maxima."""
    if len(points) == 1:
        return points[0]
    columns = list(zip(*map(astuple, points), strict=True))
    if not columns:
        return UsagePoint()
    return UsagePoint(*map(mean, columns[: len(MEANS)]), *map(peak, columns[len(MEANS) :]))


def _without_expected(points: Sequence[UsagePoint], window: Window, bundle: int) -> list[UsagePoint]:
    """Return the points without the newest ones whose measurements have not arrived yet."""
    step_s = window.step_s * bundle
    quantities = [name for name in MEANS if _is_measured(points, name)]
    last = len(points)
    while last > 1 and window.start_s + step_s * (last - 1) > window.now_s - FRESH_S:
        if all(getattr(points[last - 1], name) is not None for name in quantities):
            break
        last -= 1
    return list(points[:last])


def _is_measured(points: Iterable[UsagePoint], name: str) -> bool:
    return any(getattr(point, name) is not None for point in points)
