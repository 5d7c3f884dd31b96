"""The order in which pending requests come up, while shares move as some start and others end.

The shares of teams are followed along the plan: what has its slot counts from then on, what ends before
the last slot that was given counts no more. Shares of cohorts in cohorts stay as they are now.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from portal.quotas.shares import MAX_SHARE, SHARE_ONE
from portal.quotas.types import WEIGHT_ONE
from portal.scheduling.engine.model import Workload
from portal.scheduling.engine.pending import UNRESERVED, USUAL, Key, Rank
from portal.scheduling.engine.scheduler_state import SchedulerState
from portal.scheduling.engine.usage import Usage


class _Account:
    """A team's share, as what it holds changes."""

    __slots__ = ("above", "entries", "history", "share", "terms", "usage", "version")

    def __init__(self, usage: Usage, team: str) -> None:
        node = usage.tree.teams[team]
        averages = usage.teams[team].borrowed_avg
        self.terms: dict[str, tuple[int, int, int]] = {}
        self.usage: dict[str, int] = {}
        if node.parent is not None:
            for name in node.root_names:
                self.terms[name] = (
                    node.quota[name],
                    averages.get(name, 0),
                    max(1, node.parent.potential(name)) * node.weight_milli,
                )
                self.usage[name] = node.usage.get(name, 0)
        self.above = usage.share(team)[:-1]
        self.share = usage.share(team)
        self.history: list[tuple[int, tuple[int, ...]]] = [(0, self.share)]
        self.entries: list[Key] = []
        self.version = 0

    def change(self, workload: Workload, sign: int) -> bool:
        """Whether the share is another one with the workload (or without it)."""
        touched = False
        for name, amount in workload.amounts.items():
            if name in self.usage:
                self.usage[name] += sign * amount
                touched = True
        if not touched:
            return False
        largest = 0
        for name, (quota, average, unit) in self.terms.items():
            taken = max(0, self.usage[name] - quota) + average
            if taken > 0:
                largest = max(largest, taken * SHARE_ONE * WEIGHT_ONE // unit if unit else MAX_SHARE)
        share = (*self.above, largest)
        if share == self.share:
            return False
        self.share = share
        return True


class FairShareOrder:
    """Gives out the pending requests one by one; `starts` says when each gets its slot."""

    def __init__(self, scheduler: SchedulerState, starting: frozenset[str]) -> None:
        self._items = scheduler.pending.items
        self._accounts = {team: _Account(scheduler.usage, team) for team in scheduler.usage.teams}
        self._given: list[Rank] = []
        self._front_s = scheduler.now_s
        self._running: Iterator[tuple[int, Workload]] = scheduler.by_end()
        self._next_end = next(self._running, None)
        self._ends: list[tuple[int, str]] = []
        self._heap: list[tuple[Rank, int, str]] = []
        for key in scheduler.pending.keys_of_all():
            if key[4] not in starting:
                self._accounts[self._items[key[4]].team].entries.append(key)
        for account in self._accounts.values():
            # The last comes first: it is taken off the end.
            account.entries.sort(reverse=True)
        self._heap = [
            (_rank(account.entries[-1], account.share), 0, team)
            for team, account in self._accounts.items()
            if account.entries
        ]
        heapify(self._heap)

    def pick(self) -> Workload | None:
        """The next in the order; None: that was all."""
        while self._heap:
            rank, version, team = heappop(self._heap)
            account = self._accounts[team]
            if version != account.version:
                continue
            account.entries.pop()
            self._given.append(rank)
            account.version += 1
            self._push(team, account)
            return self._items[rank[5]]
        return None

    def starts(self, workload: Workload, start_s: int) -> None:
        """It has its slot from then on."""
        self._change(workload, 1)
        heappush(self._ends, (start_s + workload.duration_s, workload.id))
        if start_s <= self._front_s:
            return
        self._front_s = start_s
        while self._next_end is not None and self._next_end[0] <= start_s:
            self._change(self._next_end[1], -1)
            self._next_end = next(self._running, None)
        while self._ends and self._ends[0][0] <= start_s:
            self._change(self._items[heappop(self._ends)[1]], -1)

    def index_of(self, team: str, key: Key) -> int:
        """Before which of those given out another request of the team would have come."""
        history = self._accounts[team].history
        change = 0
        for place, rank in enumerate(self._given):
            while change + 1 < len(history) and history[change + 1][0] <= place:
                change += 1
            if _rank(key, history[change][1]) < rank:
                return place
        return len(self._given)

    def _change(self, workload: Workload, sign: int) -> None:
        account = self._accounts[workload.team]
        if account.change(workload, sign):
            account.history.append((len(self._given), account.share))
            account.version += 1
            self._push(workload.team, account)

    def _push(self, team: str, account: _Account) -> None:
        if account.entries:
            heappush(self._heap, (_rank(account.entries[-1], account.share), account.version, team))


def _rank(key: Key, share: tuple[int, ...]) -> Rank:
    band, priority, usual, created, name = key
    return (band, priority, usual, share if band == USUAL and usual == UNRESERVED else (), created, name)
