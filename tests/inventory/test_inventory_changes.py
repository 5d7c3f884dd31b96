"""Changes of devices and nodes: one event each, few queries, and effects on their users."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.events.models import Event, Notification
from portal.fleet.inventory import cordons, polling, services
from portal.fleet.inventory.inventory_sync import UNSEEN_STATES
from portal.fleet.inventory.models import AllocatedDevice, Device, Node, Pool
from portal.fleet.inventory.node_commands import config_of
from portal.gpu_checks import lost_devices, policy
from portal.gpu_checks.models import CheckCause, GpuCheckRun
from portal.scheduling import snapshot, snapshot_cache
from portal.workspaces import services as workspaces
from portal.workspaces.lifecycle import State, TerminationReason
from portal.workspaces.models import Workspace
from provisioning.registry import driver_for
from provisioning.types import DeviceInfo, DeviceKind
from tests import sites
from tests.factories import inventory_of, local_pool_with, node_info, simulated_pool
from tests.gpu_checks.helpers import checked_pool
from tests.rows import error_code, error_message, reloaded
from tests.workspaces.helpers import active, answer, check_invariants, run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog
H100 = "NVIDIA H100 80GB HBM3"
X1 = "nvidia-h100-80gb-hbm3-x1"


def gpu(uuid: str, index: int, **fields) -> DeviceInfo:
    return DeviceInfo(uuid=uuid, index=index, model=H100, memory_mib=81_559, **fields)


def mig(uuid: str, start: int, profile: str = "1g.10gb", parent: str = "GPU-0") -> DeviceInfo:
    return gpu(
        uuid, 0, kind=DeviceKind.MIG, parent_uuid=parent, mig_profile=profile, mig_start=start,
        facts={"memory_slices": 1},
    )  # fmt: skip


def report(pool: Pool, *nodes) -> list[Event]:
    """Apply a report of these nodes; return the resulting events, except those of workspaces."""
    last = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    services.apply_inventory(pool=pool, inventory=inventory_of(*nodes))
    return list(Event.objects.filter(pk__gt=last, pool=pool).order_by("pk"))


def kinds(found: list[Event]) -> list[str]:
    return [event.kind for event in found]


# --- devices ---------------------------------------------------------------------------------------


def test_another_device_in_the_same_slot_is_a_replacement(catalog):
    slots = [{"pci_bus_id": f"0000:{n}B:00.0"} for n in range(2)]
    pool = local_pool_with(node_info(devices=(gpu("A", 0, facts=slots[0]), gpu("B", 1, facts=slots[1]))))
    # Indexes are reassigned; the slot identifies the device.
    found = report(pool, node_info(devices=(gpu("A", 1, facts=slots[0]), gpu("C", 0, facts=slots[1]))))
    assert kinds(found) == ["device.replaced"]
    assert found[0].data == {"devices": ["C", "B"], "node": "node-1", "before": {"C": "B"}}
    assert found[0].message == "found a different device as GPU 0 of node-1: C, previously B"
    assert dict(Device.objects.values_list("uuid", "present")) == {"A": True, "B": False, "C": True}


def test_without_slots_devices_are_identified_by_index_and_model(catalog):
    pool = local_pool_with(node_info(devices=(gpu("A", 0), gpu("B", 1))))
    found = report(pool, node_info(devices=(gpu("A", 0), gpu("C", 1))))
    assert (kinds(found), found[0].data["before"]) == (["device.replaced"], {"C": "B"})
    other = replace(gpu("D", 1), model="H200")
    assert kinds(report(pool, node_info(devices=(gpu("A", 0), other)))) == [
        "device.appeared",
        "device.disappeared",
    ]


def test_another_slot_is_another_device(catalog):
    pool = local_pool_with(node_info(devices=(gpu("A", 0, facts={"pci_bus_id": "1"}),)))
    found = report(pool, node_info(devices=(gpu("B", 0, facts={"pci_bus_id": "2"}),)))
    assert kinds(found) == ["device.appeared", "device.disappeared"]


def test_device_missing_earlier_is_replaced_only_by_slot(catalog):
    slot = {"pci_bus_id": "1"}
    pool = local_pool_with(node_info(devices=(gpu("A", 0, facts=slot),)))
    assert kinds(report(pool, node_info())) == ["device.disappeared"]
    assert kinds(report(pool, node_info(devices=(gpu("B", 0, facts=slot),)))) == ["device.replaced"]


def test_device_missing_earlier_without_slot_is_not_replaced(catalog):
    pool = local_pool_with(node_info(devices=(gpu("A", 0),)))
    report(pool, node_info())
    assert kinds(report(pool, node_info(devices=(gpu("B", 0),)))) == ["device.appeared"]


def test_moved_device_is_not_replaced_by_the_one_in_its_old_slot(catalog):
    a, b = node_info("a", devices=(gpu("A", 0),)), node_info("b")
    pool = local_pool_with(a, b)
    found = report(pool, replace(a, devices=(gpu("C", 0),)), replace(b, devices=(gpu("A", 0),)))
    assert sorted(kinds(found)) == ["device.appeared", "device.disappeared", "device.returned"]


def test_returned_device_is_reported_and_checked(catalog, sent):
    pool = checked_pool(node_info(gpus=2))
    Pool.objects.update(check_every_hours=168)
    for device in Device.objects.all():
        GpuCheckRun.objects.create(device=device, cause=CheckCause.NEW, state="done", verdict="pass")
    assert kinds(report(pool, node_info(gpus=1))) == ["device.disappeared"]
    (told,) = report(pool, node_info(gpus=2))
    assert (told.kind, told.data["devices"]) == ("device.returned", ["GPU-node-1-1"])
    assert told.message == "found GPU 1 of node-1 again"
    assert policy.run() == 1
    assert GpuCheckRun.objects.get(state="queued").cause == CheckCause.RETURNED


def test_device_in_another_node_is_returned_there(catalog):
    a, b = node_info("a", gpus=1), node_info("b")
    pool = local_pool_with(a, b)
    found = report(pool, replace(a, devices=()), replace(b, devices=a.devices))
    assert kinds(found) == ["device.disappeared", "device.returned"]
    assert Device.objects.get().present


def test_health_change_is_published_for_placement(catalog):
    pool = local_pool_with(node_info(gpus=2))
    info = node_info(gpus=2)
    ill = replace(info.devices[1], healthy=False, health_note="Row remapping failed")
    (told,) = report(pool, replace(info, devices=(info.devices[0], ill)))
    assert (told.kind, told.data["devices"]) == ("device.ill", ["GPU-node-1-1"])
    assert told.message == "found GPU 1 of node-1 unhealthy: Row remapping failed"
    assert report(pool, replace(info, devices=(info.devices[0], ill))) == []
    assert kinds(report(pool, info)) == ["device.well"]


def test_only_changes_relevant_to_placement_are_published(catalog):
    pool = local_pool_with(node_info(gpus=1))
    one = node_info(gpus=1).devices[0]
    assert kinds(report(pool, node_info(devices=(replace(one, island="nvlink-0"),)))) == ["device.changed"]
    one = replace(one, island="nvlink-0")
    assert report(pool, node_info(devices=(replace(one, facts={"serial": "1"}),))) == []
    assert Device.objects.get().facts == {"serial": "1"}


@pytest.mark.parametrize("state", sorted(UNSEEN_STATES))
def test_unseen_devices_are_neither_missing_nor_replaced(catalog, make, alice, sent, state):
    pool = local_pool_with(node_info(gpus=2, driver_version="570"))
    Pool.objects.update(hand_out_max_age_hours=0)
    row = make(alice, X1)
    found = report(pool, node_info(accelerator_state=state, accelerator_note="Look at dmesg."))
    assert kinds(found)[-1] == "device.unseen"
    assert Node.objects.get().driver_version == "570"
    assert Device.objects.filter(present=True, healthy=False, health_note="Look at dmesg.").count() == 2
    assert reloaded(row).state == State.PROVISIONING
    assert kinds(report(pool, node_info(gpus=2, driver_version="570", accelerator_state="ok"))) == [
        "node.accelerators",
        "device.well",
    ]


# --- MIG -------------------------------------------------------------------------------------------


def test_new_partitioning_is_one_event(catalog):
    whole = gpu("GPU-0", 0)
    pool = local_pool_with(node_info(devices=(whole, gpu("GPU-1", 1))))
    split = replace(whole, mig_mode=True)
    (told,) = report(pool, node_info(devices=(split, mig("M0", 0), mig("M1", 1), gpu("GPU-1", 1))))
    assert (told.kind, told.data["devices"]) == ("device.mig_changed", ["GPU-0"])
    assert told.data["layouts"] == {"GPU-0": ["1g.10gb", "1g.10gb"]}
    assert told.message == "found a new MIG layout on GPU 0 of node-1: 2 × 1g.10gb, previously whole"
    same = node_info(devices=(split, mig("M0", 0), mig("M1", 1), gpu("GPU-1", 1)))
    assert report(pool, same) == []
    (told,) = report(pool, node_info(devices=(split, mig("M2", 0, "3g.40gb"), gpu("GPU-1", 1))))
    assert told.message.endswith(": 1 × 3g.40gb, previously 2 × 1g.10gb")
    assert set(Device.objects.filter(present=True).values_list("uuid", flat=True)) == {"GPU-0", "M2", "GPU-1"}
    assert kinds(report(pool, node_info(devices=(whole, gpu("GPU-1", 1))))) == ["device.mig_changed"]


def test_same_instance_at_another_position_is_another_layout(catalog):
    split = gpu("GPU-0", 0, mig_mode=True)
    pool = local_pool_with(node_info(devices=(split, mig("M0", 0))))
    assert kinds(report(pool, node_info(devices=(split, mig("M0", 4))))) == [
        "device.mig_changed",
        "device.changed",
    ]


# --- nodes -----------------------------------------------------------------------------------------


def test_changed_driver_is_reported(catalog):
    pool = local_pool_with(node_info(driver_version="570.86", cuda_version="12.8"))
    (told,) = report(pool, node_info(driver_version="580.95", cuda_version="13.0"))
    assert told.kind == "node.driver_changed"
    assert told.data == {"node": "node-1", "before": "570.86", "now": "580.95"}
    assert Node.objects.get().cuda_version == "13.0"


def test_first_reported_driver_is_not_a_change(catalog):
    pool = local_pool_with(node_info())
    assert report(pool, node_info(driver_version="570")) == []


def test_driver_changed_while_offline_is_reported(catalog):
    pool = local_pool_with(node_info(driver_version="570", accelerator_state="ok"))
    report(pool, node_info(accelerator_state="driver_mismatch"))
    found = report(pool, node_info(driver_version="580", accelerator_state="ok"))
    assert "node.driver_changed" in kinds(found)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"cpu_milli": 4000}, "cpu_milli"),
        ({"memory_mib": 8192}, "memory_mib"),
        ({"programs": ("bash",)}, "programs"),
        ({"provides": ("rdma",)}, "provides"),
        ({"labels": {"zone": "a"}}, "labels"),
        ({"disk_mib": 50_000}, "disk_mib"),
    ],
)
def test_changed_node_resources_are_reported(catalog, change, named):
    pool = local_pool_with(node_info())
    (told,) = report(pool, node_info(**change))
    assert (told.kind, told.data["changed"]) == ("node.changed", [named])
    assert report(pool, node_info(**change)) == []


def test_disk_size_and_warning_changes_are_not_events(catalog):
    pool = local_pool_with(node_info())
    assert report(pool, node_info(disk_mib=95_000, warnings=("x",))) == []
    assert Node.objects.get().disk_mib == 95_000


def test_queue_is_reloaded_after_a_capacity_change(catalog):
    pool = local_pool_with(node_info(gpus=2))
    for changed in (
        node_info(gpus=1),
        node_info(gpus=2),
        node_info(gpus=2, memory_mib=8192),
        node_info(devices=(gpu("GPU-node-1-0", 0, healthy=False), gpu("X", 1))),
    ):
        kept = snapshot.load()
        assert snapshot_cache.apply_changes(kept, timezone.now())
        report(pool, changed)
        assert not snapshot_cache.apply_changes(kept, timezone.now())


# --- many devices ---------------------------------------------------------------------------------

NODES, EACH = 50, 20


def many_nodes(word: str = "", **fields):
    return [
        node_info(
            f"n{n:02}",
            devices=tuple(gpu(f"G-{n}-{i}{word}", i, **fields) for i in range(EACH)),
        )
        for n in range(NODES)
    ]


@pytest.mark.thorough("a thousand devices")
def test_inventory_of_1000_devices_has_few_queries(catalog, django_assert_max_num_queries):
    pool = local_pool_with(*many_nodes())
    assert Device.objects.filter(present=True).count() == 1000
    with django_assert_max_num_queries(NODES + 20):
        assert report(pool, *many_nodes()) == []
    # One event for a node, its targets, and whether operators have been told just now; rows are written some
    # at a time: a statement holds some only.
    with django_assert_max_num_queries(5 * NODES + 60):
        found = report(pool, *many_nodes(healthy=False, health_note="hot"))
    assert kinds(found) == ["device.ill"] * NODES
    with django_assert_max_num_queries(5 * NODES + 60):
        found = report(pool, *many_nodes(word="x"))
    assert kinds(found) == ["device.replaced"] * NODES
    assert Device.objects.filter(present=True).count() == 1000
    with django_assert_max_num_queries(5 * NODES + 60):
        found = report(pool, *(replace(each, devices=()) for each in many_nodes()))
    assert kinds(found) == ["device.disappeared"] * NODES


# --- allocated devices ----------------------------------------------------------------------------


@pytest.fixture
def held_device(catalog, make, alice, sent):
    """A pool of 2 GPUs: alice's running workspace has the first, bob's workspace has none."""
    pool = local_pool_with(node_info(gpus=2, memory_mib=262_144, cpu_milli=64_000))
    Pool.objects.update(hand_out_max_age_hours=0)
    row = make(alice, X1, name="train")
    run_until_ready(sent, row)
    return pool, reloaded(row), AllocatedDevice.objects.get().device


def without(device: Device, **fields):
    info = node_info(gpus=2, memory_mib=262_144, cpu_milli=64_000, **fields)
    return replace(info, devices=tuple(each for each in info.devices if each.uuid != device.uuid))


def test_workspace_on_a_missing_device_ends_and_its_user_is_notified(held_device, alice, make, sent):
    pool, row, device = held_device
    other = make(alice, X1, name="other")
    run_until_ready(sent, other)
    report(pool, without(device))
    row = reloaded(row)
    assert (row.state, row.termination_reason) == (State.TERMINATING, TerminationReason.LOST)
    assert error_code(row) == "device_lost"
    assert error_message(row).startswith(f"GPU {device.index} of node-1 has disappeared")
    notice = Notification.objects.get(kind="workspace.device_lost")
    assert notice.user == alice
    assert notice.title == f"train was ended: GPU {device.index} of node-1 disappeared"
    assert reloaded(other).state == State.RUNNING
    assert answer(sent, "delete", "absent")
    assert reloaded(row).state == State.FAILED
    assert not active(row)
    assert not GpuCheckRun.objects.filter(device=device).exists(), "what is gone cannot be scrubbed"
    check_invariants()


def test_workspace_placed_on_a_missing_device_ends(catalog, make, alice, sent):
    pool = local_pool_with(node_info(gpus=1))
    Pool.objects.update(hand_out_max_age_hours=0)
    row = make(alice, X1)
    report(pool, node_info())
    assert (reloaded(row).state, error_code(reloaded(row))) == (State.TERMINATING, "device_lost")


def test_workspace_with_a_lost_start_on_a_missing_device_is_terminated(catalog, make, alice, sent):
    pool = local_pool_with(node_info(gpus=1))
    Pool.objects.update(hand_out_max_age_hours=0)
    row = make(alice, X1)
    Workspace.objects.filter(pk=row.pk).update(lease="", lease_expires_at=None)
    report(pool, node_info())
    assert reloaded(row).state == State.TERMINATING
    assert active(row)


def test_start_waiting_for_a_check_gets_another_device(catalog, make, alice, sent):
    pool = checked_pool(node_info(gpus=2, memory_mib=262_144, cpu_milli=64_000))
    row = make(alice, X1)
    device = AllocatedDevice.objects.get(active=True).device
    assert reloaded(row).state == State.PROVISIONING
    report(pool, without(device))
    row = reloaded(row)
    assert (row.state, error_code(row)) == (State.PENDING, "device_lost")
    assert (
        error_message(row)
        == f"GPU {device.index} of node-1 has disappeared. The workspace is queued for another one."
    )
    sent.take("node.gpu_check")
    sent.run()
    assert AllocatedDevice.objects.get(active=True, allocation__workspace=row).device != device
    check_invariants()


def test_stopping_workspace_is_not_ended_again(held_device, alice, sent):
    pool, row, device = held_device
    workspaces.stop(actor=alice, workspace_id=row.pk)
    report(pool, without(device))
    assert not lost_devices.end_workspace(row.pk)
    assert reloaded(row).state == State.STOPPING
    assert not Notification.objects.filter(kind="workspace.device_lost").exists()


def test_offline_node_keeps_its_devices(pool, make, alice, settle):
    row = make(alice, "sim-h100-x1")
    settle(60)
    report(pool)
    assert not Node.objects.filter(online=True).exists()
    assert reloaded(row).state == State.RUNNING


def test_device_moved_to_another_node_is_lost_for_its_workspace(catalog, make, alice, sent):
    pool = local_pool_with(node_info("a", gpus=1), node_info("b"))
    Pool.objects.update(hand_out_max_age_hours=0)
    row = make(alice, X1)
    run_until_ready(sent, row)
    report(pool, replace(node_info("b"), devices=node_info("a", gpus=1).devices))
    assert error_message(reloaded(row)).startswith("GPU 0 of a has disappeared")


def test_missed_end_is_repeated_by_the_next_inventory(held_device, monkeypatch):
    pool, row, device = held_device
    with monkeypatch.context() as patch:
        patch.setattr(lost_devices, "end_workspace", lambda workspace_id: False)
        report(pool, without(device))
    assert reloaded(row).state == State.RUNNING
    assert report(pool, without(device)) == []
    assert reloaded(row).state == State.TERMINATING


def test_unkillable_workspace_does_not_delay_others(held_device, alice, make, sent, monkeypatch):
    pool, row, _ = held_device
    other = make(alice, X1, name="other")
    run_until_ready(sent, other)
    end, first = lost_devices.end_workspace, min(row.pk, other.pk)

    def broken(workspace_id):
        if workspace_id == first:
            raise RuntimeError("broken")
        return end(workspace_id)

    monkeypatch.setattr(lost_devices, "end_workspace", broken)
    report(pool, node_info(memory_mib=262_144, cpu_milli=64_000))
    states = {row.pk: row.state for row in Workspace.objects.all()}
    assert sorted(states.values()) == [State.RUNNING, State.TERMINATING]
    assert states[first] == State.RUNNING


def test_cordon_is_kept_while_the_device_is_missing(held_device):
    pool, _, device = held_device
    cordons.cordon_device(actor=SYSTEM, device_id=device.pk, reason="ECC")
    report(pool, without(device))
    report(pool, node_info(gpus=2, memory_mib=262_144, cpu_milli=64_000))
    device.refresh_from_db()
    assert (device.present, device.cordoned, device.cordon_reason) == (True, True, "ECC")


def test_loss_of_a_simulated_device_is_marked(catalog, tmp_path, make, alice, settle):
    pool = simulated_pool(str(tmp_path / "sim"), nodes=1, gpus=2)
    row = make(alice, "sim-h100-x1", name="train")
    settle(60)
    device = AllocatedDevice.objects.get().device
    driver = driver_for(config_of(pool))
    seen = driver.inventory()
    (node,) = seen.nodes
    left = replace(node, devices=tuple(each for each in node.devices if each.uuid != device.uuid))
    polling.apply(pool.slug, None, None)
    services.apply_inventory(pool=pool, inventory=replace(seen, nodes=(left,)))
    assert error_code(reloaded(row)) == "device_lost"
    assert Notification.objects.get(kind="workspace.device_lost").title.startswith("Simulated: train ")
