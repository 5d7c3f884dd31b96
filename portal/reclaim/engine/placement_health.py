"""Scores how good a placement is for its workspace, from 0 to 100. Pure.

Each part score is the percentage that the workspace gets of what it should get; the result is the lowest.
Unmeasured parts score 100, so no placement is penalised without data. Only problems that another placement
would solve count; a GPU at its power limit or with little work is the same anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal.common.reasons.reason import Reason
from portal.reclaim.engine.codes import RebalanceCode

HEALTHY_PCT = 80
"""Minimum score at which no reasons are reported."""
MAX_SCORE = 100
MIN_MEASURED_S = 300
"""Seconds that must be measured within the window of 10 minutes."""
BUSY_PCT = 50
SATURATED_PCT = 95
MIN_NODE_MEASURED_S = 240
"""Seconds that must be measured within 5 minutes for nodes."""
SLOWED_PCT = 50
"""Percent of time with throttling below which a device counts as running at full speed."""
WHOLE = 1000
IDLE_PCT = 2.0
"""Percent of idle CPU up to which a machine may have no CPU to spare."""
WAITED_PCT = 50.0
"""Percent of time with processes waiting for CPU above which such a machine has no CPU to spare."""
MIN_CPU_USE_MILLI = 500
"""A workspace that uses less than this, in thousandths of a core, always gets enough."""
ENOUGH_CPU_PERMILLE = 900
"""Share of its CPU, in thousandths, above which a workspace gets enough."""
LEFT_PCT = 3.0
STALLED_PCT = 10.0
CAUSE_PCT = 10
"""Percent of time with throttling from which a device may explain slow work."""
HELD_DOWN, NEIGHBOURS, OVERCOMMITTED, SHORT = "held_down", "neighbours", "overcommitted", "node_short"
"""Possible explanations for slow work on a node."""
NODE_CODES = frozenset(
    {RebalanceCode.OVERCOMMITTED, RebalanceCode.SHORT_OF_CPU, RebalanceCode.SHORT_OF_MEMORY}
)


@dataclass(frozen=True, slots=True)
class DeviceView:
    """Measurements of a device in the last minutes. None: not measured.

    - `watched_s`, `throttled_s`: seconds observed, and seconds throttled by heat or hardware.
    - `best_clock_mhz`: highest recent clock of a busy GPU of the model.
    - `at_work`: for each workspace on the device, whether it was seen working.
    """

    model: str = ""
    gpu_s: int | None = None
    gpu_pct: int | None = None
    watched_s: int | None = None
    throttled_s: int | None = None
    clock_mhz: int | None = None
    best_clock_mhz: int | None = None
    share_milli: int = WHOLE
    at_work: tuple[bool | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Headroom:
    """The spare capacity of a machine, and how long processes waited for it. None: not measured.

    In percent: idle CPU, time in which processes waited for CPU, maximum free memory, and time in which all
    processes waited for memory. `runnable` is the average number of processes ready to run on `cores`. With
    `cpu_limited`, each workspace has its own CPU limit.
    """

    watched_s: int | None = None
    cores: int | None = None
    runnable: float | None = None
    cpu_idle_pct: float | None = None
    cpu_waited_pct: float | None = None
    cpu_limited: bool = False
    memory_left_pct: float | None = None
    memory_stalled_pct: float | None = None


UNKNOWN_HEADROOM = Headroom()


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a workspace, and its CPU usage.

    `percent` is its pace relative to elsewhere: `rate` / `best` of the metric `name`. None: unknown.
    """

    cpu_milli: int | None = None
    cpu_granted_milli: int | None = None
    percent: int | None = None
    name: str = ""
    rate: float = 0.0
    best: float = 0.0


UNKNOWN_WORK = Work()


@dataclass(frozen=True, slots=True)
class PlacementView:
    """The known state of a placement: devices, size, allocations and spare capacity of the node, and pace."""

    devices: tuple[DeviceView, ...] = ()
    node: str = ""
    cpu_milli: int | None = None
    cpu_granted_milli: int | None = None
    memory_mib: int | None = None
    memory_granted_mib: int | None = None
    headroom: Headroom = UNKNOWN_HEADROOM
    work: Work = UNKNOWN_WORK


@dataclass(frozen=True, slots=True)
class PlacementHealth:
    """The score in percent, and the problems of the placement, worst first; empty if it is good."""

    score: int = MAX_SCORE
    reasons: tuple[Reason, ...] = ()


