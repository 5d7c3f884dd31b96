"""Choose the calls that move a set of CUDA processes to one of two states: suspended or running.

Pure functions. The driver supports RUNNING → LOCKED → CHECKPOINTED → LOCKED → RUNNING and refuses any other
order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum


class ProcessState(StrEnum):
    """The driver's state of a process. NONE: gone, or without CUDA. UNKNOWN: it cannot be queried."""

    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"
    NONE = "none"
    UNKNOWN = "unknown"


class TargetState(StrEnum):
    """Target state of all processes of a set."""

    SUSPENDED = "suspended"
    RUNNING = "running"

    @property
    def opposite(self) -> TargetState:
        return TargetState.RUNNING if self is TargetState.SUSPENDED else TargetState.SUSPENDED


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
"""The states required by and reached after each call."""
_ORDER: Mapping[TargetState, tuple[Call, Call]] = {
    TargetState.SUSPENDED: (Call.LOCK, Call.CHECKPOINT),
    TargetState.RUNNING: (Call.RESTORE, Call.UNLOCK),
}
_FINAL_STATES: Mapping[TargetState, ProcessState] = {
    TargetState.SUSPENDED: ProcessState.CHECKPOINTED,
    TargetState.RUNNING: ProcessState.RUNNING,
}


def next_calls(
    goal: TargetState, states: Mapping[int, ProcessState], *, left_out: Collection[int] = ()
) -> tuple[tuple[Call, int], ...]:
    """Return the calls possible now; empty if no process can be moved.

    The second kind follows once the first was made for all. So no process is checkpointed while another may
    still send it work, and none runs before all have their memory again. Processes in `left_out` are ignored.
    """
    included = {pid: state for pid, state in sorted(states.items()) if pid not in left_out}
    for call in _ORDER[goal]:
        before = AFTER[call][0]
        calls = tuple((call, pid) for pid, state in included.items() if state is before)
        if calls:
            return calls
    return ()


def end_of(states: Mapping[int, ProcessState]) -> TargetState | None:
    """Return which state the set has reached, or None. A set without CUDA processes is running."""
    counted = {state for state in states.values() if state is not ProcessState.NONE}
    if not counted:
        return TargetState.RUNNING
    return next((goal for goal, state in _FINAL_STATES.items() if counted == {state}), None)
