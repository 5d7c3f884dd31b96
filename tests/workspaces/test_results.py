"""Results of the node plane: once, repeated, late, for another start, success and failure."""

from __future__ import annotations

import uuid

import pytest

from portal.common.events.models import Event, Notification
from portal.scheduling import cycle
from portal.workspaces import reconcile, results, services
from portal.workspaces.lifecycle import State, TerminationReason
from portal.workspaces.models import Workspace
from provisioning.traits import STARTING_OBSERVE_S
from provisioning.types import Observation, ObservedState, Op, Result, WorkspaceRef
from tests import sites
from tests.factories import FlavorFactory
from tests.rows import error_code, error_message
from tests.suite.choice import quick_of
from tests.sweeps import sweep
from tests.workspaces.helpers import (
    active,
    answer,
    check_invariants,
    failed,
    run_until_ready,
    seen,
    taken,
)

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
WORLD = sites.one_machine
ENDPOINT = "http://127.0.0.1:18001"


@pytest.fixture
def workspace(clock, make, alice, local_pool) -> Workspace:
    return make(alice)


@pytest.fixture
def running(workspace, sent) -> Workspace:
    run_until_ready(sent, workspace)
    return workspace


def picture(workspace: Workspace) -> dict:
    """Return the row and its events, for comparison."""
    row = Workspace.objects.filter(pk=workspace.pk).values().get()
    return {**row, "events": Event.objects.filter(workspace=workspace).count(), "held": active(workspace)}


# --- accepted results -----------------------------------------------------------------------------


def test_result_is_applied_once(workspace, sent):
    command = taken(sent, Op.START)
    result = seen(command, "running", ready=True, endpoint=ENDPOINT)
    assert results.apply_result(result) is True
    before = picture(workspace)
    assert results.apply_result(result) is False
    assert picture(workspace) == before


@pytest.mark.parametrize(
    "state",
    quick_of(ObservedState, (ObservedState.RUNNING, ObservedState.FAILED), "`make test` has two states"),
)
@pytest.mark.parametrize("lease", ["", "0" * 32])
def test_result_with_another_lease_changes_nothing(workspace, sent, state, lease):
    command = taken(sent, Op.START)
    before = picture(workspace)
    ref = command.ref
    assert results.apply_result(Result(Op.START, ref, lease, Observation(ref, state, ready=True))) is False
    assert picture(workspace) == before
    assert len(sent) == 0


def test_result_for_another_generation_changes_nothing(workspace, sent):
    command = taken(sent, Op.START)
    before = picture(workspace)
    ref = WorkspaceRef(command.ref.workspace_id, 7)
    late = Result(Op.START, ref, command.lease, Observation(ref, ObservedState.RUNNING, ready=True))
    assert results.apply_result(late) is False
    assert picture(workspace) == before


def test_result_for_an_unknown_workspace_is_dropped(db):
    ref = WorkspaceRef(str(uuid.uuid4()), 1)
    assert results.apply_result(Result(Op.STOP, ref, "x", Observation(ref, ObservedState.ABSENT))) is False


# --- starting -------------------------------------------------------------------------------------


def test_starting_workspace_is_observed_again(workspace, sent, clock):
    assert answer(sent, Op.START, "starting", endpoint=ENDPOINT)
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING
    assert workspace.launched_at is not None
    assert workspace.endpoint == ENDPOINT
    sweep()
    assert len(sent) == 0, "not before its time"
    clock.shift(STARTING_OBSERVE_S)
    sweep()
    assert answer(sent, Op.OBSERVE, "running", ready=True, endpoint=ENDPOINT)
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    assert Event.objects.filter(workspace=workspace, kind="workspace.launched").count() == 1


def test_running_app_that_is_not_ready_stays_provisioning(workspace, sent):
    assert answer(sent, Op.START, "running", ready=False)
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING


def test_no_capacity_requeues_only_after_observed_absence(workspace, sent):
    command = taken(sent, Op.START)
    results.apply_result(failed(command, "no_capacity", message="node-1 is full."))
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING
    assert len(active(workspace)) == 1
    # The deletion closes the generation: a late copy of the start is refused.
    assert answer(sent, Op.DELETE, "absent")
    workspace.refresh_from_db()
    assert workspace.state == State.PENDING
    assert not active(workspace)
    assert error_message(workspace) == "node-1 is full."
    check_invariants()


