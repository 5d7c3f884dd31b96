"""The queue and the running workloads of a site, for many consecutive decisions.

`cycle.decide` makes each decision; `schedule` makes one on a snapshot.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace

from portal.quota.limits.types import Amounts
from portal.scheduling.engine.backfill import (
    CapacityForecast,
    ExpectedEnd,
    Placer,
    SimulatingPlacer,
    expected_ends,
    forecast_capacity,
)
from portal.scheduling.engine.cycle import decide
from portal.scheduling.engine.model import FOREVER_S, Cycle, Running, Snapshot, Victim, Workload
from portal.scheduling.engine.pending import PendingQueue
from portal.scheduling.engine.running_amounts import RunningAmounts
from portal.scheduling.engine.usage import Usage

__all__ = ["Placer", "Scheduler", "SimulatingPlacer", "schedule"]


class _ByEnd:
    """The result of `amounts_by_end`, shared by copies until one of them changes."""

    __slots__ = ("amounts",)

    def __init__(self) -> None:
        self.amounts: RunningAmounts | None = None


class Scheduler:
    """The queue and the running workloads of a site over time.

    Raises ValueError for invalid limits, KeyError for an unknown team.
    """

    def __init__(self, snapshot: Snapshot, placer: Placer | None = None) -> None:
        self.policy = snapshot.policy
        self.now_s = snapshot.now_s
        self.placer = placer
        self.usage = Usage(snapshot)
        self.pending = PendingQueue(self.policy.due_after, self.usage.teams_with_member_shares())
        self.running: dict[str, Running] = {}
        self._preempting: dict[str, set[str]] = {}
        self._by_team: dict[str, set[str]] = {}
        for run in snapshot.running:
            if run.workload.id in self.running:
                raise ValueError(f"{run.workload.id!r} runs already")
            self.running[run.workload.id] = run
            self._by_team.setdefault(run.workload.team, set()).add(run.workload.id)
            if run.preempt_at_s is not None and run.preempted_by:
                self._preempting.setdefault(run.preempted_by, set()).add(run.workload.id)
        self._by_end = _ByEnd()
        self._ends = sorted((run.ends_s, name) for name, run in self.running.items())
        self.usage.add_all(run.workload for run in snapshot.running)
        for workload in snapshot.queued:
            self.submit(workload)

    def clone(self) -> Scheduler:
        """Return an independent copy without the placer, to look ahead."""
        twin = Scheduler.__new__(Scheduler)
        twin.policy, twin.now_s, twin.placer = self.policy, self.now_s, None
        twin.usage, twin.pending = self.usage.clone(), self.pending.clone()
        twin.running, twin._ends = dict(self.running), list(self._ends)
        twin._by_end = self._by_end
        twin._preempting = {name: set(ids) for name, ids in self._preempting.items()}
        twin._by_team = {name: set(ids) for name, ids in self._by_team.items()}
        return twin

    # --- changes of the site ------------------------------------------------------------------------

    def submit(self, workload: Workload) -> None:
        if workload.duration_s <= 0 or any(amount < 0 for amount in workload.amounts.values()):
            raise ValueError(f"{workload.id!r} asks for less than nothing")
        if workload.id in self.running:
            raise ValueError(f"{workload.id!r} runs already")
        self.pending.add(workload, self.usage.teams[workload.team].capped)

    def withdraw(self, workload_id: str) -> None:
        self.pending.remove(workload_id)

    def finish(self, workload_id: str) -> Running:
        """Record that the workload has ended. Raises KeyError if it is not running."""
        run = self.running.pop(workload_id)
        self._by_end = _ByEnd()
        del self._ends[bisect_left(self._ends, (run.ends_s, workload_id))]
        self._by_team[run.workload.team].discard(workload_id)
        self.usage.remove(run.workload)
        for ids in self._preempting.values():
            ids.discard(workload_id)
        return run

    def start(self, workload_id: str, now_s: int, chosen: Workload | None = None) -> None:
        """Record that a pending workload has started. Raises KeyError if it is not pending.

        `chosen`: the alternative that the cycle chose, for a request with several.
        """
        workload = self.pending.remove(workload_id)
        self._preempting.pop(workload_id, None)
        self._hold(Running(chosen or workload, now_s))

    def add_running(self, run: Running) -> None:
        """Add a workload that is already running."""
        self._hold(run)
        if run.preempt_at_s is not None and run.preempted_by:
            self._preempting.setdefault(run.preempted_by, set()).add(run.workload.id)

    def preempt(self, victim: Victim, now_s: int) -> None:
        """Record that a victim of `cycle` has been given notice at `now_s`. Idempotent."""
        run = self.running[victim.workload]
        if run.preempt_at_s is not None:
            return
        self._by_end = _ByEnd()
        del self._ends[bisect_left(self._ends, (run.ends_s, victim.workload))]
        run = replace(
            run,
            preempt_at_s=min(run.ends_s, now_s + self.policy.grace_s),
            preempted_by=victim.beneficiary,
        )
        self.running[victim.workload] = run
        insort(self._ends, (run.ends_s, victim.workload))
        if victim.beneficiary in self.pending.items:
            self._preempting.setdefault(victim.beneficiary, set()).add(victim.workload)
            if victim.beneficiary not in self.pending.nominated():
                self.pending.nominate(victim.beneficiary)

    def set_average(self, team: str, borrowed_avg: Amounts) -> None:
        """Replace a team's decayed usage."""
        self.usage.set_team(replace(self.usage.teams[team], borrowed_avg=borrowed_avg))

    def apply(self, cycle: Cycle, now_s: int) -> None:
        """Record that all of `cycle` has been executed at `now_s`."""
        for head in cycle.backfill_reservations:
            self.pending.reserve_start(head.workload)
        for workload_id in cycle.lapsed_nominations:
            self.pending.nominate(workload_id, False)
        for workload_id in cycle.starts:
            self.start(workload_id, now_s, cycle.chosen.get(workload_id))
        for victim in cycle.victims:
            self.preempt(victim, now_s)

    def _hold(self, run: Running) -> None:
        if run.workload.id in self.running:
            raise ValueError(f"{run.workload.id!r} runs already")
        self.running[run.workload.id] = run
        self._by_end = _ByEnd()
        self._by_team.setdefault(run.workload.team, set()).add(run.workload.id)
        insort(self._ends, (run.ends_s, run.workload.id))
        self.usage.add(run.workload)

    # --- decisions ------------------------------------------------------------------------------------

    def cycle(self, now_s: int) -> Cycle:
        """Decide what to do at `now_s`. `apply` (or `start` and `preempt`) executes it.

        Changes only the clock, expired nominations and the order of overdue requests. With a placer, the
        capacity of the started workloads is committed in the placer.
        """
        self.now_s = now_s
        return decide(self, now_s)

    def running_of_team(self, team: str) -> Iterator[Running]:
        """Return the team's running workloads in no particular order."""
        return (self.running[name] for name in self._by_team.get(team, ()))

    def by_end(self) -> Iterator[tuple[int, Workload]]:
        """Yield running workloads with their expected end, earliest first."""
        return ((end_s, self.running[name].workload) for end_s, name in self._ends)

    def amounts_by_end(self) -> RunningAmounts:
        """Return running workloads as arrays, cached until a workload starts or ends."""
        if self._by_end.amounts is None:
            self._by_end.amounts = RunningAmounts.of(self.by_end())
        return self._by_end.amounts

    def preempting_for(self, workload_id: str) -> AbstractSet[str]:
        """Return the workloads that are being preempted for the request and still run."""
        return self._preempting.get(workload_id, frozenset())

    def forecast_capacity(self, workload: Workload, preempted: Iterable[str] = ()) -> CapacityForecast | None:
        """Return when nodes will have capacity, and which workloads will have left; None if not soon."""
        assert self.placer is not None  # callers check for a placer
        return forecast_capacity(workload, self.expected_ends(preempted, ()), self.placer)

    def expected_ends(
        self, preempted: Iterable[str], more: Iterable[tuple[int, Workload]]
    ) -> Iterator[ExpectedEnd]:
        """Yield expected ends in order: running workloads (those in `preempted` end sooner) and `more`."""
        return expected_ends(self._ends, self.running, self.now_s, self.policy, preempted, more)

    def next_end(self) -> int:
        """Return the earliest expected end, or `FOREVER_S` if nothing runs."""
        return self._ends[0][0] if self._ends else FOREVER_S

    def ending_between(self, after_s: int, until_s: int) -> list[str]:
        """Return the workloads expected to end after `after_s` and by `until_s`."""
        first, last = (bisect_left(self._ends, (at_s + 1, "")) for at_s in (after_s, until_s))
        return [name for _, name in self._ends[first:last]]

    def ended_by(self, at_s: int) -> list[str]:
        """Return the workloads expected to have ended by `at_s`."""
        return [name for _, name in self._ends[: bisect_left(self._ends, (at_s + 1, ""))]]


def schedule(snapshot: Snapshot, placer: Placer | None = None) -> Cycle:
    """Decide one cycle on the snapshot. Pure, except for capacity taken from the placer."""
    return Scheduler(snapshot, placer).cycle(snapshot.now_s)
