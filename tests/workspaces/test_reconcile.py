"""The reconciler: due rows, one command at a time, lost messages, invalid rows, queue order."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.catalog.models import Flavor, Template
from portal.fleet.inventory.node_commands import config_of
from portal.workspaces import reconcile, results, services
from portal.workspaces.lifecycle import HOLDING, DesiredState, State
from portal.workspaces.models import Workspace
from provisioning.node.tasks import run
from provisioning.registry import driver_for
from provisioning.types import Op
from tests import sites
from tests.factories import FlavorFactory, TeamFactory, UserFactory, WorkspaceFactory, rescript
from tests.rows import error_code
from tests.snapshots import rows_changed
from tests.suite.choice import quick_of
from tests.sweeps import sweep
from tests.workspaces.helpers import active, answer, check_invariants, run_until_ready, taken

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog


def test_one_command_per_workspace_at_a_time(make, alice, local_pool, sent):
    workspace = make(alice)
    for _ in range(3):
        reconcile.reconcile(workspace.pk)
        sweep()
    assert len(sent.commands) == 1


def test_lost_command_is_sent_again_after_its_lease(make, alice, local_pool, sent, clock):
    workspace = make(alice)
    lost = taken(sent, Op.START)
    clock.shift(19)
    assert sweep() == 0
    clock.shift(2)
    assert sweep() == 1
    again = taken(sent, Op.START)
    assert again.ref == lost.ref
    assert again.lease != lost.lease
    assert again.spec.digest() == lost.spec.digest()
    assert again.placement == lost.placement
    workspace.refresh_from_db()
    assert workspace.generation == 1
    assert len(active(workspace)) == 1


def test_a_command_expires_with_its_lease(make, alice, local_pool, sent, clock):
    make(alice)
    command = taken(sent, Op.START)
    assert command.expires_at == pytest.approx(timezone.now().timestamp() + 20)

    clock.shift(21)
    result = run(command, now=timezone.now().timestamp())
    assert result.observation is None
    assert result.failure is not None
    assert result.failure.code == "stale"


def test_settled_rows_are_not_due(make, alice, local_pool, sent):
    for state in (State.STOPPED, State.FAILED, State.TERMINATED):
        row = WorkspaceFactory(
            state=state, desired_state=DesiredState.STOPPED, next_reconcile_at=timezone.now()
        )
        reconcile.reconcile(row.pk)
        row.refresh_from_db()
        assert row.next_reconcile_at is None
        assert row.state == state
    assert len(sent) == 0


def test_stopped_workspace_marked_for_deletion_is_deleted(alice, team, local_pool, catalog, sent):
    placed = WorkspaceFactory(
        state=State.STOPPED,
        desired_state=DesiredState.DELETED,
        pool=local_pool,
        generation=1,
        next_reconcile_at=timezone.now(),
    )
    never = WorkspaceFactory(
        state=State.STOPPED, desired_state=DesiredState.DELETED, next_reconcile_at=timezone.now()
    )
    sweep()
    never.refresh_from_db()
    assert never.state == State.TERMINATED
    assert answer(sent, Op.DELETE, "absent")
    placed.refresh_from_db()
    assert placed.state == State.TERMINATED


def test_invalid_row_does_not_block_other_rows(make, alice, local_pool, sent, clock):
    good = make(alice)
    bad = WorkspaceFactory(
        state=State.PENDING,
        resources={"cpu_milli": "many"},
        amounts={},
        next_reconcile_at=timezone.now() - dt.timedelta(hours=1),
    )
    rows_changed()
    sent.clear()
    clock.shift(30)
    assert sweep() == 2
    assert [command.ref.workspace_id for command in sent.commands] == [str(good.pk)]
    bad.refresh_from_db()
    assert bad.next_reconcile_at > timezone.now()


def test_row_with_an_unknown_driver_backs_off(make, alice, local_pool, sent, clock):
    workspace = make(alice)
    sent.clear()
    local_pool.driver = "gone"
    local_pool.save()
    clock.shift(30)
    sweep()
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING
    assert workspace.next_reconcile_at > timezone.now()
    assert len(active(workspace)) == 1


def test_hint_for_a_row_that_is_not_due_does_nothing(make, alice, local_pool, sent):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    sent.clear()
    reconcile.reconcile(workspace.pk)
    assert len(sent) == 0


def test_heartbeats_replace_driver_observations(make, alice, local_pool, sent, clock):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    for _ in range(20):
        clock.shift(15)
        results.agent_heartbeat(workspace_id=workspace.pk, generation=1, activity={"kernels": 1})
        sweep()
    assert len(sent) == 0
    clock.shift(46)
    sweep()
    assert taken(sent, Op.OBSERVE)


def test_simulated_workspace_is_observed_without_heartbeats(make, alice, pool, settle, sent, clock):
    make(alice, "sim-cpu")
    settle()
    sent.clear()
    clock.shift(46)
    sweep()
    assert [message.task for message in sent.take()] == ["node.observe_all"]


def test_queue_is_served_in_request_order(make, alice, bob, local_pool, sent, clock):
    FlavorFactory(slug="all", cpu_milli=8000)
    holder = make(alice, "all")
    run_until_ready(sent, holder)
    queued = []
    for name in ("one", "two", "three"):
        clock.shift(1)
        queued.append(make(bob, "all", name=name))
    clock.shift(1)
    services.delete(actor=alice, workspace_id=holder.pk)
    assert answer(sent, Op.DELETE, "absent")
    sweep()
    states = [Workspace.objects.get(pk=item.pk).state for item in queued]
    assert states == [State.PROVISIONING, State.PENDING, State.PENDING]


def test_start_is_not_placed_twice_by_two_sweeps(make, alice, local_pool, sent, clock):
    FlavorFactory(slug="all", cpu_milli=8000)
    holder = make(alice, "all")
    run_until_ready(sent, holder)
    queued = make(alice, "all")
    services.delete(actor=alice, workspace_id=holder.pk)
    assert answer(sent, Op.DELETE, "absent")
    clock.shift(6)
    sweep()
    sweep()
    assert len(sent.commands) == 1
    queued.refresh_from_db()
    assert queued.generation == 1


# --- whole lifecycles with the simulated driver ---------------------------------------------------


ALL_AT_ONCE = {"lose_replies": 0.3, "fail_starts": 0.3, "refuse_capacity": 0.3, "stop_delay_s": 2, "seed": 4}


@pytest.mark.parametrize(
    "script",
    quick_of(
        [
            {"start_delay_s": 7, "stop_delay_s": 3},
            {"lose_replies": 0.5, "seed": 1},
            {"fail_starts": 0.5, "seed": 2},
            {"refuse_capacity": 0.5, "seed": 3},
            ALL_AT_ONCE,
        ],
        [ALL_AT_ONCE],
        "the last one has all difficulties",
    ),
    ids=str,
)
def test_unreliable_backend_delays_but_leaks_no_allocation(make, alice, pool, settle, script):
    rescript(pool, **script)
    names = [f"w{n}" for n in range(4)]
    rows = [make(alice, "sim-h100-x2", name=name) for name in names]
    settle(600)
    check_invariants()
    assert {Workspace.objects.get(pk=row.pk).state for row in rows} <= {State.RUNNING, State.FAILED}
    for row in rows[:2]:
        row.refresh_from_db()
        if row.state == State.RUNNING:
            services.stop(actor=alice, workspace_id=row.pk)
    settle(600)
    check_invariants()
    for row in rows:
        services.delete(actor=alice, workspace_id=row.pk)
    settle(600)
    assert set(Workspace.objects.values_list("state", flat=True)) == {State.TERMINATED}
    check_invariants()
    driver = driver_for(config_of(pool))
    assert driver.usage() == {}
    assert driver.over_grants() == ()
    assert driver.list_owned() == ()


def test_crashed_app_fails_and_can_be_retried(make, alice, pool, settle, clock):
    rescript(pool, crash_after_s=20, crash_exit_code=9)
    workspace = make(alice, "sim-cpu")
    settle()
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    settle(200, resting=lambda: Workspace.objects.get(pk=workspace.pk).state == State.FAILED)
    workspace.refresh_from_db()
    assert (workspace.state, workspace.termination_reason) == (State.FAILED, "app_exited")
    rescript(pool, crash_after_s=None)
    services.start(actor=alice, workspace_id=workspace.pk)
    settle()
    workspace.refresh_from_db()
    assert (workspace.state, workspace.generation) == (State.RUNNING, 2)
    check_invariants()


def test_workspaces_of_a_vanished_node_are_kept_until_it_returns(make, alice, pool, settle, clock, sent):
    workspace = make(alice, "sim-h100-x4")
    settle()
    node = active(workspace)[0].node.name
    rescript(pool, vanish_nodes=node)
    settle(100, resting=lambda: False)
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    assert error_code(workspace)
    services.delete(actor=alice, workspace_id=workspace.pk)
    settle(100, resting=lambda: False)
    workspace.refresh_from_db()
    assert workspace.state == State.TERMINATING
    assert len(active(workspace)) == 1
    rescript(pool, vanish_nodes="")
    settle(300)
    workspace.refresh_from_db()
    assert workspace.state == State.TERMINATED
    assert not active(workspace)


@pytest.mark.thorough("a thousand rows")
def test_a_thousand_rows_are_swept_in_batches(local_pool, catalog, sent, django_assert_max_num_queries):
    shared = {
        "owner": UserFactory(),
        "team": TeamFactory(),
        "template": Template.objects.get(slug="jupyterlab"),
        "flavor": Flavor.objects.get(slug="cpu-small"),
    }
    Workspace.objects.bulk_create(
        WorkspaceFactory.build(name=f"w{n}", state=State.STOPPED, next_reconcile_at=timezone.now(), **shared)
        for n in range(reconcile.SWEEP_BATCH + 50)
    )
    assert sweep() == reconcile.SWEEP_BATCH
    assert sweep() == 50
    assert sweep() == 0


def test_states_with_an_allocation_require_a_pool(db):
    for state in HOLDING:
        with pytest.raises(IntegrityError), transaction.atomic():
            WorkspaceFactory(state=state)
