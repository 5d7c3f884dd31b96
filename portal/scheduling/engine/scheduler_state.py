"""Protocols of `scheduler.Scheduler` for the cycle, the plan and the fair-share order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from portal.scheduling.engine.backfill import CapacityForecast, ExpectedEnd, Placer
from portal.scheduling.engine.model import Policy, Running, Workload
from portal.scheduling.engine.pending import PendingQueue
from portal.scheduling.engine.running_amounts import RunningAmounts
from portal.scheduling.engine.usage import Usage


class SchedulerState(Protocol):
    """Usage, running and pending workloads at `now_s` (UTC seconds). Read-only."""

    @property
    def now_s(self) -> int: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def usage(self) -> Usage: ...

    @property
    def pending(self) -> PendingQueue: ...

    @property
    def running(self) -> Mapping[str, Running]: ...

    def by_end(self) -> Iterator[tuple[int, Workload]]:
        """Yield running workloads with their expected end, earliest first."""

    def amounts_by_end(self) -> RunningAmounts:
        """Return running workloads as arrays."""

    def running_of_team(self, team: str) -> Iterator[Running]:
        """Return the team's running workloads in no particular order."""


class CycleState(SchedulerState, Protocol):
    """The additional protocol of a cycle, which changes the usage temporarily."""

    @property
    def placer(self) -> Placer | None: ...

    def preempting_for(self, workload_id: str) -> AbstractSet[str]:
        """Return the workloads that are being preempted for the request and still run."""

    def ending_between(self, after_s: int, until_s: int) -> list[str]:
        """Return the workloads expected to end after `after_s` and by `until_s`."""

    def ended_by(self, at_s: int) -> list[str]:
        """Return the workloads expected to have ended by `at_s`."""

    def expected_ends(
        self, preempted: Iterable[str], more: Iterable[tuple[int, Workload]]
    ) -> Iterator[ExpectedEnd]:
        """Yield expected ends in order: running workloads (those in `preempted` end sooner) and `more`."""

    def forecast_capacity(self, workload: Workload, preempted: Iterable[str]) -> CapacityForecast | None:
        """Return when nodes will have capacity, and which workloads will have left; None if not soon."""
