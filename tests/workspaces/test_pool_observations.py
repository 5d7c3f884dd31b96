"""All workspaces of an engine's pool are observed by one call."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from portal.fleet.inventory.models import Pool
from portal.workspaces import dispatch, pool_observations, results, services
from portal.workspaces.lifecycle import State, TerminationReason
from portal.workspaces.models import PoolObservation, Workspace
from provisioning.types import Failure, Observation, Observations, ObservedState, Op, WorkspaceRef
from tests.sweeps import sweep
from tests.workspaces.helpers import seen, taken

pytestmark = pytest.mark.django_db
SILENT = Failure(code="backend_unavailable", message="No answer.", retryable=True, blame="operator")


def observation(workspace: Workspace, state: str, *, generation: int = 0) -> Observation:
    ref = WorkspaceRef(str(workspace.pk), generation or workspace.generation)
    return Observation(ref, ObservedState(state), ready=state == "running")


def lease() -> str:
    return PoolObservation.objects.get().lease


def answer(*listed: Observation, complete: bool = True, cursor: str = "") -> bool:
    pool = Pool.objects.get(slug="sim")
    return pool_observations.apply(
        pool=pool, lease=lease(), observed=Observations(listed, complete, cursor or "next")
    )


def states(*workspaces: Workspace) -> list[str]:
    for workspace in workspaces:
        workspace.refresh_from_db()
    return [workspace.state for workspace in workspaces]


@pytest.fixture
def starting(pool, make, bob, sent, clock) -> list[Workspace]:
    """Three workspaces that have been launched, and whose next observation is due."""
    made = [make(bob, "sim-cpu") for _ in range(3)]
    for message in sent.take("node.execute"):
        results.apply_result(seen(message.command, "starting"))
    sent.clear()
    clock.shift(2)
    for workspace in made:
        workspace.refresh_from_db()
    return made


def test_one_call_observes_all_starting_workspaces(starting, sent):
    sweep()
    (message,) = sent.take()
    assert (message.task, message.queue, message.kwargs["since"]) == ("node.observe_all", "engine", "")
    first, second, third = starting
    assert answer(
        observation(first, "running"), observation(second, "failed"), observation(third, "starting")
    )
    assert states(*starting) == [State.RUNNING, State.TERMINATING, State.PROVISIONING]
    assert PoolObservation.objects.get().due_at <= timezone.now() + timedelta(seconds=1)
    assert not answer(observation(third, "running")), "the lease is used up"


def test_changes_are_reported_from_the_cursor_of_the_last_answer(starting, sent, clock):
    sweep()
    answer(*(observation(workspace, "starting") for workspace in starting), cursor="17")
    clock.shift(2)
    sent.clear()
    sweep()
    (message,) = sent.take("node.observe_all")
    assert message.kwargs["since"] == "17"
    answer(observation(starting[0], "running"), complete=False)
    assert states(*starting) == [State.RUNNING, State.PROVISIONING, State.PROVISIONING]
    clock.shift(dispatch.COMPLETE_EVERY.total_seconds())
    sent.clear()
    sweep()
    (message,) = sent.take("node.observe_all")
    assert message.kwargs["since"] == ""


def test_only_a_complete_list_shows_what_has_disappeared(starting, sent, clock):
    sweep()
    answer(*(observation(workspace, "running") for workspace in starting))
    first, second, third = starting
    clock.shift(60)
    sweep()
    answer(observation(first, "running"), observation(second, "running", generation=9), complete=False)
    assert states(*starting) == [State.RUNNING, State.TERMINATING, State.RUNNING]
    clock.shift(60)
    sweep()
    answer(observation(first, "running"))
    assert states(*starting) == [State.RUNNING, State.TERMINATING, State.TERMINATING]
    assert third.termination_reason == TerminationReason.LOST


def test_workspaces_launched_after_the_request_are_not_concerned(starting, make, bob, sent, clock):
    sweep()
    clock.shift(1)
    late = make(bob, "sim-cpu")
    (start,) = [message.command for message in sent.take("node.execute")]
    results.apply_result(seen(start, "starting"))
    before = PoolObservation.objects.get().cursor
    late.refresh_from_db()
    found = (observation(late, "running"), *(observation(workspace, "starting") for workspace in starting))
    answer(*found, cursor="18")
    assert states(late) == [State.PROVISIONING]
    assert PoolObservation.objects.get().cursor == before, "the next answer has to repeat it"
    assert PoolObservation.objects.get().due_at <= timezone.now() + timedelta(seconds=1)


def test_answer_to_a_command_in_flight_decides(starting, sent, bob):
    sweep()
    first = starting[0]
    services.stop(actor=bob, workspace_id=first.pk)
    stop = taken(sent, Op.STOP)
    answer(*(observation(workspace, "running") for workspace in starting))
    assert states(*starting) == [State.STOPPING, State.RUNNING, State.RUNNING]
    assert stop.ref.workspace_id == str(first.pk)


def test_engine_that_does_not_answer_is_named_and_asked_again_for_all(starting, sent, clock):
    sweep()
    pool = Pool.objects.get(slug="sim")
    assert pool_observations.apply(pool=pool, lease=lease(), failure=SILENT)
    assert states(*starting) == [State.PROVISIONING] * 3
    assert starting[0].status.reason["params"]["text"] == "No answer."
    sent.clear()
    clock.shift(3)
    sweep()
    (message,) = sent.take("node.observe_all")
    assert message.kwargs["since"] == ""
    answer(*(observation(workspace, "starting") for workspace in starting))
    assert Workspace.objects.get(pk=starting[0].pk).status.reason == {}


def test_lost_answer_is_requested_again_after_its_lease(starting, sent, clock):
    sweep()
    sent.clear()
    old = lease()
    sweep()
    assert not sent.of("node.observe_all"), "one is under way"
    clock.shift(settings.NODE_LEASE_S + 1)
    sweep()
    assert len(sent.of("node.observe_all")) == 1
    pool = Pool.objects.get(slug="sim")
    late = Observations((observation(starting[0], "running"),), complete=True)
    assert not pool_observations.apply(pool=pool, lease=old, observed=late)


def test_answers_of_other_senders_are_refused(starting, sent):
    sweep()
    forged = {"listed": [], "complete": True, "cursor": ""}
    pool_observations.apply_answer("sim", lease(), forged, None)
    assert states(*starting) == [State.PROVISIONING] * 3 and lease()
