"""Back-fill reservations (Slurm): when blocked requests can start, and the capacity back-fill must spare."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Protocol, runtime_checkable

from portal.common.reasons.reason import Reason
from portal.quota.limits.types import Amounts
from portal.scheduling.engine.model import BackfillReservation, Policy, Running, Workload
from portal.scheduling.engine.usage import PromisedAmounts, Usage, within_nominal

ExpectedEnd = tuple[int, str, Workload]
CapacityForecast = tuple[int, tuple[str, ...]]
"""A time (Unix time), and the ids of the workloads that have left by then."""
MAX_ASSUMED_ENDS = 512
"""Maximum number of workloads that a look-ahead at the nodes assumes to have ended."""


class Placer(Protocol):
    """Decides where a workload goes. Quota may be free although no single node has room.

    With a `SimulatingPlacer`, reserved starts keep their capacity on the nodes too.
    """

    def fits(self, workload: Workload, gone: Sequence[str]) -> bool:
        """Return whether the workload could be placed if the workloads in `gone` had left."""

    def take(self, workload: Workload) -> None:
        """Take the capacity of the workload for later calls."""


@runtime_checkable
class SimulatingPlacer(Protocol):
    """A placer that can simulate one placement and then test another."""

    def fits_beside(
        self, reserved: Workload, ended: Sequence[str], other: Workload, ended_first: Sequence[str]
    ) -> bool:
        """Return whether `reserved` fits beside `other` once the workloads `ended` have left.

        `other` is placed as soon as the workloads `ended_first` have left. Takes no capacity. Returns False
        if `other` does not fit.
        """


@runtime_checkable
class ChoosingPlacer(Protocol):
    """A placer that compares all ways to meet a request. Other placers take the first that fits."""

    def choose(
        self, workload: Workload, ways: Sequence[Amounts], waiting: Mapping[str, int]
    ) -> Amounts | None:
        """Return the best of `ways` that fits on the nodes, or None. `take` then takes that place.

        `waiting` is the number of pending requests by resource, except those with alternatives.
        """


@runtime_checkable
class ServicePlacer(Protocol):
    """A placer that knows which nodes are out of service, so that their freed capacity is not available."""

    def lost_contact(self, workload: Workload) -> Reason | None:
        """Return why the start is unknown if no node that could take the workload reports, else None."""

    def closed_nodes_in_use(self, workload: Workload) -> bool:
        """Return whether work runs on nodes of the workload's pools that take no new work."""


@runtime_checkable
class PrefixPlacer(Protocol):
    """A placer that answers repeated queries about prefixes of one list faster."""

    def prefix_fits(self) -> AbstractContextManager[Callable[[Workload, Sequence[str]], bool]]:
        """Return a context with a function like `fits` for prefixes of one list. Call nothing else inside."""


@dataclass(slots=True)
class ReservedStart:
    """A back-fill reservation, and the usage at its start including the request.

    - `gone`: workloads whose end frees the capacity on the nodes; None without a placer.
    - `borrows`: its team would borrow, so a quota owner in another team overtakes the request.
    - `overtaken`: a quota owner has taken the capacity.
    """

    backfill: BackfillReservation
    workload: Workload
    usage: Usage
    nominated: bool = False
    gone: tuple[str, ...] | None = None
    borrows: bool = False
    overtaken: bool = False

    def allows(self, other: Workload, now_s: int, placer: Placer | None) -> bool:
        """Return whether starting `other` now leaves the reserved start unchanged."""
        if now_s + other.duration_s <= self.backfill.start_s:
            return True
        if self.usage.shortfall(other, self.backfill.start_s) is not None:
            return False
        if self.gone is None or not isinstance(placer, SimulatingPlacer):
            return True
        return placer.fits_beside(self.workload, self.gone, other, ())

    def allows_swap(
        self, other: Workload, victims: Iterable[Running], from_s: int, placer: Placer | None
    ) -> bool:
        """Return whether `other` can replace `victims` from `from_s` on without delaying this start."""
        start_s = self.backfill.start_s
        if from_s + other.duration_s <= start_s:
            return True
        stayed = [victim for victim in victims if victim.ends_s > start_s]
        for victim in stayed:
            self.usage.remove(victim.workload)
        fits = self.usage.shortfall(other, start_s) is None
        for victim in stayed:
            self.usage.add(victim.workload)
        if not fits or self.gone is None or not isinstance(placer, SimulatingPlacer):
            return fits
        left = [victim.workload.id for victim in victims]
        return placer.fits_beside(self.workload, [*self.gone, *left], other, left)

    def swap(self, other: Workload, victims: Iterable[Running], from_s: int) -> None:
        """Apply a swap that `allows_swap` has permitted."""
        for victim in victims:
            if victim.ends_s > self.backfill.start_s:
                self.usage.remove(victim.workload)
        if from_s + other.duration_s > self.backfill.start_s:
            self.usage.add(other)


def binding_reserved_starts(
    workload: Workload, usage: Usage, reserved_starts: Sequence[ReservedStart], promised: PromisedAmounts
) -> Sequence[ReservedStart]:
    """Return the reserved starts that the request must not delay.

    Returns all, except that a quota owner overtakes those for which another team would borrow.
    """
    others = [start for start in reserved_starts if not start.borrows or start.workload.team == workload.team]
    if len(others) < len(reserved_starts) and within_nominal(usage, workload, promised):
        return others
    return reserved_starts


