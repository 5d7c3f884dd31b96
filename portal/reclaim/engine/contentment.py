"""How content a workspace is with where it runs, from 0 to 100. Pure: values in, a verdict out.

Each part is what it gets of what it should get, in percent, and the lowest one counts. What was not measured
is 100: nothing is ever held against a place that nobody has looked at. Only what another place would make
better counts: a GPU at its power limit, or one that has little to do, is as it would be anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal.common.reasons.reason import Reason
from portal.reclaim.engine.codes import RebalanceCode

CONTENT = 80
"""From here on nothing is said."""
FULLY = 100
LEAST_MEASURED_S = 300
"""Of the ten minutes that are looked at so much has to be measured."""
BUSY_PCT = 50
SATURATED_PCT = 95
LEAST_S = 240
"""The same of the five minutes of a node."""
SLOWED_PCT = 50
"""Held down in less than this part of its time it is as fast as others, for all that can be said."""
WHOLE = 1000
IDLE_PCT = 2.0
"""A machine with less idle CPU has none to spare,"""
WAITED_PCT = 50.0
"""where somebody waits for so much of the time,"""
COMPUTES_MILLI = 500
ALL_TAKEN = 900
"""but not for who takes less than half a core, or gets so many thousandths of what it was given."""
LEFT_PCT = 3.0
STALLED_PCT = 10.0
SIGN_PCT = 10
"""Held down for so much of the time a device may be why work is slower than elsewhere."""
HELD_DOWN, NEIGHBOURS, OVERCOMMITTED, SHORT = "held_down", "neighbours", "overcommitted", "node_short"
"""What may be seen of a place on which work is slower than elsewhere."""
OF_NODE = frozenset({RebalanceCode.OVERCOMMITTED, RebalanceCode.SHORT_OF_CPU, RebalanceCode.SHORT_OF_MEMORY})


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device in the last minutes, as its holder has it. None is not measured.

    Of `watched_s` seconds its clocks were held down by heat or by its hardware for `held_down_s`.
    `best_clock_mhz` is the most that a busy GPU of its model was seen to have of late. `at_work` says of each
    that shares it, the holder included, whether it was seen at work.
    """

    model: str = ""
    gpu_s: int | None = None
    gpu_pct: int | None = None
    watched_s: int | None = None
    held_down_s: int | None = None
    clock_mhz: int | None = None
    best_clock_mhz: int | None = None
    share_milli: int = WHOLE
    at_work: tuple[bool | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Headroom:
    """What a machine has left and what is waited for there, over the same minutes. None: not measured.

    In percent: how much of its CPU was idle, for how much of the time somebody waited for CPU, how much of
    its memory was left at most, and for how much of the time all waited for memory. `runnable` processes at a
    time had work for its `cores`. Where `cpu_limited`, each workspace has its own CPU, whatever others do.
    """

    watched_s: int | None = None
    cores: int | None = None
    runnable: float | None = None
    cpu_idle_pct: float | None = None
    cpu_waited_pct: float | None = None
    cpu_limited: bool = False
    memory_left_pct: float | None = None
    memory_stalled_pct: float | None = None


ROOMY = Headroom()


@dataclass(frozen=True, slots=True)
class Work:
    """What a workspace does: what CPU it takes of what it was given.

    `percent` is how fast its work goes on, of what it did elsewhere: `rate` against `best`, by a `name` of
    its own. None is not known.
    """

    cpu_milli: int | None = None
    cpu_given_milli: int | None = None
    percent: int | None = None
    name: str = ""
    rate: float = 0.0
    best: float = 0.0


UNKNOWN_WORK = Work()


@dataclass(frozen=True, slots=True)
class View:
    """What is known of the place of a workspace: its devices, what its node has, gives out and has left, and
    how its work goes on."""

    devices: tuple[DeviceView, ...] = ()
    node: str = ""
    cpu_milli: int | None = None
    cpu_given_milli: int | None = None
    memory_mib: int | None = None
    memory_given_mib: int | None = None
    headroom: Headroom = ROOMY
    work: Work = UNKNOWN_WORK


@dataclass(frozen=True, slots=True)
class Contentment:
    """`score` in percent, and what speaks against the place, the worst first; none where it is content."""

    score: int = FULLY
    reasons: tuple[Reason, ...] = ()


def contentment(view: View) -> Contentment:
    """The verdict over a place."""
    judged = [*(_slowed(each) for each in view.devices), *(_crowded(each) for each in view.devices)]
    of_node = (_overcommitted(view), _short_of_cpu(view), _short_of_memory(view.headroom))
    parts = [part for part in (*judged, *of_node, _slower(view)) if part is not None]
    reasons: list[Reason] = []
    for score, reason in sorted(parts, key=lambda part: part[0]):
        if score < CONTENT and reason not in reasons:
            reasons.append(reason)
    return Contentment(min((score for score, _ in parts), default=FULLY), tuple(reasons))


def is_blameless(view: DeviceView, *, shared: bool) -> bool:
    """Whether nothing can speak against a device, whoever holds it; `shared` if somebody has a part of it."""
    return _slowed(view) is None and not (shared and _saturated(view))


def is_overcommitted(has: int | None, given: int | None) -> bool:
    """Whether a node has given out more of something than it has."""
    return bool(has and given and given > has)


def is_of_node(reason: Reason) -> bool:
    """Whether a reason speaks against a node, and so against every device of it."""
    return reason.code in OF_NODE or reason.params.get("sign") in (OVERCOMMITTED, SHORT)


def is_short(headroom: Headroom) -> bool:
    """Whether a machine has nothing left of something that is waited for."""
    return node_score(headroom) < FULLY


def node_score(headroom: Headroom) -> int:
    """What a node is worth to who comes there: of one of which nothing is known all."""
    parts = (_cpu_left(headroom), _short_of_memory(headroom))
    return min((part[0] for part in parts if part is not None), default=FULLY)


def device_score(view: DeviceView) -> int:
    """What a device alone is worth to who holds it whole: of one that stands still nothing is known."""
    part = _slowed(view)
    return FULLY if part is None else part[0]


def best_clocks(views: Sequence[DeviceView]) -> dict[str, int]:
    """By model the highest clock of GPUs that were busy and not held down."""
    found: dict[str, int] = {}
    for view in views:
        if _busy(view) and view.clock_mhz and not is_held_down(view):
            found[view.model] = max(view.clock_mhz, found.get(view.model, 0))
    return found


def _busy(view: DeviceView) -> bool:
    return (view.gpu_s or 0) >= LEAST_MEASURED_S and (view.gpu_pct or 0) >= BUSY_PCT


def _saturated(view: DeviceView) -> bool:
    return (view.gpu_s or 0) >= LEAST_MEASURED_S and (view.gpu_pct or 0) >= SATURATED_PCT


def is_held_down(view: DeviceView) -> bool:
    """Whether heat or hardware slowed it: only then the best clock of others matters."""
    watched = view.watched_s or 0
    return watched >= LEAST_MEASURED_S and 100 * (view.held_down_s or 0) >= SLOWED_PCT * watched


def _slowed(view: DeviceView) -> tuple[int, Reason] | None:
    """Its clock against the best of its model, where heat or hardware hold it down while it works."""
    if not (_busy(view) and is_held_down(view) and view.clock_mhz and view.best_clock_mhz):
        return None
    score = min(FULLY, FULLY * view.clock_mhz // view.best_clock_mhz)
    params = {
        "percent": FULLY * (view.held_down_s or 0) // (view.watched_s or 1),
        "clock_mhz": view.clock_mhz,
        "best_mhz": view.best_clock_mhz,
    }
    return score, Reason(RebalanceCode.SLOWED, params)


def _crowded(view: DeviceView) -> tuple[int, Reason] | None:
    """Its part of the time of a GPU that is never free, against the share that it was given.

    A GPU divides its time evenly among those who have work for it, whatever their shares are. What one of
    them takes cannot be measured, so it counts only where each was seen at work.
    """
    sharers = len(view.at_work)
    if view.share_milli >= WHOLE or sharers < 2 or not all(view.at_work):
        return None
    if not _saturated(view):
        return None
    score = min(FULLY, FULLY * WHOLE // (sharers * view.share_milli))
    params = {"neighbours": sharers - 1, "percent": view.gpu_pct, "share_milli": view.share_milli}
    return score, Reason(RebalanceCode.CROWDED, params)


def _overcommitted(view: View) -> tuple[int, Reason] | None:
    """What its node has against what it has given out: it may have less than when that was given."""
    worst: tuple[int, Reason] | None = None
    for what, has, given in (
        ("cpu", view.cpu_milli, view.cpu_given_milli),
        ("memory", view.memory_mib, view.memory_given_mib),
    ):
        if has and given and is_overcommitted(has, given):
            score = FULLY * has // given
            if worst is None or score < worst[0]:
                params = {"what": what, "has": has, "given": given}
                worst = score, Reason(RebalanceCode.OVERCOMMITTED, params)
    return worst


def _short_of_cpu(view: View) -> tuple[int, Reason] | None:
    """Its node's cores against who has work for them, where it computes and gets less than it was given."""
    work = view.work
    if work.cpu_milli is None or not work.cpu_given_milli or work.cpu_milli < COMPUTES_MILLI:
        return None
    if WHOLE * work.cpu_milli >= ALL_TAKEN * work.cpu_given_milli:
        return None
    return _cpu_left(view.headroom)


def _cpu_left(seen: Headroom) -> tuple[int, Reason] | None:
    """The kernel divides cores evenly among processes that have work for them.

    Where each workspace is held to its own, that many wait is its limit, as it would be anywhere.
    """
    if seen.cpu_limited or (seen.watched_s or 0) < LEAST_S or seen.cpu_idle_pct is None:
        return None
    if seen.cpu_idle_pct > IDLE_PCT or (seen.cpu_waited_pct or 0) < WAITED_PCT:
        return None
    if not seen.cores or not seen.runnable or seen.runnable <= seen.cores:
        return None
    params = {"idle": seen.cpu_idle_pct, "runnable": round(seen.runnable), "cores": seen.cores}
    return int(FULLY * seen.cores / seen.runnable), Reason(RebalanceCode.SHORT_OF_CPU, params)


def _short_of_memory(seen: Headroom) -> tuple[int, Reason] | None:
    """The time in which nothing on its node went on, where the machine has no memory left."""
    left, stalled = seen.memory_left_pct, seen.memory_stalled_pct
    if (seen.watched_s or 0) < LEAST_S or left is None or stalled is None:
        return None
    if left > LEFT_PCT or stalled < STALLED_PCT:
        return None
    params = {"left": left, "stalled": round(stalled)}
    return int(FULLY - stalled), Reason(RebalanceCode.SHORT_OF_MEMORY, params)


def _slower(view: View) -> tuple[int, Reason] | None:
    """How fast its work goes on against elsewhere, where something is seen of its place that may be why.

    Else it is as likely that the job does other work than before: that is no reason to stop it.
    """
    work = view.work
    sign = _sign(view)
    if work.percent is None or not sign:
        return None
    params = {
        "percent": work.percent, "name": work.name, "rate": work.rate, "best": work.best, "sign": sign
    }  # fmt: skip
    return min(FULLY, work.percent), Reason(RebalanceCode.WORK_SLOWER, params)


def _sign(view: View) -> str:
    """What is seen of a place that may slow work down, though it may not be enough to say by how much.

    None of it is what the work itself brings about: neither waiting for disks nor its own use of its devices.
    """
    for each in view.devices:
        watched = each.watched_s or 0
        if watched >= LEAST_MEASURED_S and 100 * (each.held_down_s or 0) >= SIGN_PCT * watched:
            return HELD_DOWN
    if any(each.share_milli < WHOLE and _has_busy_neighbours(each) for each in view.devices):
        return NEIGHBOURS
    if _overcommitted(view) is not None:
        return OVERCOMMITTED
    return SHORT if is_short(view.headroom) else ""


def _has_busy_neighbours(view: DeviceView) -> bool:
    """Whether more than one of those that share it was seen at work."""
    return sum(each is True for each in view.at_work) > 1
