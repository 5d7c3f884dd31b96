"""The pending requests, by team and shape, in the order in which a cycle considers them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heapreplace
from itertools import chain

from portal.scheduling.engine.member_order import (
    Group,
    Groups,
    MemberTurn,
    ShapeCursor,
    TierCursor,
    key_by_turn,
    member_turns,
    order_by_turns,
)
from portal.scheduling.engine.model import Workload
from portal.scheduling.engine.ranks import (
    NOMINATED,
    OVERDUE,
    UNRESERVED,
    USUAL,
    Key,
    Rank,
    Shape,
    rank_of,
    shape_of,
    takes_turns,
)
from portal.scheduling.engine.usage import Usage


class PendingQueue:
    """Pending requests by shape. Each list is sorted; `pick` merges them by the teams' shares.

    Order: first nominated requests (workloads are being preempted for them), then overdue requests, both by
    age. The others follow by priority, then by number of the back-fill reservation, then by due time.
    A request is due `due_after` times its duration after its creation, and later if its team borrows more
    (`Usage.delay_ms`). Members of the teams in `in_turns` take turns (`member_order`).
    """

    __slots__ = (
        "_ages",
        "_backfill_seqs",
        "_due_after",
        "_keys",
        "_lists",
        "_nominated",
        "in_turns",
        "items",
        "waiting",
    )

    def __init__(self, due_after: int = 0, in_turns: frozenset[str] = frozenset()) -> None:
        self._due_after = due_after
        self.in_turns = in_turns
        self.items: dict[str, Workload] = {}
        self.waiting: dict[str, int] = {}
        """Number of requests by resource, except those that can be met in several ways."""
        self._keys: dict[str, tuple[Group, Key]] = {}
        self._lists: dict[Group, list[Key]] = {}
        self._ages: list[tuple[int, str]] = []
        self._nominated: set[str] = set()
        self._backfill_seqs: dict[str, int] = {}

    def clone(self) -> PendingQueue:
        twin = PendingQueue.__new__(PendingQueue)
        twin._due_after, twin.in_turns = self._due_after, self.in_turns
        twin.items, twin._keys = dict(self.items), dict(self._keys)
        twin.waiting = dict(self.waiting)
        twin._lists = {group: list(keys) for group, keys in self._lists.items()}
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
        if not workload.flexible:
            for resource in workload.amounts:
                self.waiting[resource] = self.waiting.get(resource, 0) + change

    def count_requesting(self, resource: str) -> int:
        """Return the number of pending requests for the resource."""
        return sum(
            len(keys)
            for ((_, _, _, amounts), _, _), keys in self._lists.items()
            if any(name == resource and amount > 0 for name, amount in amounts)
        )

    def nominated(self) -> frozenset[str]:
        return frozenset(self._nominated)

    def nominate(self, workload_id: str, nominated: bool = True) -> None:
        """Move the request ahead of all that are not nominated, or back among them. Raises KeyError."""
        shape = self.shape_of(workload_id)
        self._discard(workload_id)
        (self._nominated.add if nominated else self._nominated.discard)(workload_id)
        self._insert(self.items[workload_id], shape, NOMINATED if nominated else USUAL)

    def reserve_start(self, workload_id: str) -> None:
        """Move the request ahead of all of its priority without a reserved start. Raises KeyError."""
        if workload_id in self._backfill_seqs:
            return
        (shape, _, _), key = self._keys[workload_id]
        self._discard(workload_id)
        self._backfill_seqs[workload_id] = 1 + max(self._backfill_seqs.values(), default=0)
        self._insert(self.items[workload_id], shape, key[0])

    def promote(self, created_until_s: int) -> None:
        """Move requests created up to this time ahead of all younger ones."""
        while self._ages and self._ages[0][0] <= created_until_s:
            _, workload_id = self._ages.pop(0)
            (shape, _, _), key = self._keys[workload_id]
            if key[0] == USUAL:
                self._discard(workload_id)
                self._insert(self.items[workload_id], shape, OVERDUE)

    def pick(self, usage: Usage, skipped: set[Shape]) -> Iterator[Workload]:
        """Yield each pending request once, best first by current shares, except shapes in `skipped`.

        The caller may start the yielded requests (shares only grow); it removes them after the iteration.
        """
        sources: list[ShapeCursor | TierCursor] = [
            ShapeCursor(group[0], keys, usage, skipped)
            for group, keys in self._lists.items()
            if group[1] is None
        ]
        sources += [TierCursor(groups, usage, skipped) for groups in self._tiers().values()]
        heads = ((source.head(), number) for number, source in enumerate(sources))
        # Shares only grow while the caller starts requests, so an unchanged rank at the top is the best.
        heap = [(head[0], number) for head, number in heads if head is not None]
        heapify(heap)
        while heap:
            rank, number = heap[0]
            source = sources[number]
            head = source.head()
            if head is not None and head[0] == rank:
                source.advance()
                self._replace_top(heap, source)
                yield self.items[head[1]]
            else:
                # Its shape does not fit, or the share of its team has grown.
                self._replace_top(heap, source)

    @staticmethod
    def _replace_top(heap: list[tuple[Rank, int]], source: ShapeCursor | TierCursor) -> None:
        """Replace the top of the heap by the present head of its source."""
        head = source.head()
        if head is None:
            heappop(heap)
        else:
            heapreplace(heap, (head[0], heap[0][1]))

    def position(self, workload_id: str, usage: Usage) -> int:
        """Return the request's position by current shares, from 1. Raises KeyError."""
        own, key = self._keys[workload_id]
        if own[1] is not None:
            key = key_by_turn(own, key, self._tier_of(own), usage)
        rank = rank_of(key, usage.delay_ms(own[0][0]))
        before = 0
        for group, keys in self._lists.items():
            before += bisect_left(keys, rank, key=partial(rank_of, delay_ms=usage.delay_ms(group[0][0])))
        return before + 1

    def _tiers(self) -> dict[tuple[str, int], list[tuple[Group, list[Key]]]]:
        """Return the lists of members that take turns, by team and priority."""
        tiers: dict[tuple[str, int], list[tuple[Group, list[Key]]]] = {}
        for group, keys in self._lists.items():
            if group[1] is not None:
                tiers.setdefault((group[0][0], group[2]), []).append((group, keys))
        return tiers

    def _tier_of(self, own: Group) -> Groups:
        """Return all lists of the tier to which a list belongs."""
        return [
            (group, keys)
            for group, keys in self._lists.items()
            if group[1] is not None and group[2] == own[2] and group[0][0] == own[0][0]
        ]

    def member_turns(self, usage: Usage) -> dict[tuple[str, int, str], MemberTurn]:
        """Return the turns by team, negative priority and member, where there are several members."""
        return {
            (team, priority, member): turn
            for (team, priority), groups in self._tiers().items()
            for member, turn in member_turns(groups, usage).items()
        }

    def shape_of(self, workload_id: str) -> Shape:
        """Return the shape of a pending request. Raises KeyError."""
        return self._keys[workload_id][0][0]

    def by_shape(self) -> Iterator[tuple[Shape, Sequence[Key]]]:
        """Yield the sorted keys of each shape; they determine the order up to shares and turns."""
        lists: dict[Shape, list[list[Key]]] = {}
        for group, keys in self._lists.items():
            lists.setdefault(group[0], []).append(keys)
        for shape, several in lists.items():
            yield shape, several[0] if len(several) == 1 else sorted(chain.from_iterable(several))

    def by_team(self) -> dict[str, list[tuple[str | None, Sequence[Key]]]]:
        """Return the sorted lists of keys by team, with their member if they take turns."""
        lists: dict[str, list[tuple[str | None, Sequence[Key]]]] = {}
        for (shape, member, _), keys in self._lists.items():
            lists.setdefault(shape[0], []).append((member, keys))
        return lists

    def positions(self, usage: Usage) -> dict[str, int]:
        """Return all positions by current shares, from 1. Faster than many calls of `position`."""
        ranks: list[tuple[Rank, str]] = []
        for group, keys in self._lists.items():
            if group[1] is None:
                delay_ms = usage.delay_ms(group[0][0])
                ranks.extend((rank_of(key, delay_ms), key[4]) for key in keys)
        for (team, _), groups in self._tiers().items():
            delay_ms = usage.delay_ms(team)
            ranks.extend((rank_of(place, delay_ms), name) for place, name in order_by_turns(groups, usage))
        ranks.sort()
        return {name: place for place, (_, name) in enumerate(ranks, 1)}

    def has_reserved_start(self, workload_id: str) -> bool:
        return workload_id in self._backfill_seqs

    def key_of(self, workload: Workload) -> Key:
        """Return the queue key of a pending or new request."""
        if workload.id in self._keys:
            return self._keys[workload.id][1]
        return self._key(workload, NOMINATED if workload.nominated else USUAL)

    def _key(self, workload: Workload, band: int) -> Key:
        # The overdue band is ordered by age, not priority.
        priority = 0 if band == OVERDUE else -workload.priority
        backfill_seq = self._backfill_seqs.get(workload.id) or workload.backfill_seq or UNRESERVED
        due_ms = workload.created_s * 1000 + workload.created_ms
        if band != USUAL:
            return (band, priority, 0, due_ms, workload.id, workload.duration_s)
        due_ms += self._due_after * workload.duration_s * 1000
        return (band, priority, backfill_seq, due_ms, workload.id, workload.duration_s)

    def _insert(self, workload: Workload, shape: Shape, band: int) -> None:
        key = self._key(workload, band)
        taking_turns = workload.team in self.in_turns and takes_turns(key)
        group: Group = (shape, workload.user, key[1]) if taking_turns else (shape, None, 0)
        self._keys[workload.id] = (group, key)
        insort(self._lists.setdefault(group, []), key)

    def _discard(self, workload_id: str) -> None:
        group, key = self._keys.pop(workload_id)
        keys = self._lists[group]
        del keys[bisect_left(keys, key)]
        if not keys:
            del self._lists[group]