@pytest.mark.parametrize("state", ["unknown", "stopping", "stopped", "running"])
def test_no_capacity_without_observed_absence_keeps_the_allocation(workspace, sent, clock, state):

    results.apply_result(failed(taken(sent, Op.START), "no_capacity", message="node-1 is full."))
    assert answer(sent, Op.DELETE, state, code="node_away", message="The node is away.")
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING
    assert len(active(workspace)) == 1
    assert workspace.launched_at is None
    sent.clear()
    clock.shift(2)
    sweep()
    results.apply_result(failed(taken(sent, Op.DELETE), "backend_unavailable"))
    clock.shift(200)
    sweep()
    assert answer(sent, Op.DELETE, "absent")
    workspace.refresh_from_db()
    assert workspace.state == State.PENDING
    assert error_message(workspace) == "node-1 is full."


def test_stop_during_a_requeue_ends_in_stopped(workspace, alice, sent):
    results.apply_result(failed(taken(sent, Op.START), "no_capacity"))
    services.stop(actor=alice, workspace_id=workspace.pk)
    assert answer(sent, Op.DELETE, "absent")
    assert answer(sent, Op.STOP, "absent")
    workspace.refresh_from_db()
    assert workspace.state == State.STOPPED
    assert not active(workspace)


def test_requeued_workspace_starts_with_the_next_generation(workspace, sent, clock):

    results.apply_result(failed(taken(sent, Op.START), "no_capacity"))
    assert answer(sent, Op.DELETE, "absent")
    clock.shift(60)
    sweep()
    assert taken(sent, Op.START).ref.generation == 2
    check_invariants()


@pytest.mark.parametrize("code", ["backend_unavailable", "start_failed", "stale"])
def test_retryable_failure_is_retried_with_backoff(workspace, sent, clock, code):

    waits = []
    for _ in range(7):
        results.apply_result(failed(taken(sent, Op.START), code, retryable=code != "stale"))
        workspace.refresh_from_db()
        assert workspace.state == State.PROVISIONING
        assert error_code(workspace) == code
        assert len(active(workspace)) == 1
        from django.utils import timezone

        wait = (workspace.next_reconcile_at - timezone.now()).total_seconds()
        waits.append(wait)
        clock.shift(wait - 0.001)
        sweep()
        assert len(sent) == 0
        clock.shift(0.002)
        if sum(waits) > workspace.template.start_timeout_s:
            break
        sweep()
    assert waits[:5] == [2, 4, 8, 16, 30]


@pytest.mark.parametrize("code", ["invalid_spec", "conflict", "missing_dependency", "isolation_required"])
def test_permanent_failure_ends_in_failed(workspace, sent, code):
    results.apply_result(
        failed(taken(sent, Op.START), code, retryable=False, message="No. Ask your operator.")
    )
    workspace.refresh_from_db()
    assert workspace.state == State.TERMINATING
    assert len(active(workspace)) == 1, "capacity is kept until absence has been seen"
    assert answer(sent, Op.DELETE, "absent")
    workspace.refresh_from_db()
    assert workspace.state == State.FAILED
    assert (error_code(workspace), error_message(workspace)) == (code, "No. Ask your operator.")
    assert not active(workspace)


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_app_ending_during_the_start_fails_with_its_log(workspace, sent, state):
    assert answer(sent, Op.START, state, exit_code=3, log_tail="no such module")
    workspace.refresh_from_db()
    assert workspace.state == State.TERMINATING
    assert workspace.termination_reason == TerminationReason.START_FAILED
    assert workspace.status.log_tail == "no such module"
    assert "exit code 3" in error_message(workspace)


def test_launched_workspace_that_ended_fails(workspace, sent, clock):
    assert answer(sent, Op.START, "starting")
    clock.shift(STARTING_OBSERVE_S)
    sweep()
    assert answer(sent, Op.OBSERVE, "absent")
    workspace.refresh_from_db()
    assert (workspace.state, workspace.termination_reason) == (
        State.TERMINATING,
        TerminationReason.START_FAILED,
    )


def test_timeout_of_readiness_fails(workspace, sent, clock):

    assert answer(sent, Op.START, "starting")
    clock.shift(workspace.template.start_timeout_s + 1)
    sweep()
    workspace.refresh_from_db()
    assert (workspace.state, error_code(workspace)) == (State.TERMINATING, "start_timeout")
    assert "did not respond within 120 s" in error_message(workspace)
    assert answer(sent, Op.DELETE, "absent")
    workspace.refresh_from_db()
    assert workspace.state == State.FAILED


def test_timeout_without_any_backend_answer_is_reported(workspace, sent, clock):

    results.apply_result(
        failed(taken(sent, Op.START), "backend_unavailable", message="The node does not answer.")
    )
    clock.shift(workspace.template.start_timeout_s + 1)
    sweep()
    workspace.refresh_from_db()
    assert "The node does not answer." in error_message(workspace)


