"""The parts of `scheduler.Scheduler` that a cycle, the plan and the order of fair shares read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from portal.scheduling.engine.backfill import End, Placer, Room
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


class CycleState(SchedulerState, Protocol):
    """What a cycle reads besides. It changes usage only while it is decided."""

    @property
    def placer(self) -> Placer | None: ...

    def preempting_for(self, workload_id: str) -> AbstractSet[str]:
        """The workloads that have been given notice for the request and still run."""

    def ending(self, after_s: int, until_s: int) -> list[str]:
        """What is expected to end after `after_s` and by `until_s`."""

    def ended_by(self, at_s: int) -> list[str]:
        """What is expected to have ended by then."""

    def expected_ends(self, asked: Iterable[str], more: Iterable[tuple[int, Workload]]) -> Iterator[End]:
        """What is expected to end, the first first: what runs (those `asked` to leave sooner), and `more`."""

    def room(self, workload: Workload, asked: Iterable[str]) -> Room | None:
        """When the nodes will have room, and who is gone by then; None: not soon."""
