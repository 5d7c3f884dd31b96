"""Move a set of CUDA processes to one of two states, or to the other if a call fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from provisioning.gpu.suspend.states import AFTER, Call, ProcessState, TargetState, end_of, next_calls

CHECK_INTERVAL_S = 0.05
BROKEN_OFF = "broken_off"
NO_CHANGE = "no_change"
BAD_STATE = "bad_state"
STUCK_STATES = (ProcessState.FAILED, ProcessState.UNKNOWN)


class SuspendCallFailed(Exception):
    """The driver refused a call; `name` is like `CUDA_ERROR_ILLEGAL_STATE`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Calls(Protocol):
    """Driver calls on one process at a time."""

    def state(self, pid: int) -> ProcessState:
        """Return the state. Never raises: UNKNOWN if it cannot be queried."""
        ...

    def make(self, call: Call, pid: int) -> None:
        """Make the call. Raises `SuspendCallFailed`."""
        ...


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A failed call: its process and the driver's error."""

    call: str
    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class SuspendOutcome:
    """Final states. `end` is None if the processes reached neither state; `trouble` is the first failure."""

    goal: TargetState
    end: TargetState | None
    states: Mapping[int, ProcessState]
    trouble: CallFailure | None = None

    @property
    def is_reached(self) -> bool:
        return self.end is self.goal


def walk(
    calls: Calls,
    pids: Iterable[int],
    goal: TargetState,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_call: Callable[[str, int], object] = lambda _call, _pid: None,
) -> SuspendOutcome:
    """Move all `pids` to `goal`; if a call fails, all to the other state, as far as possible.

    Never raises for driver errors. Continues from any partial progress, since the driver reports each state.
    Once `stop` returns True, no step towards the goal starts; going back is limited only by the caller.
    """
    drive = _Drive(calls, tuple(dict.fromkeys(pids)), on_call)
    failure = drive.drive_to(goal, stop=stop, give_up_at_once=True)
    if failure is not None:
        drive.drive_to(goal.opposite)
        if end_of(drive.states()) is None:
            # Neither state for all: a running app is better than one that stays suspended.
            drive.drive_to(TargetState.RUNNING)
    states = drive.states()
    return SuspendOutcome(goal, end_of(states), states, failure)


class _Drive:
    def __init__(self, calls: Calls, pids: tuple[int, ...], on_call: Callable[[str, int], object]) -> None:
        self._calls, self._pids, self._on_call = calls, pids, on_call

    def states(self) -> dict[int, ProcessState]:
        return {pid: self._calls.state(pid) for pid in self._pids}

    def drive_to(
        self, goal: TargetState, *, stop: Callable[[], bool] = lambda: False, give_up_at_once: bool = False
    ) -> CallFailure | None:
        """Make calls until none is left. A process whose call fails is left as it is.

        When going back, each call is retried once, since a transient failure may have passed.
        """
        first: CallFailure | None = None
        given_up: set[int] = set()
        attempted: set[tuple[Call, int]] = set()
        while True:
            states = self.states()
            stuck_pid = next((pid for pid, state in states.items() if state in STUCK_STATES), None)
            if stuck_pid is not None:
                # A process in an unknown state may be sending work to the others.
                first = first or CallFailure("state", stuck_pid, BAD_STATE)
                if give_up_at_once:
                    return first
            todo = next_calls(goal, states, left_out=given_up)
            if not todo:
                return first
            for call, pid in todo:
                if stop():
                    return CallFailure(call, pid, BROKEN_OFF)
                failed = (
                    NO_CHANGE
                    if (call, pid) in attempted
                    else self._make(call, pid, is_retry=not give_up_at_once)
                )
                attempted.add((call, pid))
                if failed is None:
                    continue
                given_up.add(pid)
                first = first or CallFailure(call, pid, failed)
                if give_up_at_once:
                    return first

    def _make(self, call: Call, pid: int, *, is_retry: bool) -> str | None:
        """Return the driver's error name, or None. A process that ended meanwhile is not a failure."""
        for attempt in range(2 if is_retry else 1):
            if attempt:
                time.sleep(CHECK_INTERVAL_S)
            self._on_call(call, pid)
            try:
                self._calls.make(call, pid)
            except SuspendCallFailed as failed:
                name = failed.name
            else:
                return None
            if self._calls.state(pid) in (ProcessState.NONE, AFTER[call][1]):
                return None
        return name
