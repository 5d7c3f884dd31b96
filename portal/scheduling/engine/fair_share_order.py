"""Orders pending requests while shares change, because requests start and workloads end.

Shares of teams are tracked along the plan: a request counts from its slot on, and a workload that ends before
the latest slot no longer counts. The use of members that take turns is tracked in the same way. Shares of
nested cohorts are constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from copy import copy
from heapq import heapify, heappop, heappush, heapreplace

from portal.quota.limits.shares import fair_parts, fair_parts_above, share_of
from portal.scheduling.engine.model import Workload
from portal.scheduling.engine.pending import PendingQueue
from portal.scheduling.engine.ranks import Key, Rank, Shape, rank_of, takes_turns
from portal.scheduling.engine.scheduler_state import SchedulerState
from portal.scheduling.engine.usage import Usage


class _TeamShare:
    """A team's share and the resulting delay, while its usage changes."""

    __slots__ = (
        "_above",
        "_delay_of_ms",
        "_node",
        "delay_ms",
        "terms",
        "usage",
        "version",
    )

    def __init__(self, usage: Usage, team: str) -> None:
        self._node = node = usage.tree.teams[team]
        averages = usage.teams[team].borrowed_avg
        self.terms: dict[str, tuple[int, int, int, int]] = {}
        self.usage: dict[str, int] = {}
        if node.parent is not None:
            for name in node.root_names:
                self.terms[name] = (
                    node.quota[name],
                    averages.get(name, 0),
                    node.parent.potential(name),
                    node.weight_milli,
                )
                self.usage[name] = node.usage.get(name, 0)
        self._delay_of_ms = usage.delay_of_ms
        self._above = fair_parts_above(node)
        self.delay_ms = usage.delay_ms(team)
        self.version = 0

    def change(self, workload: Workload, sign: int) -> bool:
        """Add or remove the workload. Returns whether the delay changes."""
        touched = False
        for name, amount in workload.amounts.items():
            if name in self.usage:
                self.usage[name] += sign * amount
                touched = True
        if not touched:
            return False
        largest = 0
        for name, (quota, average, lendable, weight_milli) in self.terms.items():
            taken = max(0, self.usage[name] - quota) + average
            if taken > 0:
                largest = max(largest, share_of(taken, lendable, weight_milli))
        delay_ms = self._delay_of_ms(fair_parts(largest, self._node) + self._above)
        if delay_ms == self.delay_ms:
            return False
        self.delay_ms = delay_ms
        return True


class _Keys:
    """The keys of several sorted lists in order, one by one, except those of requests in `skipped`."""

    __slots__ = ("_heap", "_lists", "_skipped", "head")

    def __init__(self, lists: Sequence[Sequence[Key]], skipped: Set[str]) -> None:
        self._lists, self._skipped = lists, skipped
        self._heap = [(keys[0], number, 0) for number, keys in enumerate(lists)]
        heapify(self._heap)
        self.head: Key | None = self._heap[0][0]
        """The next key, or None at the end."""
        if self.head[4] in skipped:
            self.advance()

    def advance(self) -> None:
        """Move past `head`."""
        while self._heap:
            _, number, index = self._heap[0]
            keys = self._lists[number]
            index += 1
            if index < len(keys):
                heapreplace(self._heap, (keys[index], number, index))
            else:
                heappop(self._heap)
            if self._heap and self._heap[0][0][4] not in self._skipped:
                self.head = self._heap[0][0]
                return
        self.head = None


class _Members:
    """The use of a team's members who take turns, and their requests."""

    __slots__ = ("_changed", "_heap", "_keys", "_shares", "_usage")

    def __init__(self, usage: Usage, team: str, keys: Mapping[str, _Keys]) -> None:
        self._usage, self._keys = usage, keys
        self._shares = {member: usage.member_share(team, member) for member in keys}
        self._heap: list[tuple[int, int, Key, str]] = []
        self._changed: set[str] = set()
        for member in keys:
            self._push(member)

    def pick(self) -> str:
        """Return the id of the next request, of the highest priority and the member with the least use."""
        for member in self._changed:
            self._push(member)
        self._changed.clear()
        while True:
            _, share, key, member = heappop(self._heap)
            keys = self._keys[member]
            if keys.head is key and self._shares[member] == share:
                keys.advance()
                self._push(member)
                return key[4]

    def change(self, workload: Workload, sign: int) -> None:
        """Add or remove the workload."""
        if workload.user in self._shares:
            self._shares[workload.user] += sign * self._usage.weighted(workload.amounts)
            self._changed.add(workload.user)

    def _push(self, member: str) -> None:
        if (key := self._keys[member].head) is not None:
            heappush(self._heap, (key[1], self._shares[member], key, member))


