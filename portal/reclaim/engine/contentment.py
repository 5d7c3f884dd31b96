"""How content a workspace is with where it runs, from 0 to 100. Pure: values in, a verdict out.

Each part is what it gets of what it should get, in percent, and the lowest one counts. What was not measured
is 100: nothing is ever held against a place that nobody has looked at. Only what another place would make
better counts: a GPU at its power limit, or one that has little to do, is as it would be anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal.common.reasons.codes import RebalanceCode
from portal.common.reasons.reason import Reason

CONTENT = 80
"""From here on nothing is said."""
FULLY = 100
LEAST_MEASURED_S = 300
"""Of the ten minutes that are looked at so much has to be measured."""
BUSY_PCT = 50
SATURATED_PCT = 95
SLOWED_PCT = 50
"""Held down in less than this part of its time it is as fast as others, for all that can be said."""
WHOLE = 1000


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
class View:
    """What is known of the place of a workspace: its devices, and what its node has and gives out."""

    devices: tuple[DeviceView, ...] = ()
    node: str = ""
    cpu_milli: int | None = None
    cpu_given_milli: int | None = None
    memory_mib: int | None = None
    memory_given_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Contentment:
    """`score` in percent, and what speaks against the place, the worst first; none where it is content."""

    score: int = FULLY
    reasons: tuple[Reason, ...] = ()


def contentment(view: View) -> Contentment:
    """The verdict over a place."""
    judged = [*(_slowed(each) for each in view.devices), *(_crowded(each) for each in view.devices)]
    parts = [part for part in (*judged, _overcommitted(view)) if part is not None]
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