def placement_health(view: PlacementView) -> PlacementHealth:
    """Return the verdict on a placement."""
    of_devices = [
        *(_throttling(device) for device in view.devices),
        *(_crowding(device) for device in view.devices),
    ]
    of_node = (_overcommitted(view), _cpu_shortage(view), _memory_shortage(view.headroom))
    parts = [part for part in (*of_devices, *of_node, _slow_pace(view)) if part is not None]
    reasons: list[Reason] = []
    for score, reason in sorted(parts, key=lambda part: part[0]):
        if score < HEALTHY_PCT and reason not in reasons:
            reasons.append(reason)
    return PlacementHealth(min((score for score, _ in parts), default=MAX_SCORE), tuple(reasons))


def is_good_for_any(view: DeviceView, *, shared: bool) -> bool:
    """Return whether a device is good for any workspace. `shared`: a part of it is already allocated."""
    return _throttling(view) is None and not (shared and _is_saturated(view))


def is_overcommitted(size: int | None, granted: int | None) -> bool:
    """Return whether more of a resource is allocated on a node of this `size` than it has."""
    return bool(size and granted and granted > size)


def concerns_node(reason: Reason) -> bool:
    """Return whether a reason concerns a node, and thus all of its devices."""
    return reason.code in NODE_CODES or reason.params.get("sign") in (OVERCOMMITTED, SHORT)


def has_shortage(headroom: Headroom) -> bool:
    """Return whether a machine has no CPU or memory left and processes wait for it."""
    return node_score(headroom) < MAX_SCORE


def node_score(headroom: Headroom) -> int:
    """Return the score of a node for a new workspace; `MAX_SCORE` if unknown."""
    parts = (_cpu_left(headroom), _memory_shortage(headroom))
    return min((part[0] for part in parts if part is not None), default=MAX_SCORE)


def device_score(view: DeviceView) -> int:
    """Return the score of a device for exclusive use; `MAX_SCORE` if it is idle and thus unknown."""
    part = _throttling(view)
    return MAX_SCORE if part is None else part[0]


def best_clocks(views: Sequence[DeviceView]) -> dict[str, int]:
    """Return the highest clock of busy, unthrottled GPUs, by model."""
    clocks: dict[str, int] = {}
    for view in views:
        if _is_busy(view) and view.clock_mhz and not is_throttled(view):
            clocks[view.model] = max(view.clock_mhz, clocks.get(view.model, 0))
    return clocks


def _is_busy(view: DeviceView) -> bool:
    return (view.gpu_s or 0) >= MIN_MEASURED_S and (view.gpu_pct or 0) >= BUSY_PCT


def _is_saturated(view: DeviceView) -> bool:
    return (view.gpu_s or 0) >= MIN_MEASURED_S and (view.gpu_pct or 0) >= SATURATED_PCT


def is_throttled(view: DeviceView) -> bool:
    """Return whether heat or hardware slowed the device for a significant part of the time.

    Callers need `best_clock_mhz` only in that case.
    """
    watched = view.watched_s or 0
    return watched >= MIN_MEASURED_S and 100 * (view.throttled_s or 0) >= SLOWED_PCT * watched


