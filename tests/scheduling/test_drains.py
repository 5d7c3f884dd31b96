"""Drains: running work moves elsewhere with notice, no new work arrives, and drains can be cancelled."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from django.utils import timezone

from portal.common.errors import NotAllowed, NotFound
from portal.common.events.models import Event, Notification
from portal.fleet.inventory import cordons, services
from portal.fleet.inventory.models import AllocatedDevice, CordonCause, Device, Node
from portal.scheduling import cycle, drains
from portal.workspaces import reconcile
from portal.workspaces import services as workspaces
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Preemption, Workspace
from provisioning.types import DeviceInfo, DeviceKind
from tests.factories import local_pool_with, node_info
from tests.rows import preempt_at, preempt_cause, preempted_by, reloaded
from tests.sweeps import sweep
from tests.workspaces.helpers import active, check_invariants

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _grace(settings):
    settings.BERTH_PREEMPTION_GRACE_S = 120


@pytest.fixture
def running(make, alice, pool, settle):
    """A running workspace with one GPU on a simulated node."""
    row = make(alice, "sim-h100-x1", name="one")
    settle(60, resting=lambda: reloaded(row).state == State.RUNNING)
    return reloaded(row)


def node_of(row) -> Node:
    return active(row)[0].node


def device_of(row) -> Device:
    return Device.objects.get(allocated__allocation__workspace=row, allocated__active=True)


def events(kind: str) -> int:
    return Event.objects.filter(kind=kind).count()


# --- moving ---------------------------------------------------------------------------------------


def test_drain_notifies_stops_and_restarts_workspaces_elsewhere(running, olga, alice, settle, clock):
    node = node_of(running)
    found = drains.drain_node(actor=olga, node_id=node.pk, reason="New memory")
    row = reloaded(running)
    assert (found.asked, found.left, found.until) == (1, 1, preempt_at(row))
    assert preempt_at(row) == timezone.now() + dt.timedelta(seconds=120)
    assert (preempted_by(row), preempt_cause(row), row.state) == ("", "drain", State.RUNNING)
    node.refresh_from_db()
    assert (node.cordoned, node.cordon_reason) == (True, "New memory")
    (event,) = Event.objects.filter(kind="workspace.preempting")
    assert (event.workspace, event.actor, event.data["reason"]) == (row, olga, "drain")
    assert Event.objects.get(kind="node.drained").data == {"node": node.name, "asked": 1, "left": 1}
    notice = Notification.objects.get(kind="workspace.preempting")
    assert notice.user == alice
    assert notice.title.startswith("one will be moved and stops at ")
    assert "New memory" in notice.body
    assert "1 workspace is still there" in str(found)
    clock.shift(119)
    sweep()
    assert reloaded(row).state == State.RUNNING, "it leaves before its time"
    settle(200, resting=lambda: reloaded(row).state == State.RUNNING and node_of(row) != node)
    row = reloaded(row)
    assert (row.state, row.desired_state, row.queue_entry.preemption_count) == (
        State.RUNNING,
        DesiredState.RUNNING,
        0,
    )
    assert (preempt_at(row), preempt_cause(row)) == (None, "")
    assert node_of(row) != node
    done = drains.drain_node(actor=olga, node_id=node.pk, reason="New memory")
    assert (done.asked, done.left, done.until, done.done) == (0, 0, None, True)
    check_invariants()


def test_drain_advances_a_distant_next_reconcile(running, olga, clock):
    later = timezone.now() + dt.timedelta(hours=1)
    Workspace.objects.filter(pk=running.pk).update(next_reconcile_at=later, lease="", lease_expires_at=None)
    drains.drain_node(actor=olga, node_id=node_of(running).pk, reason="")
    clock.shift(121)
    sweep()
    assert reloaded(running).state == State.STOPPING


def test_queue_does_not_cancel_a_drain(running, olga, make, alice):
    drains.drain_node(actor=olga, node_id=node_of(running).pk, reason="")
    make(alice, "sim-h100-x1", name="two")
    cycle.run()
    assert preempt_cause(reloaded(running)) == "drain"
    assert not events("workspace.may_stay")


def test_no_new_work_is_placed_on_a_drained_node(pool, olga, make, alice):
    drained, other = pool.nodes.all()
    drains.drain_node(actor=olga, node_id=drained.pk, reason="")
    rows = [make(alice, "sim-h100-x1") for _ in range(4)]
    assert {node_of(row) for row in rows} == {other}


def test_repeated_drain_sends_no_second_notice(running, olga):
    node = node_of(running)
    first = drains.drain_node(actor=olga, node_id=node.pk, reason="Fans")
    before = Event.objects.count(), Notification.objects.count()
    again_ = drains.drain_node(actor=olga, node_id=node.pk, reason="Fans")
    assert (again_.asked, again_.left, again_.until) == (0, 1, first.until)
    assert (Event.objects.count(), Notification.objects.count()) == before


def test_drain_after_a_cordon_preempts_workspaces(running, olga):
    node = node_of(running)
    services.set_cordon(actor=olga, node_id=node.pk, cordoned=True, reason="Fans")
    assert preempt_at(reloaded(running)) is None
    assert drains.drain_node(actor=olga, node_id=node.pk, reason="Fans").asked == 1
    assert events("node.drained") == 1


def test_drain_includes_starting_and_nonpreemptible_workspaces(pool, olga, make, alice):
    row = make(alice, "sim-h100-x1")
    Workspace.objects.update(preemptible=False)
    assert reloaded(row).state == State.PROVISIONING
    assert drains.drain_node(actor=olga, node_id=node_of(row).pk, reason="").asked == 1


def test_drain_counts_but_does_not_notify_stopping_workspaces(running, olga, alice):
    workspaces.stop(actor=alice, workspace_id=running.pk)
    found = drains.drain_node(actor=olga, node_id=node_of(running).pk, reason="")
    assert (found.asked, found.left, found.until, found.done) == (0, 1, None, False)
    assert "still ending" in str(found)


def test_drain_keeps_the_time_of_an_earlier_preemption(running, olga):
    soon = timezone.now() + dt.timedelta(seconds=20)
    Preemption.objects.create(workspace=running, preempt_at=soon, preempted_by="x", cause="reclaim")
    drains.drain_node(actor=olga, node_id=node_of(running).pk, reason="")
    row = reloaded(running)
    assert (preempt_at(row), preempted_by(row), preempt_cause(row)) == (soon, "", "drain")
    cycle.run()
    assert preempt_at(reloaded(running)) == soon


# --- devices --------------------------------------------------------------------------------------


def test_draining_a_device_stops_only_its_holder(pool, olga, make, alice, settle, clock):
    one, two = make(alice, "sim-h100-x1", name="one"), make(alice, "sim-h100-x1", name="two")
    settle(60)
    device = device_of(one)
    found = drains.drain_device(actor=olga, device_id=device.pk, reason="Rows to remap")
    assert (found.asked, found.left) == (1, 1)
    assert found.name == f"GPU {device.index} of {device.node.name}"
    assert (preempt_cause(reloaded(one)), preempt_at(reloaded(two))) == ("drain", None)
    device.refresh_from_db()
    assert (device.cordoned, device.cordon_cause) == (True, CordonCause.OPERATOR)
    assert Event.objects.get(kind="device.drained").data["device"] == device.uuid
    settle(300, resting=lambda: reloaded(one).state == State.RUNNING and device_of(one) != device)
    assert device_of(one) != device
    assert device_of(two) != device


def test_draining_a_split_gpu_drains_its_instances(catalog, olga, make, alice):
    gpu = DeviceInfo(uuid="GPU-0", index=0, model="H100", memory_mib=81_559, mig_mode=True)
    parts = [
        DeviceInfo(
            uuid=f"MIG-{n}",
            index=0,
            model="H100",
            memory_mib=9_856,
            kind=DeviceKind.MIG,
            parent_uuid="GPU-0",
            mig_profile="1g.10gb",
            mig_start=n,
        )
        for n in range(2)
    ]
    pool = local_pool_with(node_info(devices=(gpu, *parts)))
    rows = [make(alice, "cpu-small", name=name) for name in ("one", "two", "three")]
    for row, uuid in zip(rows[:2], ("MIG-0", "MIG-1"), strict=True):
        AllocatedDevice.objects.create(allocation=active(row)[0], device=Device.objects.get(uuid=uuid))
    found = drains.drain_device(actor=olga, device_id=Device.objects.get(uuid="GPU-0").pk, reason="")
    assert found.asked == 2
    assert [preempt_cause(reloaded(row)) for row in rows] == ["drain", "drain", ""]
    assert pool.nodes.get().cordoned is False
    cordons.lift_cordon(actor=olga, device_id=Device.objects.get(uuid="GPU-0").pk)
    assert [preempt_at(reloaded(row)) for row in rows] == [None] * 3
    found = drains.drain_device(actor=olga, device_id=Device.objects.get(uuid="MIG-1").pk, reason="")
    assert (found.asked, preempt_at(reloaded(rows[0]))) == (1, None)


def test_drain_turns_the_cordon_of_a_check_into_an_operators(running, olga):
    device = device_of(running)
    cordons.cordon_device(
        actor=olga, device_id=device.pk, reason="ECC", cause=CordonCause.CHECK, recovery="reset"
    )
    drains.drain_device(actor=olga, device_id=device.pk, reason="")
    device.refresh_from_db()
    assert (device.cordon_reason, device.cordon_cause, device.recovery) == ("ECC", "operator", "reset")
    assert events("device.drained") == 1


# --- cancelling -----------------------------------------------------------------------------------


def test_uncordon_cancels_notices_of_running_workspaces(running, olga, clock):
    node = node_of(running)
    drains.drain_node(actor=olga, node_id=node.pk, reason="")
    services.set_cordon(actor=olga, node_id=node.pk, cordoned=False)
    row = reloaded(running)
    assert (preempt_at(row), preempt_cause(row), row.state) == (None, "", State.RUNNING)
    assert events("workspace.may_stay") == 1
    assert Notification.objects.get(kind="workspace.may_stay").user == row.owner
    clock.shift(200)
    sweep()
    assert reloaded(running).state == State.RUNNING


def test_uncordoned_node_keeps_notices_of_its_drained_devices(running, olga):
    node, device = node_of(running), device_of(running)
    drains.drain_node(actor=olga, node_id=node.pk, reason="")
    drains.drain_device(actor=olga, device_id=device.pk, reason="")
    services.set_cordon(actor=olga, node_id=node.pk, cordoned=False)
    assert preempt_cause(reloaded(running)) == "drain"
    cordons.lift_cordon(actor=olga, device_id=device.pk)
    assert preempt_at(reloaded(running)) is None


def test_notice_missed_by_an_uncordon_is_cancelled_before_the_stop(running, olga, clock):
    node = node_of(running)
    drains.drain_node(actor=olga, node_id=node.pk, reason="")
    Node.objects.filter(pk=node.pk).update(cordoned=False)
    clock.shift(121)
    sweep()
    assert (reloaded(running).state, preempt_at(reloaded(running))) == (State.RUNNING, None)


def test_uncordon_keeps_notices_for_other_requests(running, olga):
    node = node_of(running)
    services.set_cordon(actor=olga, node_id=node.pk, cordoned=True)
    Preemption.objects.create(
        workspace=running,
        preempt_at=timezone.now() + dt.timedelta(seconds=60),
        preempted_by="x",
        cause="reclaim",
    )
    services.set_cordon(actor=olga, node_id=node.pk, cordoned=False)
    assert preempt_cause(reloaded(running)) == "reclaim"


# --- permissions ----------------------------------------------------------------------------------


def test_only_operators_drain_and_only_existing_devices(running, alice, olga):
    device = device_of(running)
    for call in (
        lambda actor: drains.drain_node(actor=actor, node_id=device.node_id, reason=""),
        lambda actor: drains.drain_device(actor=actor, device_id=device.pk, reason=""),
    ):
        with pytest.raises(NotAllowed):
            call(alice)
    with pytest.raises(NotFound):
        drains.drain_node(actor=olga, node_id=running.pk, reason="")
    with pytest.raises(NotFound):
        drains.drain_device(actor=olga, device_id=running.pk, reason="")
    assert preempt_at(reloaded(running)) is None


def test_unstorable_characters_of_a_drain_reason_are_removed(running, olga):
    found = drains.drain_node(actor=olga, node_id=node_of(running).pk, reason="a\x00b" + "c" * 5000)
    assert found.asked == 1
    assert "\x00" not in node_of(running).cordon_reason


# --- concurrency ----------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_concurrent_drains_starts_and_returns_do_not_deadlock(pool, make, alice, olga, settle, clock):
    rows = [make(alice, "sim-h100-x1") for _ in range(6)]
    settle(60)
    nodes = list(pool.nodes.all())

    def loop(step):
        try:
            for _ in range(5):
                step()
        finally:
            connection.close()

    steps = [
        lambda: drains.drain_node(actor=olga, node_id=nodes[0].pk, reason=""),
        lambda: services.set_cordon(actor=olga, node_id=nodes[0].pk, cordoned=False),
        lambda: drains.drain_device(actor=olga, device_id=nodes[1].devices.all()[0].pk, reason=""),
        cycle.run,
        reconcile.sweep,
    ]
    with ThreadPoolExecutor(len(steps)) as threads:
        for done in [threads.submit(loop, step) for step in steps]:
            done.result(60)
    check_invariants()
    drains.drain_node(actor=olga, node_id=nodes[0].pk, reason="")
    there = Workspace.objects.filter(allocations__node=nodes[0], allocations__released_at=None)
    assert there.exists()
    assert {preempt_cause(row) for row in there} == {"drain"}
    services.set_cordon(actor=olga, node_id=nodes[0].pk, cordoned=False)
    assert {preempt_cause(row) for row in there.all()} == {""}
    assert all(reloaded(row).state == State.RUNNING for row in rows)
