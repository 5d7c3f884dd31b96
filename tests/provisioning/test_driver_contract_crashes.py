"""The contract of drivers: races and killed processes."""

from __future__ import annotations

import os

import pytest

from provisioning.errors import StaleCommand
from provisioning.types import ObservedState
from tests.suite.choice import THOROUGH, quick_of

ABSENT, RUNNING = ObservedState.ABSENT, ObservedState.RUNNING
# Number of points inside a call at which the process is killed.
KILL_POINTS = int(os.environ.get("BERTH_TEST_KILL_POINTS") or (12 if os.environ.get(THOROUGH) else 3))


def test_concurrent_starts_from_several_processes_start_one_workspace(harness):
    spec = harness.spec()
    callers = [harness.caller("start", spec) for _ in range(4)]
    for caller in callers:
        caller.go()
    answers = [caller.answer() for caller in callers]
    states = [answer.get("state") for answer in answers if answer]
    assert len(states) == 4
    assert {"starting", "running"} & set(states), answers
    harness.wait(lambda: harness.driver.observe(spec.ref), RUNNING)
    assert harness.running(spec) == 1
    assert harness.starts(spec) == 1


@pytest.mark.parametrize("op", quick_of(("stop", "delete"), ("delete",), "`make test` has the deletion"))
def test_start_racing_with_a_stop_leaves_nothing_running(harness, op):
    for _ in range(3):
        spec = harness.spec()
        callers = [harness.caller("start", spec), harness.caller(op, spec)]
        for caller in callers:
            caller.go()
        assert all(caller.answer() for caller in callers)
        (harness.stop if op == "stop" else harness.delete)(spec.ref)
        with pytest.raises(StaleCommand):
            harness.start(spec)
        assert harness.running(spec) == 0


def test_a_workspace_outlives_the_process_that_started_it(harness):
    spec = harness.spec()
    caller = harness.caller("start", spec)
    caller.go()
    answer = caller.answer()
    assert answer and answer["state"] in ("starting", "running")
    harness.wait(lambda: harness.driver.observe(spec.ref), RUNNING)
    assert harness.running(spec) == 1


def kill_points(harness, op, spec, *, between=False):
    """Return points spread over the whole length of a call, measured on a separate workspace.

    `between` returns those halfway between the others.
    """
    caller = harness.caller(op, spec)
    caller.go()
    answer = caller.answer()
    assert answer and "state" in answer, answer
    steps = int(answer["steps"])
    assert steps > KILL_POINTS
    first = steps // (2 * KILL_POINTS) if between else 1
    return [first + steps * part // KILL_POINTS for part in range(KILL_POINTS)]


def test_start_killed_at_any_point_and_repeated_runs_once(harness):
    died = 0
    for point in kill_points(harness, "start", harness.spec()):
        spec = harness.spec()
        caller = harness.caller("start", spec, kill_at=point)
        caller.go()
        died += caller.answer() is None
        harness.retried(lambda spec=spec: harness.start(spec))
        harness.wait(lambda spec=spec: harness.driver.observe(spec.ref), RUNNING)
        assert harness.running(spec) == 1, f"killed at step {point}"
        harness.delete(spec.ref)
    assert died >= KILL_POINTS // 2


def test_start_killed_at_any_point_can_be_deleted(harness):
    died, deleted = 0, []
    for point in kill_points(harness, "start", harness.spec(), between=True):
        spec = harness.spec()
        caller = harness.caller("start", spec, kill_at=point)
        caller.go()
        died += caller.answer() is None
        harness.delete(spec.ref)
        assert harness.running(spec) == 0, f"killed at step {point}"
        deleted.append(spec)
    assert died >= KILL_POINTS // 2
    # Nothing in progress at the confirmed deletion may come up afterwards.
    harness.run(harness.spec())
    assert [harness.running(spec) for spec in deleted] == [0] * len(deleted)
    assert {harness.driver.observe(spec.ref).state for spec in deleted} == {ABSENT}


@pytest.mark.parametrize("op", ["stop", "delete"])
def test_stop_killed_at_any_point_and_repeated_completes(harness, op):
    measured = harness.spec()
    harness.run(measured)
    died = 0
    for point in kill_points(harness, op, measured)[::2]:
        spec = harness.spec()
        harness.run(spec)
        caller = harness.caller(op, spec, kill_at=point)
        caller.go()
        died += caller.answer() is None
        (harness.stop if op == "stop" else harness.delete)(spec.ref)
        assert harness.running(spec) == 0, f"killed at step {point}"
        with pytest.raises(StaleCommand):
            harness.start(spec)
    assert died >= 2
