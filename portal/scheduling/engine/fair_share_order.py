"""Orders pending requests while shares change, because requests start and workloads end.

Shares of teams are tracked along the plan: a request counts from its slot on, and a workload that ends before
the latest slot no longer counts. The use of members that take turns is tracked in the same way. Shares of
nested cohorts are constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from heapq import heapify, heappop, heappush

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
        "entries",
        "history",
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
        self.history: list[tuple[int, int]] = [(0, self.delay_ms)]
        self.entries: list[Key] = []
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


class _Members:
    """The use of a team's members who take turns, and their requests."""

    __slots__ = ("_changed", "_heap", "_keys", "_shares", "_team", "_usage")

    def __init__(self, usage: Usage, team: str, keys: Iterable[tuple[Key, str]]) -> None:
        self._usage, self._team = usage, team
        self._keys: dict[str, list[Key]] = {}
        for key, member in keys:
            self._keys.setdefault(member, []).append(key)
        self._shares = {member: usage.member_share(team, member) for member in self._keys}
        self._heap: list[tuple[int, int, Key, str]] = []
        self._changed: set[str] = set()
        for member, own in self._keys.items():
            # Reversed: `pick` takes from the end.
            own.sort(reverse=True)
            self._push(member)

    def pick(self) -> str:
        """Return the id of the next request, of the highest priority and the member with the least use."""
        for member in self._changed:
            self._push(member)
        self._changed.clear()
        while True:
            _, share, key, member = heappop(self._heap)
            keys = self._keys[member]
            if keys and keys[-1] is key and self._shares[member] == share:
                keys.pop()
                self._push(member)
                return key[4]

    def change(self, workload: Workload, sign: int) -> None:
        """Add or remove the workload."""
        if workload.user in self._shares:
            self._shares[workload.user] += sign * self._usage.weighted(workload.amounts)
            self._changed.add(workload.user)

    def _push(self, member: str) -> None:
        if keys := self._keys[member]:
            heappush(self._heap, (keys[-1][1], self._shares[member], keys[-1], member))


class FairShareOrder:
    """Yields pending requests one by one; `record_start` records when each gets its slot."""

    def __init__(self, scheduler: SchedulerState, starting: frozenset[str]) -> None:
        self._items = scheduler.pending.items
        self._accounts = {team: _TeamShare(scheduler.usage, team) for team in scheduler.usage.teams}
        self._given: list[Rank] = []
        self._picked: set[str] = set()
        self._front_s = scheduler.now_s
        self._running: Iterator[tuple[int, Workload]] = scheduler.by_end()
        self._next_end = next(self._running, None)
        self._ends: list[tuple[int, str]] = []
        self._slotted: dict[str, Workload] = {}
        self._heap: list[tuple[Rank, int, str]] = []
        self._pending = scheduler.pending
        self._starting = starting
        for shape, keys in keys_without(self._pending, starting):
            self._accounts[shape[0]].entries.extend(keys)
        for account in self._accounts.values():
            # Reversed: `pick` takes from the end.
            account.entries.sort(reverse=True)
        self._members = {
            team: _Members(scheduler.usage, team, self._member_turn_keys(self._accounts[team].entries))
            for team in self._pending.in_turns
        }
        self._heap = [
            (rank_of(account.entries[-1], account.delay_ms), 0, team)
            for team, account in self._accounts.items()
            if account.entries
        ]
        heapify(self._heap)

    def pick(self) -> Workload | None:
        """Return the next request in the order, or None at the end."""
        while self._heap:
            rank, version, team = heappop(self._heap)
            account = self._accounts[team]
            if version != account.version:
                continue
            key = account.entries.pop()
            self._given.append(rank)
            account.version += 1
            self._push(team, account)
            members = self._members.get(team)
            picked = members.pick() if members is not None and takes_turns(key) else key[4]
            self._picked.add(picked)
            return self._items[picked]
        return None

    def _member_turn_keys(self, keys: Iterable[Key]) -> Iterator[tuple[Key, str]]:
        """Yield the keys of requests that take turns, and their members."""
        return ((key, self._items[key[4]].user) for key in keys if takes_turns(key))

    def remaining(self) -> Iterator[tuple[int, Sequence[Key]]]:
        """Yield the remaining keys by shape, with the current delay of the team.

        Ignores the turns of members.
        """
        gone = self._starting | self._picked
        for shape, keys in keys_without(self._pending, gone):
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

    def index_of(self, team: str, key: Key) -> int:
        """Return the index among the picked requests at which another request of the team would have been.

        Do not call this function for a request that takes turns with those of other members.
        """
        history = self._accounts[team].history
        change = 0
        for place, rank in enumerate(self._given):
            while change + 1 < len(history) and history[change + 1][0] <= place:
                change += 1
            if rank_of(key, history[change][1]) < rank:
                return place
        return len(self._given)

    def _change(self, workload: Workload, sign: int) -> None:
        account = self._accounts[workload.team]
        if (members := self._members.get(workload.team)) is not None:
            members.change(workload, sign)
        if account.change(workload, sign):
            account.history.append((len(self._given), account.delay_ms))
            account.version += 1
            self._push(workload.team, account)

    def _push(self, team: str, account: _TeamShare) -> None:
        if account.entries:
            heappush(self._heap, (rank_of(account.entries[-1], account.delay_ms), account.version, team))


def keys_without(pending: PendingQueue, gone: Set[str]) -> Iterator[tuple[Shape, Sequence[Key]]]:
    """Yield the sorted keys of each shape, except those in `gone`."""
    touched = {pending.shape_of(name) for name in gone}
    for shape, keys in pending.by_shape():
        left = [key for key in keys if key[4] not in gone] if shape in touched else keys
        if left:
            yield shape, left
