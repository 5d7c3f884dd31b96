"""Which call brings a set of CUDA processes nearer to one of two ends: all suspended, or all running.

Pure. The driver knows RUNNING → LOCKED → CHECKPOINTED → LOCKED → RUNNING, and refuses every other order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum


class ProcessState(StrEnum):
    """What the driver says of a process. NONE: gone, or without CUDA. UNKNOWN: it could not be asked."""

    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"
    NONE = "none"
    UNKNOWN = "unknown"


class Goal(StrEnum):
    """Where all processes of a set shall be."""

    SUSPENDED = "suspended"
    RUNNING = "running"

    @property
    def other(self) -> Goal:
        return Goal.RUNNING if self is Goal.SUSPENDED else Goal.SUSPENDED


class Call(StrEnum):
    """The four calls that change a process's state."""

    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    UNLOCK = "unlock"


AFTER: Mapping[Call, tuple[ProcessState, ProcessState]] = {
    Call.LOCK: (ProcessState.RUNNING, ProcessState.LOCKED),
    Call.CHECKPOINT: (ProcessState.LOCKED, ProcessState.CHECKPOINTED),
    Call.RESTORE: (ProcessState.CHECKPOINTED, ProcessState.LOCKED),
    Call.UNLOCK: (ProcessState.LOCKED, ProcessState.RUNNING),
}
"""The state that each call asks for, and the one that it ends in."""
_ORDER: Mapping[Goal, tuple[Call, Call]] = {
    Goal.SUSPENDED: (Call.LOCK, Call.CHECKPOINT),
    Goal.RUNNING: (Call.RESTORE, Call.UNLOCK),
}
_END: Mapping[Goal, ProcessState] = {
    Goal.SUSPENDED: ProcessState.CHECKPOINTED,
    Goal.RUNNING: ProcessState.RUNNING,
}


def next_calls(
    goal: Goal, states: Mapping[int, ProcessState], *, left_out: Collection[int] = ()
) -> tuple[tuple[Call, int], ...]:
    """The calls that may be made now; none where the rest cannot be moved.

    The second kind comes when the first has been made for all: none is checkpointed while another may still
    send it work, and none runs before all have their memory again. Those `left_out` have been given up, and
    hold up nobody.
    """
    there = {pid: state for pid, state in sorted(states.items()) if pid not in left_out}
    for call in _ORDER[goal]:
        before = AFTER[call][0]
        found = tuple((call, pid) for pid, state in there.items() if state is before)
        if found:
            return found
    return ()


def end_of(states: Mapping[int, ProcessState]) -> Goal | None:
    """Which of the two ends a set is at; None where it is at neither. Without CUDA processes it runs."""
    counted = {state for state in states.values() if state is not ProcessState.NONE}
    if not counted:
        return Goal.RUNNING
    return next((goal for goal, state in _END.items() if counted == {state}), None)
