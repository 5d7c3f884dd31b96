"""How fast the work of a workspace goes on, as it tells itself, against the best at another place. Pure.

Rates are compared under one name of one workspace with the same amounts of everything. They are those of ten
minutes, so one slow minute is none; and a rate says nothing as long as it is slow for less than `SLOW_FOR_S`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

SLOW_PCT = 80
"""Below this part of its best elsewhere work is slow."""
SLOW_FOR_S = 600.0
KEPT_S = 7 * 86_400.0
"""A best that is older was of other work, for all that can be said."""
MAX_GAP_S = 150.0
"""A longer time between two reports was not watched."""
BETTER = 1.01
"""A best is told of again only from so much better on: else it would be written with every look."""


MAX_KEPT = 8
"""Names of one workspace that are kept: a job may tell others every minute."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node and the devices of it. `kind` is equal for the same amounts of the same devices."""

    node: str
    devices: frozenset[str]
    kind: str


@dataclass(frozen=True, slots=True)
class Best:
    """The highest rate at a place, and when that was."""

    node: str
    devices: frozenset[str]
    rate: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Pace:
    """What is kept of a name: the best here and elsewhere, and of slow work since when it is.

    `rate` and `at_s` are of the last look that was kept: those of work that is not slow may be old.
    """

    place: Place
    rate: float
    at_s: float
    here: Best
    elsewhere: Best | None = None
    slow_since_s: float | None = None

    @property
    def percent(self) -> int | None:
        """The rate against the best elsewhere; None where there is none."""
        return None if self.elsewhere is None else int(100 * self.rate / self.elsewhere.rate)


def observe(
    before: Mapping[str, Pace], told: Mapping[str, float], place: Place, at_s: float
) -> dict[str, Pace]:
    """The paces of a workspace after a report, by name; of names that it does not tell as they were.

    Work is slow where all is slow of what it tells and has told elsewhere: where one count goes on as it did,
    it is the job that has changed, and not its place.
    """
    found = {name: _one(before.get(name), rate, place, at_s) for name, rate in told.items()}
    known = [pace.percent for pace in found.values() if pace.percent is not None]
    slow = bool(known) and max(known) < SLOW_PCT
    for name, pace in found.items():
        if not slow or pace.percent is None:
            found[name] = replace(pace, slow_since_s=None)
    others = sorted(before.keys() - found.keys(), key=lambda name: (-before[name].at_s, name))
    room = max(0, MAX_KEPT - len(found))
    return found | {name: before[name] for name in others[:room]}


def _one(before: Pace | None, rate: float, place: Place, at_s: float) -> Pace:
    """A name after a report that has it, as if it were slow."""
    here = Best(place.node, place.devices, rate, at_s)
    if before is None or before.place.kind != place.kind:
        return Pace(place, rate, at_s, here, None, at_s)
    elsewhere, since = [before.elsewhere], at_s
    if before.place == place:
        if rate < BETTER * before.here.rate and _is_fresh(before.here, at_s):
            here = before.here
        if before.slow_since_s is not None and 0 <= at_s - before.at_s <= MAX_GAP_S:
            since = before.slow_since_s
    else:
        elsewhere.append(before.here)
    others = [each for each in elsewhere if each is not None and _is_other(each, place, at_s)]
    return Pace(place, rate, at_s, here, max(others, key=lambda each: each.rate, default=None), since)


def _is_other(best: Best, place: Place, at_s: float) -> bool:
    return (best.node, best.devices) != (place.node, place.devices) and _is_fresh(best, at_s)


def _is_fresh(best: Best, at_s: float) -> bool:
    return 0 <= at_s - best.at_s <= KEPT_S


def slow_work(paces: Mapping[str, Pace], now_s: float) -> tuple[str, Pace] | None:
    """Of work that has been slow for long enough, until now, the name that goes on best; else None."""
    slow = {
        name: pace
        for name, pace in paces.items()
        if pace.slow_since_s is not None
        and 0 <= now_s - pace.at_s <= 2 * MAX_GAP_S
        and pace.at_s - pace.slow_since_s >= SLOW_FOR_S
    }
    return max(slow.items(), key=lambda each: (each[1].percent or 0, each[0])) if slow else None


def is_worth_keeping(before: Mapping[str, Pace], after: Mapping[str, Pace]) -> bool:
    """Whether paces have to be written: of work that goes on as it did nothing is."""
    if before.keys() != after.keys():
        return True
    return any(_is_new(before[name], pace) for name, pace in after.items())


def _is_new(before: Pace, after: Pace) -> bool:
    if after.slow_since_s is not None:
        return after != before
    return replace(after, rate=before.rate, at_s=before.at_s) != before