# --- running --------------------------------------------------------------------------------------


def observe(running: Workspace, sent, clock) -> None:
    clock.shift(reconcile.heartbeat_patience().total_seconds() + 1)
    sweep()


def test_missing_workspace_is_lost_and_fails(running, sent, clock):
    observe(running, sent, clock)
    assert answer(sent, Op.OBSERVE, "absent")
    running.refresh_from_db()
    assert (running.state, running.termination_reason) == (State.TERMINATING, TerminationReason.LOST)
    assert len(active(running)) == 1
    assert answer(sent, Op.DELETE, "absent")
    running.refresh_from_db()
    assert (running.state, error_code(running)) == (State.FAILED, "lost")
    assert not active(running)


def test_observed_older_generation_means_lost(running, sent, clock):
    observe(running, sent, clock)
    assert answer(sent, Op.OBSERVE, "running", generation=0, ready=True)
    running.refresh_from_db()
    assert running.termination_reason == TerminationReason.LOST


def test_ended_app_fails_with_the_driver_reason(running, sent, clock):
    observe(running, sent, clock)
    assert answer(
        sent, Op.OBSERVE, "failed", exit_code=137, code="out_of_memory", message="It needed more memory."
    )
    running.refresh_from_db()
    assert running.termination_reason == TerminationReason.APP_EXITED
    assert (error_code(running), error_message(running)) == ("out_of_memory", "It needed more memory.")


def test_operators_see_machines_out_of_memory(running, sent, clock, olga):
    observe(running, sent, clock)
    assert answer(
        sent, Op.OBSERVE, "failed", exit_code=137, code="machine_out_of_memory", message="No memory."
    )
    node = active(running)[0].node
    notices_of = Notification.objects.get(user=olga, kind="node.memory_full")
    assert node.name in notices_of.title and notices_of.url == f"/gpus/nodes/{node.pk}/"
    running.refresh_from_db()
    assert error_code(running) == "machine_out_of_memory"


def test_unknown_never_means_dead(running, sent, clock):
    for _ in range(10):
        observe(running, sent, clock)
        assert answer(sent, Op.OBSERVE, "unknown", code="node_away", message="Node away.")
        running.refresh_from_db()
        assert running.state == State.RUNNING
        assert len(active(running)) == 1
        assert (error_code(running), error_message(running)) == ("node_away", "Node away.")
    observe(running, sent, clock)
    assert answer(sent, Op.OBSERVE, "running", ready=True)
    running.refresh_from_db()
    assert (running.state, error_code(running), error_message(running)) == (State.RUNNING, "", "")


def test_unreachable_backend_keeps_the_workspace_running(running, sent, clock):
    observe(running, sent, clock)
    results.apply_result(failed(taken(sent, Op.OBSERVE), "backend_unavailable"))
    running.refresh_from_db()
    assert running.state == State.RUNNING
    assert len(active(running)) == 1


def test_endpoint_of_the_driver_replaces_that_of_the_agent(running, sent, clock):
    observe(running, sent, clock)
    assert answer(sent, Op.OBSERVE, "running", ready=True, endpoint="http://127.0.0.1:18055")
    running.refresh_from_db()
    assert running.endpoint == "http://127.0.0.1:18055"


# --- ending ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["unknown", "running", "stopping", "starting"])
def test_stop_continues_until_the_end_is_observed(running, alice, sent, run_node, clock, state):
    services.stop(actor=alice, workspace_id=running.pk)
    assert answer(sent, Op.STOP, state)
    running.refresh_from_db()
    assert running.state == State.STOPPING
    assert len(active(running)) == 1
    assert sent.tasks == ["control.reconcile"], "a hint makes the next look quick"
    sent.clear()
    clock.shift(reconcile.STOPPING_OBSERVE_S)
    sweep()
    assert answer(sent, Op.STOP, "stopped")
    running.refresh_from_db()
    assert running.state == State.STOPPED
    assert running.endpoint == ""
    assert not active(running)


@pytest.mark.parametrize("state", ["unknown", "running", "stopping", "stopped", "failed"])
def test_deletion_continues_until_absence_is_observed(running, alice, sent, clock, state):
    services.delete(actor=alice, workspace_id=running.pk)
    assert answer(sent, Op.DELETE, state)
    running.refresh_from_db()
    assert running.state == State.TERMINATING
    assert len(active(running)) == 1
    sent.clear()
    clock.shift(reconcile.STOPPING_OBSERVE_S)
    sweep()
    assert answer(sent, Op.DELETE, "absent")
    running.refresh_from_db()
    assert running.state == State.TERMINATED


