"""Suspend and resume sequences over an in-process driver with injected faults."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioning.gpu.suspend import walk as walking
from provisioning.gpu.suspend.states import AFTER, Call, ProcessState, TargetState, end_of, next_calls
from provisioning.gpu.suspend.walk import SuspendCallFailed, walk
from tests.suite.choice import examples

RUNNING, LOCKED, CHECKPOINTED = ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.CHECKPOINTED
SOUND = (RUNNING, LOCKED, CHECKPOINTED)


class Rules:
    """Enforces the driver's order of calls.

    `faults` apply to the calls in turn: an error, or as in `make`.
    """

    def __init__(self, states: Mapping[int, ProcessState], faults: list[str] | None = None) -> None:
        self.states = dict(states)
        self.faults = list(faults or [])
        self.made: list[tuple[Call, int]] = []
        self.unsound: list[str] = []

    def state(self, pid: int) -> ProcessState:
        return self.states.get(pid, ProcessState.NONE)

    def make(self, call: Call, pid: int) -> None:
        before, after = AFTER[call]
        fault = self.faults.pop(0) if self.faults else ""
        if self.state(pid) is not before:
            raise SuspendCallFailed("CUDA_ERROR_ILLEGAL_STATE")
        if call is Call.CHECKPOINT and RUNNING in self.states.values():
            self.unsound.append(f"checkpointed {pid} while another runs")
        match fault:
            case "":
                self.states[pid] = after
            case "lie":
                return
            case "late":
                # Done, but the answer was lost.
                self.states[pid] = after
                raise SuspendCallFailed("CUDA_ERROR_UNKNOWN")
            case "fail":
                self.states[pid] = ProcessState.FAILED
                raise SuspendCallFailed("CUDA_ERROR_UNKNOWN")
            case "end":
                del self.states[pid]
                raise SuspendCallFailed("CUDA_ERROR_INVALID_VALUE")
            case _:
                raise SuspendCallFailed(fault)
        self.made.append((call, pid))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "CHECK_INTERVAL_S", 0.0)


def test_all_processes_pass_each_stage_before_the_next() -> None:
    rules = Rules({1: RUNNING, 2: RUNNING})
    assert walk(rules, [2, 1], TargetState.SUSPENDED).is_reached
    assert walk(rules, [1, 2], TargetState.RUNNING).is_reached
    assert rules.made == [
        (Call.LOCK, 1), (Call.LOCK, 2), (Call.CHECKPOINT, 1), (Call.CHECKPOINT, 2),
        (Call.RESTORE, 1), (Call.RESTORE, 2), (Call.UNLOCK, 1), (Call.UNLOCK, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("fails_at", range(4))
def test_failed_suspend_leaves_all_running(fails_at: int) -> None:
    rules = Rules({1: RUNNING, 2: RUNNING}, [""] * fails_at + ["CUDA_ERROR_OUT_OF_MEMORY"])
    found = walk(rules, [1, 2], TargetState.SUSPENDED)
    assert (found.is_reached, found.end) == (False, TargetState.RUNNING)
    assert found.trouble is not None and found.trouble.name == "CUDA_ERROR_OUT_OF_MEMORY"
    assert set(rules.states.values()) == {RUNNING}


@pytest.mark.parametrize("fails_at", range(4))
def test_failed_resume_leaves_all_suspended(fails_at: int) -> None:
    rules = Rules({1: CHECKPOINTED, 2: CHECKPOINTED}, [""] * fails_at + ["CUDA_ERROR_OUT_OF_MEMORY"])
    found = walk(rules, [1, 2], TargetState.RUNNING)
    assert found.end is TargetState.SUSPENDED and set(rules.states.values()) == {CHECKPOINTED}


@pytest.mark.parametrize(
    ("fault", "left"), [("end", {2: CHECKPOINTED}), ("late", {1: CHECKPOINTED, 2: CHECKPOINTED})]
)
def test_ended_or_already_suspended_process_is_no_error(fault: str, left: dict[int, ProcessState]) -> None:
    rules = Rules({1: RUNNING, 2: RUNNING}, [fault])
    assert walk(rules, [1, 2], TargetState.SUSPENDED).is_reached
    assert rules.states == left


def test_rollback_retries_each_call_once() -> None:
    rules = Rules({1: CHECKPOINTED, 2: CHECKPOINTED}, ["", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_UNKNOWN"])
    found = walk(rules, [1, 2], TargetState.RUNNING)
    assert found.end is TargetState.SUSPENDED and set(rules.states.values()) == {CHECKPOINTED}


def test_processes_are_not_left_locked_after_two_failures() -> None:
    # One of three is never restored: the others continue, and this is reported.
    class Stuck(Rules):
        def make(self, call: Call, pid: int) -> None:
            if call is Call.RESTORE and pid == 1:
                raise SuspendCallFailed("CUDA_ERROR_UNKNOWN")
            if call is Call.CHECKPOINT and pid == 3:
                raise SuspendCallFailed("CUDA_ERROR_OUT_OF_MEMORY")
            super().make(call, pid)

    rules = Stuck({1: RUNNING, 2: RUNNING, 3: RUNNING})
    found = walk(rules, [1, 2, 3], TargetState.SUSPENDED)
    assert found.end is None and not found.is_reached
    assert rules.states == {1: CHECKPOINTED, 2: RUNNING, 3: RUNNING}


@pytest.mark.parametrize("odd", [ProcessState.FAILED, ProcessState.UNKNOWN])
def test_unqueryable_process_leaves_all_untouched(odd: ProcessState) -> None:
    rules = Rules({1: RUNNING, 2: odd})
    found = walk(rules, [1, 2], TargetState.SUSPENDED)
    assert rules.made == [] and found.trouble is not None and found.trouble.name == walking.BAD_STATE


def test_processes_without_cuda_cannot_be_suspended() -> None:
    found = walk(Rules({}), [1, 2], TargetState.SUSPENDED)
    assert found.end is TargetState.RUNNING and not found.is_reached and found.trouble is None


def test_stop_rolls_back() -> None:
    rules = Rules({1: RUNNING, 2: RUNNING})
    found = walk(rules, [1, 2], TargetState.SUSPENDED, stop=lambda: len(rules.made) >= 3)
    assert found.end is TargetState.RUNNING and found.trouble is not None
    assert found.trouble.name == walking.BROKEN_OFF


faults = st.sampled_from(
    ["", "", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_NOT_READY", "lie", "late", "fail", "end"]
)
sets = st.dictionaries(st.integers(1, 5), st.sampled_from(SOUND), min_size=1, max_size=5)


@settings(max_examples=examples(600), deadline=None)
@given(states=sets, answers=st.lists(faults, max_size=40), goal=st.sampled_from(list(TargetState)))
def test_reported_states_are_true_after_any_failure_and_the_next_call_completes(
    states: dict[int, ProcessState], answers: list[str], goal: TargetState
) -> None:
    rules = Rules(states, answers)
    found = walk(rules, states, goal)
    # The reported states are the real ones.
    assert found.states == {pid: rules.state(pid) for pid in states}
    there = set(rules.states.values())
    assert (found.end is TargetState.SUSPENDED) == (there == {CHECKPOINTED})
    assert found.is_reached <= (found.end is goal)
    if not found.is_reached and there:
        assert found.trouble is not None
    if goal is TargetState.SUSPENDED:
        assert rules.unsound == []
    # With a working driver, the next call completes in either direction.
    rules.faults.clear()
    for again in (goal, TargetState.RUNNING):
        walk(rules, states, again)
        left = set(rules.states.values()) - {ProcessState.FAILED}
        assert LOCKED not in left
    assert set(rules.states.values()) <= {RUNNING, ProcessState.FAILED}


@given(states=sets, goal=st.sampled_from(list(TargetState)), cut=st.integers(0, 12))
def test_next_call_completes_after_a_killed_caller(
    states: dict[int, ProcessState], goal: TargetState, cut: int
) -> None:
    class Killed(BaseException):
        pass

    rules = Rules(states)

    def tell(_call: str, _pid: int) -> None:
        if len(rules.made) >= cut:
            raise Killed

    with contextlib.suppress(Killed):
        walk(rules, states, goal, on_call=tell)
    for each in (goal, goal.opposite):
        assert walk(rules, states, each).is_reached
        assert end_of(rules.states) is each


@given(
    states=st.dictionaries(st.integers(1, 6), st.sampled_from(list(ProcessState))),
    goal=st.sampled_from(list(TargetState)),
)
def test_next_calls_are_valid_and_complete(states: dict[int, ProcessState], goal: TargetState) -> None:
    found = next_calls(goal, states)
    assert all(states[pid] is AFTER[call][0] for call, pid in found)
    movable = {RUNNING, LOCKED} if goal is TargetState.SUSPENDED else {CHECKPOINTED, LOCKED}
    assert bool(found) == bool(movable & set(states.values()))