def _throttling(view: DeviceView) -> tuple[int, Reason] | None:
    """Return the device's clock relative to the best of its model, if throttled while busy."""
    if not (_is_busy(view) and is_throttled(view) and view.clock_mhz and view.best_clock_mhz):
        return None
    score = min(MAX_SCORE, MAX_SCORE * view.clock_mhz // view.best_clock_mhz)
    params = {
        "percent": MAX_SCORE * (view.throttled_s or 0) // (view.watched_s or 1),
        "clock_mhz": view.clock_mhz,
        "best_mhz": view.best_clock_mhz,
    }
    return score, Reason(RebalanceCode.SLOWED, params)


def _crowding(view: DeviceView) -> tuple[int, Reason] | None:
    """Return the workspace's part of the time of a saturated GPU, relative to its share.

    A GPU divides its time evenly among its busy users, regardless of their shares. Individual usage cannot be
    measured, so this part applies only if all of them were seen working.
    """
    sharers = len(view.at_work)
    if view.share_milli >= WHOLE or sharers < 2 or not all(view.at_work):
        return None
    if not _is_saturated(view):
        return None
    score = min(MAX_SCORE, MAX_SCORE * WHOLE // (sharers * view.share_milli))
    params = {"neighbours": sharers - 1, "percent": view.gpu_pct, "share_milli": view.share_milli}
    return score, Reason(RebalanceCode.CROWDED, params)


def _overcommitted(view: PlacementView) -> tuple[int, Reason] | None:
    """Return the node's size relative to its allocations, in case the node has shrunk."""
    worst: tuple[int, Reason] | None = None
    for resource, has, granted in (
        ("cpu", view.cpu_milli, view.cpu_granted_milli),
        ("memory", view.memory_mib, view.memory_granted_mib),
    ):
        if has and granted and is_overcommitted(has, granted):
            score = MAX_SCORE * has // granted
            if worst is None or score < worst[0]:
                params = {"what": resource, "has": has, "given": granted}
                worst = score, Reason(RebalanceCode.OVERCOMMITTED, params)
    return worst


def _cpu_shortage(view: PlacementView) -> tuple[int, Reason] | None:
    """Return the node's cores relative to runnable processes, if the workspace gets too little CPU."""
    work = view.work
    if work.cpu_milli is None or not work.cpu_granted_milli or work.cpu_milli < MIN_CPU_USE_MILLI:
        return None
    if WHOLE * work.cpu_milli >= ENOUGH_CPU_PERMILLE * work.cpu_granted_milli:
        return None
    return _cpu_left(view.headroom)


def _cpu_left(seen: Headroom) -> tuple[int, Reason] | None:
    """Return the node's CPU score: the kernel divides cores evenly among runnable processes.

    With CPU limits per workspace, a workspace waits because of its own limit, which is the same anywhere.
    """
    if seen.cpu_limited or (seen.watched_s or 0) < MIN_NODE_MEASURED_S or seen.cpu_idle_pct is None:
        return None
    if seen.cpu_idle_pct > IDLE_PCT or (seen.cpu_waited_pct or 0) < WAITED_PCT:
        return None
    if not seen.cores or not seen.runnable or seen.runnable <= seen.cores:
        return None
    params = {"idle": seen.cpu_idle_pct, "runnable": round(seen.runnable), "cores": seen.cores}
    return int(MAX_SCORE * seen.cores / seen.runnable), Reason(RebalanceCode.SHORT_OF_CPU, params)


def _memory_shortage(seen: Headroom) -> tuple[int, Reason] | None:
    """Return the score from the time in which nothing ran, if the machine has no memory left."""
    left, stalled = seen.memory_left_pct, seen.memory_stalled_pct
    if (seen.watched_s or 0) < MIN_NODE_MEASURED_S or left is None or stalled is None:
        return None
    if left > LEFT_PCT or stalled < STALLED_PCT:
        return None
    params = {"left": left, "stalled": round(stalled)}
    return int(MAX_SCORE - stalled), Reason(RebalanceCode.SHORT_OF_MEMORY, params)


def _slow_pace(view: PlacementView) -> tuple[int, Reason] | None:
    """Return the pace relative to elsewhere, if the placement shows a possible explanation.

    Otherwise the job may simply be doing other work, which does not justify a move.
    """
    work = view.work
    sign = _visible_cause(view)
    if work.percent is None or not sign:
        return None
    params = {
        "percent": work.percent, "name": work.name, "rate": work.rate, "best": work.best, "sign": sign
    }  # fmt: skip
    return min(MAX_SCORE, work.percent), Reason(RebalanceCode.WORK_SLOWER, params)


def _visible_cause(view: PlacementView) -> str:
    """Return a possible explanation of slow work, even if it cannot be quantified, or an empty string.

    Excludes effects of the work itself, such as waiting for disks or its own device use.
    """
    for device in view.devices:
        watched = device.watched_s or 0
        if watched >= MIN_MEASURED_S and 100 * (device.throttled_s or 0) >= CAUSE_PCT * watched:
            return HELD_DOWN
    if any(shared.share_milli < WHOLE and _has_busy_neighbours(shared) for shared in view.devices):
        return NEIGHBOURS
    if _overcommitted(view) is not None:
        return OVERCOMMITTED
    return SHORT if has_shortage(view.headroom) else ""


def _has_busy_neighbours(view: DeviceView) -> bool:
    """Return whether more than one workspace on the device was seen working."""
    return sum(working is True for working in view.at_work) > 1
