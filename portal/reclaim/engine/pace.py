"""The pace of a workspace by its own metrics, compared between placements. Pure.

Rates are compared for the same metric of the same workspace with equal amounts. Rates are averages over 10
minutes, so a single slow minute does not matter, and work counts as slow only after `SLOW_FOR_S`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

SLOW_PCT = 80
"""Percentage of the best rate elsewhere below which work is slow."""
SLOW_FOR_S = 600.0
KEPT_S = 7 * 86_400.0
"""Maximum age of a best rate in seconds. Older rates may be from other work."""
MAX_GAP_S = 150.0
"""Maximum seconds between two reports for the time to count as observed."""
BETTER_FACTOR = 1.01
"""Minimum factor by which a new best rate must exceed the old one to be recorded, to save writes."""


MAX_KEPT = 8
"""Maximum number of metrics per workspace, because a job may report new names every minute."""


@dataclass(frozen=True, slots=True)
class Location:
    """A node and some of its devices. `kind` is equal for equal amounts of equal devices."""

    node: str
    devices: frozenset[str]
    kind: str


@dataclass(frozen=True, slots=True)
class Best:
    """The highest rate at a placement, and its time."""

    node: str
    devices: frozenset[str]
    rate: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Pace:
    """The stored state of a metric: best rates here and elsewhere, and since when it is slow.

    `rate` and `at_s` are from the last stored observation, which may be old unless the work is slow.
    """

    place: Location
    rate: float
    at_s: float
    here: Best
    elsewhere: Best | None = None
    slow_since_s: float | None = None

    @property
    def percent(self) -> int | None:
        """The rate relative to the best elsewhere, or None."""
        return None if self.elsewhere is None else int(100 * self.rate / self.elsewhere.rate)


def update_paces(
    before: Mapping[str, Pace], rates: Mapping[str, float], place: Location, at_s: float
) -> dict[str, Pace]:
    """Return the paces after a report by metric. Metrics not reported are unchanged.

    Work is slow if all reported metrics with a known rate elsewhere are slow. If one metric keeps its pace,
    the job has changed rather than its placement.
    """
    paces = {name: _next_pace(before.get(name), rate, place, at_s) for name, rate in rates.items()}
    percents = [pace.percent for pace in paces.values() if pace.percent is not None]
    slow = bool(percents) and max(percents) < SLOW_PCT
    for name, pace in paces.items():
        if not slow or pace.percent is None:
            paces[name] = replace(pace, slow_since_s=None)
    others = sorted(before.keys() - paces.keys(), key=lambda name: (-before[name].at_s, name))
    room = max(0, MAX_KEPT - len(paces))
    return paces | {name: before[name] for name in others[:room]}


def _next_pace(before: Pace | None, rate: float, place: Location, at_s: float) -> Pace:
    """Return the pace of a metric after a report, assuming it is slow."""
    best = Best(place.node, place.devices, rate, at_s)
    if before is None or before.place.kind != place.kind:
        return Pace(place, rate, at_s, best, None, at_s)
    elsewhere, since = [before.elsewhere], at_s
    if before.place == place:
        if rate < BETTER_FACTOR * before.here.rate and _is_fresh(before.here, at_s):
            best = before.here
        if before.slow_since_s is not None and 0 <= at_s - before.at_s <= MAX_GAP_S:
            since = before.slow_since_s
    else:
        elsewhere.append(before.here)
    others = [best for best in elsewhere if best is not None and _is_other(best, place, at_s)]
    return Pace(place, rate, at_s, best, max(others, key=lambda other: other.rate, default=None), since)


def _is_other(best: Best, place: Location, at_s: float) -> bool:
    return (best.node, best.devices) != (place.node, place.devices) and _is_fresh(best, at_s)


def _is_fresh(best: Best, at_s: float) -> bool:
    return 0 <= at_s - best.at_s <= KEPT_S


def slow_work(paces: Mapping[str, Pace], now_s: float) -> tuple[str, Pace] | None:
    """Return the metric with the best pace if the work has been slow for long enough, else None."""
    slow = {
        name: pace
        for name, pace in paces.items()
        if pace.slow_since_s is not None
        and 0 <= now_s - pace.at_s <= 2 * MAX_GAP_S
        and pace.at_s - pace.slow_since_s >= SLOW_FOR_S
    }
    return max(slow.items(), key=lambda item: (item[1].percent or 0, item[0])) if slow else None


def has_to_be_written(before: Mapping[str, Pace], after: Mapping[str, Pace]) -> bool:
    """Return whether the paces have to be written."""
    if before.keys() != after.keys():
        return True
    return any(_is_new(before[name], pace) for name, pace in after.items())


def _is_new(before: Pace, after: Pace) -> bool:
    if after.slow_since_s is not None:
        return after != before
    return replace(after, rate=before.rate, at_s=before.at_s) != before
