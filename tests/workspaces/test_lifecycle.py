"""The transition table: listed transitions work, all others are refused."""

from __future__ import annotations

import pytest

from portal.common.actors import SYSTEM
from portal.common.errors import StateConflict
from portal.common.events.models import Event
from portal.workspaces.lifecycle import (
    DELETABLE,
    FAILURES,
    HOLDING,
    LIVE,
    STARTABLE,
    STOPPABLE,
    TARGET,
    TRANSITIONS,
    State,
    TerminationReason,
    Trigger,
    target_of,
)
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import advance
from tests.factories import WorkspaceFactory

EXPECTED = {
    ("pending", "place"): "provisioning",
    ("pending", "cancel"): "terminated",
    ("pending", "stop"): "stopped",
    ("provisioning", "ready"): "running",
    ("provisioning", "no_capacity"): "pending",
    ("provisioning", "stop"): "stopping",
    ("provisioning", "fail"): "terminating",
    ("provisioning", "terminate"): "terminating",
    ("running", "stop"): "stopping",
    ("running", "lost"): "terminating",
    ("running", "engine_requeue"): "provisioning",
    ("running", "terminate"): "terminating",
    ("stopping", "stopped"): "stopped",
    ("stopped", "start"): "pending",
    ("stopped", "terminate"): "terminating",
    ("stopped", "cancel"): "terminated",
    ("terminating", "gone"): "terminated",
    ("failed", "retry"): "pending",
    ("failed", "terminate"): "terminating",
}
EVERY_PAIR = [(state.value, trigger.value) for state in State for trigger in Trigger]
REFUSED = [pair for pair in EVERY_PAIR if pair not in EXPECTED]


def row(state: str, pool=None, **fields) -> Workspace:
    return WorkspaceFactory(state=state, pool=pool if state in HOLDING else None, **fields)


def test_transition_table_equals_the_design():
    assert {(a.value, b.value): c.value for (a, b), c in TRANSITIONS.items()} == EXPECTED


@pytest.mark.parametrize(("state", "trigger"), EXPECTED, ids=lambda value: str(value))
def test_transition_updates_the_row_and_writes_one_event(state, trigger, pool):
    workspace = row(state, pool)
    fields = {"pool": pool} if EXPECTED[state, trigger] in HOLDING else {}

    advance(workspace, Trigger(trigger), actor=SYSTEM, message="moved it", data={"why": "test"}, **fields)

    stored = Workspace.objects.get(pk=workspace.pk)
    assert stored.state == workspace.state == EXPECTED[state, trigger]
    assert stored.state_since == workspace.state_since
    event = Event.objects.get(workspace=workspace)
    assert event.kind == f"workspace.{trigger}"
    assert event.message == "moved it"
    assert event.actor is None
    assert event.actor_label == "Berth"
    assert event.data == {"from": state, "to": EXPECTED[state, trigger], "why": "test"}


@pytest.mark.parametrize(("state", "trigger"), REFUSED, ids=lambda value: str(value))
def test_unlisted_transition_is_refused(state, trigger):
    with pytest.raises(StateConflict) as refused:
        target_of(state, Trigger(trigger))
    assert refused.value.extra["state"] == state
    assert refused.value.next_action


@pytest.mark.parametrize(("state", "trigger"), [("running", "ready"), ("terminated", "retry")])
def test_a_refused_transition_changes_nothing(state, trigger, pool):
    workspace = row(state, pool)
    with pytest.raises(StateConflict):
        advance(workspace, Trigger(trigger), actor=SYSTEM, message="moved it", attempts=9)
    stored = Workspace.objects.get(pk=workspace.pk)
    assert (stored.state, stored.attempts) == (state, 0)
    assert not Event.objects.filter(workspace=workspace).exists()


@pytest.mark.parametrize("reason", list(TerminationReason))
def test_gone_ends_in_failed_after_a_failure_else_in_terminated(reason, pool):
    workspace = row("terminating", pool, termination_reason=reason)
    advance(workspace, Trigger.GONE, actor=SYSTEM, message="has ended it")
    assert workspace.state == (State.FAILED if reason in FAILURES else State.TERMINATED)


def test_loser_of_a_race_changes_nothing(pool):
    workspace = row("running", pool)
    other = Workspace.objects.get(pk=workspace.pk)
    advance(other, Trigger.STOP, actor=SYSTEM, message="stopped it")

    with pytest.raises(StateConflict):
        advance(workspace, Trigger.TERMINATE, actor=SYSTEM, message="deleted it", attempts=3)

    stored = Workspace.objects.get(pk=workspace.pk)
    assert (stored.state, stored.attempts) == (State.STOPPING, 0)
    assert Event.objects.filter(workspace=workspace).count() == 1


def test_row_of_another_generation_is_not_changed(pool):
    workspace = row("running", pool, generation=3)
    Workspace.objects.filter(pk=workspace.pk).update(generation=4)
    with pytest.raises(StateConflict):
        advance(workspace, Trigger.STOP, actor=SYSTEM, message="stopped it")


def test_event_names_the_actor(alice, pool):
    workspace = row("running", pool, owner=alice)
    advance(workspace, Trigger.STOP, actor=alice, message="stopped it")
    event = Event.objects.get(workspace=workspace)
    assert (event.actor, event.actor_label, event.team) == (alice, "alice", workspace.team)


def test_state_sets_agree_with_the_table():
    assert set(TARGET) <= set(State)
    assert frozenset(set(State) - {State.TERMINATED}) == LIVE
    assert {state for state in State if (state, Trigger.STOP) in TRANSITIONS} == STOPPABLE
    assert {
        state for state in State if {(state, Trigger.START), (state, Trigger.RETRY)} & set(TRANSITIONS)
    } == STARTABLE
    deletable_by_table = {
        state for state in State if {(state, Trigger.TERMINATE), (state, Trigger.CANCEL)} & set(TRANSITIONS)
    }
    assert deletable_by_table | {State.STOPPING} == DELETABLE
    # Every state leads to a final state.
    reachable = {State.TERMINATED, State.FAILED}
    for _ in State:
        reachable |= {source for (source, _), target in TRANSITIONS.items() if target in reachable}
    assert reachable == set(State)