class FairShareOrder:
    """Yields pending requests one by one; `record_start` records when each gets its slot."""

    def __init__(self, scheduler: SchedulerState, starting: frozenset[str]) -> None:
        self._scheduler, self._starting = scheduler, starting
        self._added: Workload | None = None
        self._lists = scheduler.pending.by_team()
        self._begin()

    def with_added(self, workload: Workload, key: Key) -> FairShareOrder:
        """Return the order from its start on, with one more request. `key` is its queue key."""
        twin = copy(self)
        twin._added = workload
        turn = (
            workload.user if workload.team in self._scheduler.pending.in_turns and takes_turns(key) else None
        )
        lists = [*self._lists.get(workload.team, ()), (turn, [key])]
        twin._lists = {**self._lists, workload.team: lists}
        twin._begin()
        return twin

    def _begin(self) -> None:
        """Set the state before the first pick."""
        usage = self._scheduler.usage
        self._accounts = {team: _TeamShare(usage, team) for team in usage.teams}
        self._keys = {
            team: _Keys([keys for _, keys in lists], self._starting) for team, lists in self._lists.items()
        }
        self._members = {
            team: _Members(usage, team, self._turns(team))
            for team in self._scheduler.pending.in_turns & self._lists.keys()
        }
        self._picked: set[str] = set()
        self._front_s = self._scheduler.now_s
        self._running: Iterator[tuple[int, Workload]] = self._scheduler.by_end()
        self._next_end = next(self._running, None)
        self._ends: list[tuple[int, str]] = []
        self._slotted: dict[str, Workload] = {}
        self._heap: list[tuple[Rank, int, str]] = []
        for team in self._keys:
            self._push(team, self._accounts[team])

    def _turns(self, team: str) -> dict[str, _Keys]:
        """Return the keys with which members take turns, by member."""
        turns: dict[str, list[Sequence[Key]]] = {}
        for member, keys in self._lists[team]:
            if member is not None:
                turns.setdefault(member, []).append(keys)
        return {member: _Keys(lists, self._starting) for member, lists in turns.items()}

    def pick(self) -> Workload | None:
        """Return the next request in the order, or None at the end."""
        while self._heap:
            _, version, team = heappop(self._heap)
            account, keys = self._accounts[team], self._keys[team]
            if version != account.version or (key := keys.head) is None:
                continue
            keys.advance()
            account.version += 1
            self._push(team, account)
            members = self._members.get(team)
            picked = members.pick() if members is not None and takes_turns(key) else key[4]
            self._picked.add(picked)
            if self._added is not None and picked == self._added.id:
                return self._added
            return self._scheduler.pending.items[picked]
        return None

    def remaining(self) -> Iterator[tuple[int, Sequence[Key]]]:
        """Yield the remaining keys by shape, with the current delay of the team.

        Ignores the turns of members.
        """
        gone = self._starting | self._picked
        for shape, keys in keys_without(self._scheduler.pending, gone):
            yield self._accounts[shape[0]].delay_ms, keys

    def rank_now(self, team: str, key: Key) -> Rank:
        """Return the rank of a request of the team by current shares."""
        return rank_of(key, self._accounts[team].delay_ms)

    def record_start(self, workload: Workload, start_s: int) -> None:
        """Record that the request has its slot from `start_s` on."""
        self._change(workload, 1)
        # The request as it starts, which may be on a later flavor than its first.
        self._slotted[workload.id] = workload
        heappush(self._ends, (start_s + workload.duration_s, workload.id))
        if start_s <= self._front_s:
            return
        self._front_s = start_s
        while self._next_end is not None and self._next_end[0] <= start_s:
            self._change(self._next_end[1], -1)
            self._next_end = next(self._running, None)
        while self._ends and self._ends[0][0] <= start_s:
            self._change(self._slotted.pop(heappop(self._ends)[1]), -1)

    def _change(self, workload: Workload, sign: int) -> None:
        account = self._accounts[workload.team]
        if (members := self._members.get(workload.team)) is not None:
            members.change(workload, sign)
        if account.change(workload, sign):
            account.version += 1
            self._push(workload.team, account)

    def _push(self, team: str, account: _TeamShare) -> None:
        if team in self._keys and (key := self._keys[team].head) is not None:
            heappush(self._heap, (rank_of(key, account.delay_ms), account.version, team))


def keys_without(pending: PendingQueue, gone: Set[str]) -> Iterator[tuple[Shape, Sequence[Key]]]:
    """Yield the sorted keys of each shape, except those in `gone`."""
    touched = {pending.shape_of(name) for name in gone}
    for shape, keys in pending.by_shape():
        left = [key for key in keys if key[4] not in gone] if shape in touched else keys
        if left:
            yield shape, left
