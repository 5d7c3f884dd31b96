"""The orphan sweep ends unexpected workloads, and nothing else."""

from __future__ import annotations

import uuid

import pytest

from portal.fleet.inventory.node_commands import config_of
from portal.workspaces import housekeeping, results, services
from portal.workspaces.lifecycle import HOLDING, State
from portal.workspaces.models import Workspace
from provisioning.registry import driver_for
from provisioning.types import Observation, ObservedState, Op, WorkspaceRef
from tests import sites
from tests.factories import WorkspaceFactory
from tests.workspaces.helpers import run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
EXISTING = [state for state in ObservedState if state is not ObservedState.ABSENT]


def owned(workspace_id: object, generation: int, state: ObservedState | str = "running") -> Observation:
    return Observation(WorkspaceRef(str(workspace_id), generation), ObservedState(state))


def swept(pool, *seen: Observation) -> int:
    return results.apply_owned(pool=pool, node_name="node-1", owned=list(seen))


@pytest.mark.parametrize("state", EXISTING)
def test_unknown_workspaces_are_deleted(local_pool, sent, state):
    stranger = uuid.uuid4()
    assert swept(local_pool, owned(stranger, 3, state)) == 1
    (message,) = sent.take()
    assert message.queue == "node.node-1"
    command = message.command
    assert (command.op, command.ref) == (Op.DELETE, WorkspaceRef(str(stranger), 3))
    assert command.lease == ""


@pytest.mark.parametrize("state", [State.TERMINATED, State.FAILED])
@pytest.mark.parametrize("seen", EXISTING)
def test_workspaces_expected_to_be_ended_are_deleted(local_pool, sent, state, seen):
    row = WorkspaceFactory(state=state, generation=2)
    assert swept(local_pool, owned(row.pk, 2, seen)) == 1
    assert [command.op for command in sent.commands] == [Op.DELETE]


@pytest.mark.parametrize("state", [State.PENDING, State.STOPPED])
def test_unexpectedly_running_workspace_is_stopped(local_pool, sent, state):
    row = WorkspaceFactory(state=state, generation=2)
    assert swept(local_pool, owned(row.pk, 2, "running"), owned(row.pk, 1, "starting")) == 2
    assert [command.op for command in sent.commands] == [Op.STOP, Op.STOP]


@pytest.mark.parametrize("state", [State.PENDING, State.STOPPED])
@pytest.mark.parametrize("seen", ["stopped", "failed", "unknown", "stopping"])
def test_remains_of_stopped_workspaces_are_kept(local_pool, sent, state, seen):
    row = WorkspaceFactory(state=state, generation=2)
    assert swept(local_pool, owned(row.pk, 2, seen)) == 0
    assert len(sent) == 0


@pytest.mark.parametrize("state", sorted(HOLDING))
@pytest.mark.parametrize("seen", EXISTING)
def test_expected_processes_are_kept(local_pool, sent, state, seen):
    row = WorkspaceFactory(state=state, generation=2, pool=local_pool)
    assert swept(local_pool, owned(row.pk, 2, seen)) == 0
    assert len(sent) == 0


@pytest.mark.parametrize("state", list(State))
def test_newer_generation_is_ignored_unless_the_workspace_has_ended(local_pool, sent, state):
    row = WorkspaceFactory(state=state, generation=2, pool=local_pool)
    found = swept(local_pool, owned(row.pk, 3))
    assert found == (1 if state in {State.TERMINATED, State.FAILED} else 0)


def test_an_earlier_incarnation_in_the_same_pool_is_stopped(local_pool, sent):
    row = WorkspaceFactory(state=State.RUNNING, generation=2, pool=local_pool)
    assert swept(local_pool, owned(row.pk, 1)) == 1
    assert [(command.op, command.ref.generation) for command in sent.commands] == [(Op.STOP, 1)]


def test_an_earlier_incarnation_in_another_pool_is_deleted(local_pool, pool, sent):
    row = WorkspaceFactory(state=State.RUNNING, generation=2, pool=pool)
    assert swept(local_pool, owned(row.pk, 1)) == 1
    assert [(command.op, command.ref.generation) for command in sent.commands] == [(Op.DELETE, 1)]


def test_remains_of_an_earlier_incarnation_in_the_same_pool_are_kept(local_pool, sent):
    row = WorkspaceFactory(state=State.RUNNING, generation=2, pool=local_pool)
    assert swept(local_pool, owned(row.pk, 1, "stopped")) == 0


@pytest.mark.parametrize("name", ["", "not-a-uuid", "{00000000-0000-0000-0000-000000000001}"])
def test_invalid_name_does_not_stop_the_sweep(local_pool, sent, name):
    assert swept(local_pool, owned(name, 1), owned(uuid.uuid4(), 1)) == 1


def test_answers_for_a_deleted_pool_are_dropped(db, sent):
    housekeeping.apply_owned("gone", "", [])
    assert len(sent) == 0


def test_every_enabled_pool_is_queried(local_pool, pool, sent):
    housekeeping.ask_for_owned()
    assert sorted((message.task, message.queue, message.kwargs["node"]) for message in sent) == [
        ("node.list_owned", "engine", ""),
        ("node.list_owned", "node.node-1", "node-1"),
    ]
    sent.clear()
    local_pool.enabled = pool.enabled = False
    local_pool.save()
    pool.save()
    housekeeping.ask_for_owned()
    assert len(sent) == 0


def test_orphan_sweep_takes_two_queries(local_pool, sent, django_assert_max_num_queries):
    rows = [WorkspaceFactory(state=State.RUNNING, pool=local_pool, generation=1) for _ in range(30)]
    with django_assert_max_num_queries(2):
        assert swept(local_pool, *(owned(row.pk, 1) for row in rows)) == 0


def test_orphan_on_the_simulated_backend_is_ended(make, alice, pool, settle, sent, run_node):
    """A restored old database: the row is missing while its workspace runs."""
    workspace = make(alice, "sim-h100-x1")
    settle()
    driver = driver_for(config_of(pool))
    assert len(driver.list_owned()) == 1
    Workspace.objects.filter(pk=workspace.pk).update(state=State.TERMINATED)
    housekeeping.ask_for_owned()
    run_node()
    assert driver.list_owned() == ()
    assert driver.usage() == {}


def test_sweep_does_not_end_expected_workspaces(make, alice, pool, settle, sent, run_node):
    rows = [make(alice, "sim-cpu", name=f"w{n}") for n in range(3)]
    settle()
    services.stop(actor=alice, workspace_id=rows[1].pk)
    settle()
    housekeeping.ask_for_owned()
    run_node()
    settle()
    states = [Workspace.objects.get(pk=row.pk).state for row in rows]
    assert states == [State.RUNNING, State.STOPPED, State.RUNNING]


def test_late_sweep_does_not_end_a_new_start(make, alice, local_pool, sent):
    """The list was made before a restart and arrives after it."""
    workspace = make(alice)
    run_until_ready(sent, workspace)
    Workspace.objects.filter(pk=workspace.pk).update(generation=2)
    swept(local_pool, owned(workspace.pk, 1))
    assert all(command.ref.generation == 1 for command in sent.commands)
