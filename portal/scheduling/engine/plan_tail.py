"""Expected starts far back in the queue, estimated from the work ahead instead of individual slots.

Up to each time, each limit has room for a certain amount of work (amount times seconds). A request starts
when all work ahead of it has had room in each of its limits, but not before it would fit alone. Requests of
one shape take the same amounts of the same limits, so the work ahead is summed by shape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Protocol

import numpy as np
import numpy.typing as npt

from portal.scheduling.engine.model import Eta, Workload
from portal.scheduling.engine.ranks import Key, Rank, rank_of

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Demand = tuple[tuple[int, int], ...]


class Slots(Protocol):
    """The part of the plan that the tail uses. Rows are limits, times are indexes of the grid."""

    @property
    def grid(self) -> Ints: ...

    @property
    def limited(self) -> Set[str]: ...

    def remaining_of(self, row: int) -> Ints: ...

    def demand(self, workload: Workload) -> Demand: ...

    def eta_if_impossible(self, workload: Workload) -> Eta | None: ...

    def start_key(self, workload: Workload) -> str: ...

    def start_if_first(self, workload: Workload) -> tuple[int, Eta]: ...

    def eta_at(self, index: int) -> Eta: ...


class _Shape:
    """Requests with equal demands, in order, and the delay by their team's share.

    Requests that can never start take no room from others: `taken` is empty, and `never` is their ETA.
    """

    def __init__(self, slots: Slots, first: Workload, keys: Sequence[Key], delay_ms: int) -> None:
        self.first, self.keys, self.delay_ms = first, keys, delay_ms
        self._slots = slots
        self._before: list[int] | None = None

    @cached_property
    def never(self) -> Eta | None:
        return self._slots.eta_if_impossible(self.first)

    @cached_property
    def taken(self) -> dict[int, int]:
        """The amount that each of them takes of each limit."""
        return {} if self.never is not None else dict(self._slots.demand(self.first))

    def seconds_before(self, rank: Rank) -> int:
        """Return the total duration in seconds of requests of this shape ahead of the rank."""
        if self._before is None:
            self._before = list(accumulate((key[5] for key in self.keys), initial=0))
        return self._before[bisect_left(self.keys, rank, key=partial(rank_of, delay_ms=self.delay_ms))]


class Tail:
    """The ETAs of requests after the plan's individual slots, in rank order.

    `waiting` yields their keys by shape, each with the delay by its team's share.
    """

    def __init__(
        self,
        slots: Slots,
        items: Mapping[str, Workload],
        waiting: Iterable[tuple[int, Sequence[Key]]],
    ) -> None:
        self._slots = slots
        self._items = items
        self._shapes = [_Shape(slots, items[keys[0][4]], keys, delay_ms) for delay_ms, keys in waiting]
        self._alone: dict[object, tuple[int, Eta]] = {}
        self._room: dict[int, Floats] = {}
        self._etas: dict[str, Eta] | None = None

    def etas(self) -> dict[str, Eta]:
        """Return all ETAs by id."""
        if self._etas is None:
            self._etas = self._all_etas()
        return self._etas

    def eta_at_rank(self, workload: Workload, rank: Rank) -> Eta:
        """Return the ETA of an additional request with this rank, or of the one that has it."""
        never = self._slots.eta_if_impossible(workload)
        if never is not None:
            return never
        demand = self._slots.demand(workload)
        needed_rows = {row for row, amount in demand if amount}
        before = dict.fromkeys(needed_rows, 0)
        resources = self._slots.limited & {name for name, amount in workload.amounts.items() if amount}
        for shape in self._shapes:
            if resources.isdisjoint(shape.first.amounts):
                continue
            rows = needed_rows & shape.taken.keys()
            if rows and (seconds := shape.seconds_before(rank)):
                for row in rows:
                    before[row] += shape.taken[row] * seconds
        first = max((self._starts(row, work) for row, work in before.items()), default=0)
        return self._eta(workload, demand, int(first))

    def _all_etas(self) -> dict[str, Eta]:
        waiting = [
            (rank_of(key, shape.delay_ms), number, key[5])
            for number, shape in enumerate(self._shapes)
            for key in shape.keys
        ]
        waiting.sort()
        of = np.array([number for _, number, _ in waiting], np.intp)
        durations = np.array([duration_s for _, _, duration_s in waiting], np.float64)
        first = np.zeros(len(waiting), np.int64)
        for row in {row for shape in self._shapes for row in shape.taken}:
            amounts = np.array([shape.taken.get(row, 0) for shape in self._shapes], np.float64)[of]
            takers = np.flatnonzero(amounts)
            work = amounts[takers] * durations[takers]
            before = np.concatenate([[0.0], np.cumsum(work)[:-1]])
            first[takers] = np.maximum(first[takers], self._starts(row, before))
        etas = {}
        for (rank, number, _), index in zip(waiting, first.tolist(), strict=True):
            shape = self._shapes[number]
            workload = self._items[rank[4]]
            etas[workload.id] = shape.never or self._eta(workload, tuple(shape.taken.items()), index)
        return etas

    def _eta(self, workload: Workload, demand: Demand, first: int) -> Eta:
        alone, eta = self._start_alone(workload, demand)
        if eta.eta_s is None or first <= alone:
            return eta
        return self._slots.eta_at(first)

    def _start_alone(self, workload: Workload, demand: Demand) -> tuple[int, Eta]:
        """Return the result of `Slots.start_if_first`, with the duration rounded down to a power of two."""
        bits = workload.duration_s.bit_length()
        key = (demand, bits, workload.preemptible, self._slots.start_key(workload))
        start = self._alone.get(key)
        if start is None:
            start = self._alone[key] = self._slots.start_if_first(replace(workload, duration_s=1 << bits - 1))
        return start

    def _starts(self, row: int, before: float | Floats) -> Ints:
        """Return the first grid time until which a limit has room for this much work."""
        room = self._room.get(row)
        if room is None:
            left = self._slots.remaining_of(row)
            steps = np.diff(self._slots.grid) * np.maximum(0, left[:-1])
            room = self._room[row] = np.concatenate([[0.0], np.cumsum(steps, dtype=np.float64)])
        starts: Ints = np.searchsorted(room, before)
        return starts
