"""User actions: create, start, stop, delete; permissions, states and repetition."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.catalog.models import Flavor, Template
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, NotFound, NotPossible, StateConflict, Unavailable
from portal.common.events.models import Event
from portal.common.models import IdempotencyRecord
from portal.people.accounts.models import Team, User
from portal.workspaces import results, services
from portal.workspaces.housekeeping import clean_up
from portal.workspaces.lifecycle import HOLDING, DesiredState, State, TerminationReason
from portal.workspaces.models import Workspace
from provisioning.types import Op
from tests import sites
from tests.factories import FlavorFactory, MembershipFactory, WorkspaceFactory
from tests.rows import error_code, error_message
from tests.snapshots import rows_changed
from tests.workspaces.helpers import active, answer, check_invariants, run_until_ready, seen, taken

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine


def kinds(workspace: Workspace) -> list[str]:
    return list(Event.objects.filter(workspace=workspace).order_by("pk").values_list("kind", flat=True))


# --- create ---------------------------------------------------------------------------------------


def test_creation_places_at_once_and_sends_one_start(make, alice, local_pool, sent):
    workspace = make(alice, name="first")

    assert (workspace.state, workspace.desired_state) == (State.PROVISIONING, DesiredState.RUNNING)
    assert workspace.pool == local_pool
    assert workspace.generation == 1
    assert [allocation.node.name for allocation in active(workspace)] == ["node-1"]
    command = taken(sent, Op.START)
    assert command.lease == workspace.lease != ""
    assert command.ref.workspace_id == str(workspace.pk)
    assert command.spec is not None
    assert command.spec.owner == "alice"
    assert command.spec.home_key == "vision/alice"
    assert command.spec.resources.cpu_milli == workspace.resources["cpu_milli"]
    assert [part.node for part in command.placement.nodes] == ["node-1"]
    assert kinds(workspace) == ["workspace.requested", "workspace.place"]
    assert Event.objects.filter(workspace=workspace).last().actor == alice


def test_creation_does_not_read_related_rows_again(make, alice, local_pool):
    """Foreign key validation would query rows that the order has already read."""
    with CaptureQueriesContext(connection) as queries:
        make(alice)
    lookups = [query["sql"] for query in queries if query["sql"].startswith('SELECT 1 AS "a" FROM')]
    for model in (User, Team, Template, Flavor):
        assert not [sql for sql in lookups if f'FROM "{model._meta.db_table}"' in sql], model


def test_default_name_is_the_first_free_one(make, alice, bob, local_pool):
    assert [make(alice).name for _ in range(3)] == ["jupyterlab", "jupyterlab-2", "jupyterlab-3"]
    assert make(bob).name == "jupyterlab"


def test_name_can_be_reused_after_deletion(make, alice, local_pool, sent):
    workspace = make(alice, name="once")
    services.delete(actor=alice, workspace_id=workspace.pk)
    sent.clear()
    Workspace.objects.filter(pk=workspace.pk).update(state=State.TERMINATED)
    assert make(alice, name="once").pk != workspace.pk


@pytest.mark.parametrize("given", ["Hello", "  hello ", "HELLO", "x" * 60])
def test_names_are_trimmed_and_in_lower_case(make, alice, local_pool, given):
    assert make(alice, name=given).name == given.strip().lower()


@pytest.mark.parametrize(
    "name", ["-a", "a-", "a b", "a/b", "..", "a.b", "ä", "a_b", "x" * 61, "a\nb", "a\x00b", "{token}"]
)
def test_invalid_name_is_refused_with_the_field(make, alice, local_pool, name):
    with pytest.raises(InvalidInput) as refused:
        make(alice, name=name)
    assert "name" in refused.value.extra["errors"]
    assert not Workspace.objects.exists()


def test_name_in_use_is_refused_without_changes(make, alice, local_pool, sent):
    make(alice, name="same")
    sent.clear()
    with pytest.raises(StateConflict) as refused:
        make(alice, name="same", idempotency_key="k")
    assert refused.value.code == "name_taken"
    assert Workspace.objects.count() == 1
    assert not IdempotencyRecord.objects.exists()
    assert len(sent) == 0


def test_same_name_for_another_team_or_user_is_no_conflict(make, alice, bob, local_pool):
    other = MembershipFactory(user=alice).team
    make(alice, name="same")
    make(bob, name="same")
    make(alice, name="same", team=other)
    assert Workspace.objects.count() == 3


@pytest.mark.parametrize("username", ["charlie", "olga"])
def test_only_members_can_charge_a_team(make, local_pool, request, username):
    with pytest.raises(NotAllowed):
        make(request.getfixturevalue(username))
    assert not Workspace.objects.exists()


def test_impossible_request_is_refused_with_reasons_per_node(make, alice, local_pool):
    FlavorFactory(slug="huge", cpu_milli=1_000_000)
    with pytest.raises(NotPossible) as refused:
        make(alice, "huge")
    assert refused.value.extra["reasons"] == [
        {"node": "node-1", "reason": "8 of 8 CPU cores free, needs 1\u202f000", "code": "cpu_short"}
    ]
    assert refused.value.next_action
    assert not Workspace.objects.exists()


def test_request_that_fits_later_is_queued_with_the_blocker(make, alice, local_pool, sent):
    FlavorFactory(slug="all", cpu_milli=8000)
    make(alice, "all")
    sent.clear()
    second = make(alice, "all")
    assert second.state == State.PENDING
    assert error_code(second) == "queued"
    assert "0 of 8 CPU cores free, needs 8" in error_message(second)
    assert second.queue_entry.position == 1
    assert not active(second)
    assert len(sent) == 0


# --- idempotency ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", ""], ids=["named", "without a name"])
def test_repeated_key_returns_the_same_workspace(make, alice, local_pool, sent, name):
    first = make(alice, name=name, idempotency_key="k1")
    sent.clear()
    assert make(alice, name=name, idempotency_key="k1") == first
    assert Workspace.objects.count() == 1
    assert len(sent) == 0


def test_a_key_with_another_request_is_refused(make, alice, local_pool):
    make(alice, name="a", idempotency_key="k1")
    with pytest.raises(StateConflict) as refused:
        make(alice, name="b", idempotency_key="k1")
    assert refused.value.code == "idempotency_key_reused"
    assert Workspace.objects.count() == 1


def test_idempotency_keys_are_per_user(make, alice, bob, local_pool):
    assert make(alice, name="a", idempotency_key="k") != make(bob, name="a", idempotency_key="k")


def test_refused_request_does_not_use_up_its_key(make, alice, local_pool):
    with pytest.raises(InvalidInput):
        make(alice, name="..", idempotency_key="k")
    assert make(alice, name="good", idempotency_key="k").name == "good"


def test_old_keys_are_deleted(make, alice, local_pool, clock):
    make(alice, name="a", idempotency_key="old")
    clock.shift(23 * 3600)
    make(alice, name="b", idempotency_key="new")
    clean_up()
    assert IdempotencyRecord.objects.count() == 2
    clock.shift(2 * 3600)
    clean_up()
    assert list(IdempotencyRecord.objects.values_list("key", flat=True)) == ["new"]


# --- permissions ----------------------------------------------------------------------------------

VERBS = [services.start, services.stop, services.delete]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("username", "allowed"), [("alice", True), ("bob", True), ("olga", True), ("charlie", False)]
)
def test_owner_of_the_team_user_and_operator_may_operate(
    make, bob, local_pool, request, verb, username, allowed
):
    workspace = make(bob)
    actor = request.getfixturevalue(username)
    if allowed:
        verb(actor=actor, workspace_id=workspace.pk)
        return
    with pytest.raises(NotAllowed):
        verb(actor=actor, workspace_id=workspace.pk)
    workspace.refresh_from_db()
    assert (workspace.state, workspace.desired_state) == (State.PROVISIONING, DesiredState.RUNNING)


@pytest.mark.parametrize("verb", VERBS)
def test_member_cannot_operate_the_workspace_of_another(make, alice, bob, local_pool, verb):
    workspace = make(alice)
    with pytest.raises(NotAllowed):
        verb(actor=bob, workspace_id=workspace.pk)


@pytest.mark.parametrize("verb", VERBS)
def test_missing_objects_are_not_found(alice, verb):
    with pytest.raises(NotFound):
        verb(actor=alice, workspace_id=uuid.uuid4())


# --- every verb in every state --------------------------------------------------------------------

ANSWERS = {
    # state: (start, stop, delete); the resulting state, or "refused"
    State.PENDING: (State.PENDING, State.STOPPED, State.TERMINATED),
    State.PROVISIONING: (State.PROVISIONING, State.STOPPING, State.TERMINATING),
    State.RUNNING: (State.RUNNING, State.STOPPING, State.TERMINATING),
    State.STOPPING: ("refused", State.STOPPING, State.STOPPING),
    State.STOPPED: (State.PROVISIONING, State.STOPPED, State.TERMINATING),
    State.TERMINATING: ("refused", "refused", State.TERMINATING),
    State.TERMINATED: ("refused", "refused", State.TERMINATED),
    State.FAILED: (State.PROVISIONING, "refused", State.TERMINATING),
}


@pytest.mark.parametrize("column", [0, 1, 2], ids=["start", "stop", "delete"])
@pytest.mark.parametrize("state", list(State))
def test_every_verb_in_every_state(alice, team, local_pool, state, column):
    workspace = WorkspaceFactory(
        owner=alice,
        team=team,
        state=state,
        template=Template.objects.get(slug="jupyterlab"),
        flavor=Flavor.objects.get(slug="cpu-small"),
        pool=None if state == State.PENDING else local_pool,
        generation=0 if state == State.PENDING else 1,
        desired_state=DesiredState.STOPPED
        if state in {State.STOPPING, State.STOPPED}
        else DesiredState.RUNNING,
        termination_reason=TerminationReason.LOST if state in {State.TERMINATING, State.FAILED} else "",
    )
    expected = ANSWERS[state][column]
    verb = VERBS[column]
    if expected == "refused":
        with pytest.raises(StateConflict) as refused:
            verb(actor=alice, workspace_id=workspace.pk)
        assert refused.value.next_action
        workspace.refresh_from_db()
        assert workspace.state == state
        return
    verb(actor=alice, workspace_id=workspace.pk)
    workspace.refresh_from_db()
    assert workspace.state == expected
    if column == 2 and state != State.TERMINATED:
        assert workspace.desired_state == DesiredState.DELETED
    # Idempotent.
    again = verb(actor=alice, workspace_id=workspace.pk)
    assert again.state == expected


def test_repeated_stop_is_not_recorded_twice(make, alice, local_pool, sent):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    services.stop(actor=alice, workspace_id=workspace.pk)
    services.stop(actor=alice, workspace_id=workspace.pk)
    assert kinds(workspace).count("workspace.stop") == 1
    assert len(sent.commands) == 1


def test_stop_during_a_start_waits_for_its_result(make, alice, local_pool, sent):
    workspace = make(alice)
    start = sent.take("node.execute")[0].command
    services.stop(actor=alice, workspace_id=workspace.pk)
    assert len(sent.commands) == 0, "the start is under way: its answer comes first"

    results.apply_result(seen(start, "starting"))
    assert answer(sent, Op.STOP, "stopped")
    workspace.refresh_from_db()
    assert workspace.state == State.STOPPED
    assert not active(workspace)


def test_deletion_during_a_stop_follows_it(make, alice, local_pool, sent):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    services.stop(actor=alice, workspace_id=workspace.pk)
    services.delete(actor=alice, workspace_id=workspace.pk)
    assert answer(sent, Op.STOP, "stopped")
    workspace.refresh_from_db()
    assert workspace.state == State.TERMINATING
    assert answer(sent, Op.DELETE, "absent")
    workspace.refresh_from_db()
    assert workspace.state == State.TERMINATED
    assert not active(workspace)


def test_deletion_during_a_failure_ends_in_terminated(make, alice, local_pool, sent):
    workspace = make(alice)
    assert answer(sent, Op.START, "failed", exit_code=3)
    workspace.refresh_from_db()
    assert (workspace.state, workspace.termination_reason) == (
        State.TERMINATING,
        TerminationReason.START_FAILED,
    )
    services.delete(actor=alice, workspace_id=workspace.pk)
    assert answer(sent, Op.DELETE, "absent")
    workspace.refresh_from_db()
    assert workspace.state == State.TERMINATED


def test_queued_workspace_is_stopped_and_deleted_without_commands(make, alice, local_pool, sent):
    FlavorFactory(slug="all", cpu_milli=8000)
    make(alice, "all")
    sent.clear()
    queued = make(alice, "all")
    services.stop(actor=alice, workspace_id=queued.pk)
    services.delete(actor=alice, workspace_id=queued.pk)
    queued.refresh_from_db()
    assert queued.state == State.TERMINATED
    assert len(sent) == 0


def test_new_start_clears_fields_of_the_previous_one(make, alice, local_pool, sent):
    workspace = make(alice)
    assert answer(sent, Op.START, "failed", exit_code=3, log_tail="boom", message="It broke.")
    assert answer(sent, Op.DELETE, "absent")
    workspace.refresh_from_db()
    assert workspace.state == State.FAILED
    assert (error_message(workspace), workspace.status.log_tail) == ("It broke.", "boom")

    services.start(actor=alice, workspace_id=workspace.pk)
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING
    assert workspace.generation == 2
    assert (error_code(workspace), error_message(workspace), workspace.status.log_tail) == ("", "", "")
    assert workspace.termination_reason == ""
    assert (workspace.ready_at, workspace.launched_at, workspace.status.heartbeat_at) == (None, None, None)
    check_invariants()


def test_start_is_refused_if_no_pool_can_run_it_any_more(make, alice, local_pool, sent):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    services.stop(actor=alice, workspace_id=workspace.pk)
    assert answer(sent, Op.STOP, "stopped")
    local_pool.enabled = False
    local_pool.save()
    rows_changed()
    with pytest.raises(NotPossible):
        services.start(actor=alice, workspace_id=workspace.pk)
    workspace.refresh_from_db()
    assert workspace.state == State.STOPPED


def test_stop_all_stops_running_starting_and_queued_workspaces(make, alice, bob, local_pool, sent, pool):
    running = make(alice)
    run_until_ready(sent, running)
    provisioning = make(bob)
    sent.clear()
    others = [
        WorkspaceFactory(state=state, pool=pool if state in HOLDING else None)
        for state in (State.STOPPED, State.STOPPING, State.TERMINATING, State.TERMINATED, State.FAILED)
    ]
    before = [other.state for other in others]

    assert services.stop_all(actor=SYSTEM, reason="the portal is being shut down") == 2

    running.refresh_from_db()
    provisioning.refresh_from_db()
    assert running.state == provisioning.state == State.STOPPING
    assert [Workspace.objects.get(pk=other.pk).state for other in others] == before
    event = Event.objects.get(workspace=running, kind="workspace.stop")
    assert event.sentence == "stopped the workspace: the portal is being shut down"


def test_failed_workspace_shows_its_stored_log(make, alice, local_pool, sent):
    workspace = make(alice)
    assert answer(sent, Op.START, "failed", log_tail="last words")
    assert answer(sent, Op.DELETE, "absent")
    workspace.refresh_from_db()
    sent.clear()
    assert services.read_logs(workspace=workspace) == "last words"
    assert len(sent) == 0


def test_logs_without_redis_are_unavailable(make, alice, local_pool, sent):
    workspace = make(alice)
    with pytest.raises(Unavailable):
        services.read_logs(workspace=workspace)
    sent.away = True
    with pytest.raises(Unavailable):
        services.read_logs(workspace=workspace)
