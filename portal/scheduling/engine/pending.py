"""The pending requests, by team and shape, in the order in which a cycle considers them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heapreplace

from portal.scheduling.engine.model import Workload
from portal.scheduling.engine.usage import Usage

Shape = tuple[str, str, str, tuple[tuple[str, int], ...]]
Key = tuple[int, int, int, int, str, int]
"""Band, negative priority, number of the back-fill reservation, due time in ms, id, and duration in seconds,
which does not affect the order.
"""
Rank = tuple[int, int, int, int, str]
"""A key whose due time includes the delay of the team's share."""
NOMINATED, OVERDUE, USUAL = 0, 1, 2
UNRESERVED = 1 << 60


def shape_of(workload: Workload, capped: bool) -> Shape:
    """Return the key of everything that decides whether a request fits: equal shapes fit alike."""
    user = workload.user if capped else ""
    return (workload.team, user, workload.place, tuple(sorted(workload.amounts.items())))


class PendingQueue:
    """Pending requests by shape. Each list is sorted; `pick` merges them by the teams' shares.

    Order: nominated (workloads are being preempted for it), overdue, then priority, number of the back-fill
    reservation, due time. A request is due `due_after` times its duration after its creation, and later the
    more its team borrows (`Usage.delay_ms`). In the first two bands only age counts.
    """

    __slots__ = ("_ages", "_backfill_seqs", "_due_after", "_keys", "_lists", "_nominated", "items", "waiting")

    def __init__(self, due_after: int = 0) -> None:
        self._due_after = due_after
        self.items: dict[str, Workload] = {}
        self.waiting: dict[str, int] = {}
        """Number of requests by resource, without those that have alternatives."""
        self._keys: dict[str, tuple[Shape, Key]] = {}
        self._lists: dict[Shape, list[Key]] = {}
        self._ages: list[tuple[int, str]] = []
        self._nominated: set[str] = set()
        self._backfill_seqs: dict[str, int] = {}

    def clone(self) -> PendingQueue:
        twin = PendingQueue.__new__(PendingQueue)
        twin._due_after = self._due_after
        twin.items, twin._keys = dict(self.items), dict(self._keys)
        twin.waiting = dict(self.waiting)
        twin._lists = {shape: list(keys) for shape, keys in self._lists.items()}
        twin._ages, twin._nominated = list(self._ages), set(self._nominated)
        twin._backfill_seqs = dict(self._backfill_seqs)
        return twin

    def __len__(self) -> int:
        return len(self.items)

    def add(self, workload: Workload, capped: bool) -> None:
        if workload.id in self.items:
            raise ValueError(f"{workload.id!r} waits already")
        self.items[workload.id] = workload
        self._count(workload, 1)
        insort(self._ages, (workload.created_s, workload.id))
        if workload.nominated:
            self._nominated.add(workload.id)
        if workload.backfill_seq:
            self._backfill_seqs[workload.id] = workload.backfill_seq
        self._insert(workload, shape_of(workload, capped), NOMINATED if workload.nominated else USUAL)

    def remove(self, workload_id: str) -> Workload:
        """Remove and return the request. Raises KeyError if it is not pending."""
        workload = self.items.pop(workload_id)
        self._count(workload, -1)
        self._discard(workload_id)
        age = (workload.created_s, workload_id)
        index = bisect_left(self._ages, age)
        if index < len(self._ages) and self._ages[index] == age:
            del self._ages[index]
        self._nominated.discard(workload_id)
        self._backfill_seqs.pop(workload_id, None)
        return workload

    def _count(self, workload: Workload, change: int) -> None:
        if not workload.alternatives:
            for resource in workload.amounts:
                self.waiting[resource] = self.waiting.get(resource, 0) + change

    def asking(self, resource: str) -> int:
        """Return the number of pending requests for the resource."""
        return sum(
            len(keys)
            for (_, _, _, amounts), keys in self._lists.items()
            if any(name == resource and amount > 0 for name, amount in amounts)
        )

    def nominated(self) -> frozenset[str]:
        return frozenset(self._nominated)

    def nominate(self, workload_id: str, nominated: bool = True) -> None:
        """Move the request ahead of all that are not nominated, or back among them. Raises KeyError."""
        shape, _ = self._keys[workload_id]
        self._discard(workload_id)
        (self._nominated.add if nominated else self._nominated.discard)(workload_id)
        self._insert(self.items[workload_id], shape, NOMINATED if nominated else USUAL)

    def reserve_start(self, workload_id: str) -> None:
        """Move the request ahead of all of its priority without a reserved start. Raises KeyError."""
        if workload_id in self._backfill_seqs:
            return
        shape, key = self._keys[workload_id]
        self._discard(workload_id)
        self._backfill_seqs[workload_id] = 1 + max(self._backfill_seqs.values(), default=0)
        self._insert(self.items[workload_id], shape, key[0])

    def promote(self, created_until_s: int) -> None:
        """Move requests created up to this time ahead of all younger ones."""
        while self._ages and self._ages[0][0] <= created_until_s:
            _, workload_id = self._ages.pop(0)
            shape, key = self._keys[workload_id]
            if key[0] == USUAL:
                self._discard(workload_id)
                self._insert(self.items[workload_id], shape, OVERDUE)

    def pick(self, usage: Usage, passed: set[Shape]) -> Iterator[Workload]:
        """Yield each pending request once, best first by current shares, except shapes in `passed`.

        The caller may start the yielded requests (shares only grow); it removes them after the iteration.
        """
        seen: dict[Shape, int] = dict.fromkeys(self._lists, 0)
        # Shares only grow while the caller starts requests, so an unchanged rank at the top is the best.
        heap = [(self._rank(shape, 0, usage), shape) for shape in seen]
        heapify(heap)
        while heap:
            rank, shape = heap[0]
            if shape in passed:
                heappop(heap)
                continue
            index = seen[shape]
            now = self._rank(shape, index, usage)
            if now != rank:
                # The share of its team has grown, so another request may be better.
                heapreplace(heap, (now, shape))
                continue
            seen[shape] = index + 1
            if index + 1 < len(self._lists[shape]):
                heapreplace(heap, (self._rank(shape, index + 1, usage), shape))
            else:
                heappop(heap)
            yield self.items[rank[4]]

    def position(self, workload_id: str, usage: Usage) -> int:
        """Return the request's position by current shares, from 1. Raises KeyError."""
        own, key = self._keys[workload_id]
        rank = rank_of(key, usage.delay_ms(own[0]))
        before = 0
        for shape, keys in self._lists.items():
            before += bisect_left(keys, rank, key=partial(rank_of, delay_ms=usage.delay_ms(shape[0])))
        return before + 1

    def shape_of(self, workload_id: str) -> Shape:
        """Return the shape of a pending request. Raises KeyError."""
        return self._keys[workload_id][0]

    def _rank(self, shape: Shape, index: int, usage: Usage) -> Rank:
        return rank_of(self._lists[shape][index], usage.delay_ms(shape[0]))

    def by_shape(self) -> Iterator[tuple[Shape, Sequence[Key]]]:
        """Yield the sorted keys of each shape; they determine the order up to the shares."""
        return iter(self._lists.items())

    def positions(self, usage: Usage) -> dict[str, int]:
        """Return all positions by current shares, from 1. Faster than many calls of `position`."""
        ranks: list[Rank] = []
        for shape, keys in self._lists.items():
            delay_ms = usage.delay_ms(shape[0])
            ranks.extend(rank_of(key, delay_ms) for key in keys)
        ranks.sort()
        return {rank[4]: place for place, rank in enumerate(ranks, 1)}

    def has_reserved_start(self, workload_id: str) -> bool:
        return workload_id in self._backfill_seqs

    def key_of(self, workload: Workload) -> Key:
        """Return the queue key of a pending or new request."""
        if workload.id in self._keys:
            return self._keys[workload.id][1]
        return self._key(workload, NOMINATED if workload.nominated else USUAL)

    def _key(self, workload: Workload, band: int) -> Key:
        # In the overdue band only age counts, not priority.
        priority = 0 if band == OVERDUE else -workload.priority
        backfill_seq = self._backfill_seqs.get(workload.id) or workload.backfill_seq or UNRESERVED
        due_ms = workload.created_s * 1000 + workload.created_ms
        if band != USUAL:
            return (band, priority, 0, due_ms, workload.id, workload.duration_s)
        due_ms += self._due_after * workload.duration_s * 1000
        return (band, priority, backfill_seq, due_ms, workload.id, workload.duration_s)

    def _insert(self, workload: Workload, shape: Shape, band: int) -> None:
        key = self._key(workload, band)
        self._keys[workload.id] = (shape, key)
        insort(self._lists.setdefault(shape, []), key)

    def _discard(self, workload_id: str) -> None:
        shape, key = self._keys.pop(workload_id)
        keys = self._lists[shape]
        del keys[bisect_left(keys, key)]
        if not keys:
            del self._lists[shape]


def rank_of(key: Key, delay_ms: int) -> Rank:
    band, priority, usual, due_ms, name, _ = key
    return (band, priority, usual, due_ms + delay_ms if usual == UNRESERVED else due_ms, name)