def test_failed_deletion_keeps_the_allocation_and_is_retried(running, alice, sent, clock):

    services.delete(actor=alice, workspace_id=running.pk)
    for _ in range(4):
        results.apply_result(failed(taken(sent, Op.DELETE), "backend_unavailable"))
        running.refresh_from_db()
        assert running.state == State.TERMINATING
        assert len(active(running)) == 1
        clock.shift(31)
        sweep()
    assert answer(sent, Op.DELETE, "absent")
    running.refresh_from_db()
    assert running.state == State.TERMINATED


def test_observation_answered_after_a_stop_request_continues_the_stop(running, alice, sent, clock):
    observe(running, sent, clock)
    look = taken(sent, Op.OBSERVE)
    services.stop(actor=alice, workspace_id=running.pk)
    assert len(sent) == 0
    # The observation was made before the stop command: the stop must observe the end itself.
    results.apply_result(seen(look, "absent"))
    running.refresh_from_db()
    assert running.state == State.STOPPING
    assert answer(sent, Op.STOP, "absent")
    running.refresh_from_db()
    assert running.state == State.STOPPED


def test_released_capacity_wakes_the_queue(make, alice, local_pool, sent, clock):
    FlavorFactory(slug="all", cpu_milli=8000)
    first = make(alice, "all")
    run_until_ready(sent, first)
    waiting = make(alice, "all")
    clock.shift(1)
    services.stop(actor=alice, workspace_id=first.pk)
    assert answer(sent, Op.STOP, "stopped")
    sweep()
    waiting.refresh_from_db()
    assert waiting.state == State.PROVISIONING
    check_invariants()


# --- program output -------------------------------------------------------------------------------

NASTY = "before\x00after\ud800 \N{SNOWMAN} \x1b[31m"


def test_log_with_nul_and_invalid_characters_is_cleaned(running, sent, clock):
    observe(running, sent, clock)
    assert answer(sent, Op.OBSERVE, "failed", exit_code=1, log_tail=NASTY, message=NASTY)
    running.refresh_from_db()
    assert running.state == State.TERMINATING
    assert running.status.log_tail == "beforeafter? \N{SNOWMAN} \x1b[31m"
    assert "\x00" not in error_message(running)


def test_failure_message_with_invalid_characters_is_cleaned(workspace, sent):
    results.apply_result(failed(taken(sent, Op.START), "backend_unavailable", message=NASTY))
    workspace.refresh_from_db()
    assert error_message(workspace).startswith("beforeafter")


def test_owner_is_notified_when_ready_after_a_long_wait(make, alice, local_pool, sent, clock):
    run_until_ready(sent, make(alice))
    assert not Notification.objects.filter(kind="workspace.ready").exists()
    local_pool.nodes.update(cordoned=True)
    late = make(alice, name="late")
    assert late.state == State.PENDING
    clock.shift(600)
    local_pool.nodes.update(cordoned=False)
    cycle.run()
    run_until_ready(sent, late)
    notices_of = Notification.objects.get(kind="workspace.ready")
    assert (notices_of.user, notices_of.title) == (alice, "late is ready")
    assert "waited 10 min" in notices_of.body


def notices_of(user, kind: str) -> list[tuple[str, str, int]]:
    found = Notification.objects.filter(user=user, kind=kind).order_by("pk")
    return [(notice.title, notice.body, notice.repeats) for notice in found]


def test_owner_is_notified_once_of_a_failed_start(make, alice, local_pool, sent):
    for name in ("one", "two", "three"):
        workspace = make(alice, name=name)
        results.apply_result(
            failed(taken(sent, Op.START), "no_image", message="No such image.", retryable=False)
        )
        workspace.refresh_from_db()
        assert workspace.state == State.TERMINATING
        assert answer(sent, Op.DELETE, "absent")
    ((title, body, repeats),) = notices_of(alice, "workspace.failed")
    assert (title, repeats) == ("one failed to start", 2)
    assert "No such image." in body


def test_owner_is_notified_of_a_lost_or_ended_workspace(running, sent, clock, alice):
    observe(running, sent, clock)
    assert answer(sent, Op.OBSERVE, "absent")
    ((title, _body, _repeats),) = notices_of(running.owner, "workspace.lost")
    assert title == f"{running.name} has disappeared"


def test_own_stop_or_deletion_sends_no_notice(running, sent, alice):
    services.delete(actor=alice, workspace_id=running.pk)
    assert answer(sent, Op.DELETE, "absent")
    assert not Notification.objects.exists()