def expected_ends(
    ends: Sequence[tuple[int, str]],
    running: Mapping[str, Running],
    now_s: int,
    policy: Policy,
    preempted: Iterable[str],
    more: Iterable[tuple[int, Workload]],
) -> Iterator[ExpectedEnd]:
    """Yield expected ends in order: running workloads (those in `preempted` end sooner) and `more`."""
    moved = set(preempted)
    early: list[ExpectedEnd] = [(end_s, workload.id, workload) for end_s, workload in more]
    for name in moved:
        early.append((min(running[name].ends_s, now_s + policy.grace_s), name, running[name].workload))
    first = 0
    while first < len(ends) and ends[first][0] <= now_s:
        name = ends[first][1]
        if name not in moved:
            early.append((now_s + policy.overdue_s, name, running[name].workload))
        first += 1
    early.sort(key=itemgetter(0, 1))
    usual = (
        (end_s, name, running[name].workload)
        for end_s, name in (ends[index] for index in range(first, len(ends)))
        if name not in moved
    )
    return merge(usual, early, key=itemgetter(0, 1))


def find_reserved_start(
    workload: Workload,
    resource: str,
    now_s: int,
    usage: Usage,
    ends: Iterator[ExpectedEnd],
    earlier: Sequence[ReservedStart],
) -> ReservedStart | None:
    """Return the earliest start after running workloads and those of `earlier` end, or None if never."""
    later = usage.clone()
    for other in earlier:
        later.add(other.workload)
    following = next(ends, None)
    at_s = now_s
    while True:
        # The next time at which capacity is freed or a reservation ends.
        moments = [following[0]] if following is not None else []
        moments += [
            reservation.end_s for reservation in later.calendar.reservations if reservation.end_s > at_s
        ]
        if not moments:
            return None
        at_s = min(moments)
        while following is not None and following[0] <= at_s:
            later.remove(following[2])
            following = next(ends, None)
        if later.shortfall(workload, at_s) is None:
            break
    later.add(workload)
    return ReservedStart(BackfillReservation(workload.id, at_s, resource), workload, later)


class LookAhead:
    """The usage and the nodes after some workloads have left, at one point of a cycle (`key`)."""

    __slots__ = ("_names", "_results", "_usage", "key")

    def __init__(self, key: object, usage: Usage, gone: Sequence[Workload], running: Container[str]) -> None:
        self.key = key
        self._usage = usage.clone()
        for other in gone:
            self._usage.remove(other)
        self._names = [other.id for other in gone if other.id in running]
        self._results: dict[object, bool] = {}

    def fits(
        self,
        workload: Workload,
        at_s: int,
        reserved_starts: Sequence[ReservedStart],
        placer: Placer | None,
    ) -> bool:
        """Return whether the workload fits at that time, in addition to `reserved_starts`."""
        for reserved_start in reserved_starts:
            self._usage.add(reserved_start.workload)
        fits = self._usage.shortfall(workload, at_s) is None
        for reserved_start in reserved_starts:
            self._usage.remove(reserved_start.workload)
        if not fits or placer is None:
            return fits
        # Nodes do not distinguish between teams.
        alike = (workload.place, tuple(sorted(workload.amounts.items())))
        result = self._results.get(alike)
        if result is None:
            result = self._results[alike] = placer.fits(workload, self._names)
        return result


class CapacityForecasts:
    """Forecasts of when nodes will have capacity, cached for one cycle: one look-ahead per distinct request.

    `key` identifies the point of the cycle by its victims and placements so far.
    """

    __slots__ = ("_forecasts",)

    def __init__(self) -> None:
        self._forecasts: dict[object, CapacityForecast | None] = {}

    def get(
        self, workload: Workload, key: object, compute: Callable[[], CapacityForecast | None]
    ) -> CapacityForecast | None:
        # Nodes do not distinguish between teams.
        alike = (key, workload.place, tuple(sorted(workload.amounts.items())))
        if alike not in self._forecasts:
            self._forecasts[alike] = compute()
        return self._forecasts[alike]


def forecast_capacity(
    workload: Workload, ends: Iterator[ExpectedEnd], placer: Placer
) -> CapacityForecast | None:
    """Return when enough workloads will have ended for the request to fit, and which ones; None if not soon.

    Doubles the number of ended workloads, then bisects, to limit the calls to the placer.
    """
    with placer.prefix_fits() if isinstance(placer, PrefixPlacer) else nullcontext(placer.fits) as fits:
        expected: list[ExpectedEnd] = []
        needed = step = 1
        while True:
            while len(expected) < step:
                following = next(ends, None)
                if following is None:
                    break
                expected.append(following)
            if not expected:
                return None
            if fits(workload, [name for _, name, _ in expected]):
                break
            if len(expected) < step or step >= MAX_ASSUMED_ENDS:
                return None
            needed, step = len(expected) + 1, step * 2
        low, high = needed, len(expected)
        while low < high:
            middle = (low + high) // 2
            if fits(workload, [name for _, name, _ in expected[:middle]]):
                high = middle
            else:
                low = middle + 1
        return expected[high - 1][0], tuple(name for _, name, _ in expected[:high])
