"""What the plan and the order of fair shares read of a scheduler; `scheduler.Scheduler` has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from portal.scheduling.engine.model import Policy, Running, Workload
from portal.scheduling.engine.pending import PendingQueue
from portal.scheduling.engine.running_amounts import RunningAmounts
from portal.scheduling.engine.usage import Usage


class SchedulerState(Protocol):
    """Usage, what runs and what is pending at `now_s` (UTC seconds). Readers change nothing."""

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
        """What runs, with its expected end, the first to end first."""

    def amounts_by_end(self) -> RunningAmounts:
        """The same as arrays."""

    def of_team(self, team: str) -> Iterator[Running]:
        """What runs for the team, in no order."""
