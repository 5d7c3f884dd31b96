"""Reports of pools: nodes and devices appear, change, move, disappear and return."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from django.utils import timezone

from portal.catalog.models import Flavor
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event, Notification
from portal.fleet.inventory import counting, polling, selectors, services
from portal.fleet.inventory.counting import Count
from portal.fleet.inventory.models import Device, Node, Pool, PoolState
from portal.fleet.inventory.node_commands import config_of
from provisioning.errors import GpuBeingReset
from provisioning.registry import driver_for
from provisioning.types import DeviceInfo, DeviceKind, Failure
from tests.factories import inventory_of, local_pool_with, node_info, simulated_pool
from tests.workspaces.helpers import active

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]


def kinds(pool: Pool) -> list[str]:
    return list(Event.objects.filter(pool=pool).order_by("pk").values_list("kind", flat=True))


def report(pool: Pool, *nodes) -> None:
    services.apply_inventory(pool=pool, inventory=inventory_of(*nodes))


# --- reports --------------------------------------------------------------------------------------


def test_new_nodes_and_devices_have_one_event_each(catalog):
    pool = local_pool_with(node_info(gpus=2))
    node = pool.nodes.get()
    assert (node.name, node.cpu_milli, node.memory_mib, node.online) == ("node-1", 8000, 16_384, True)
    assert (node.isolation, node.limits) == ("sandbox", "cgroup")
    assert [device.uuid for device in node.devices.all()] == ["GPU-node-1-0", "GPU-node-1-1"]
    assert (pool.state, pool.capabilities) == (PoolState.ONLINE, ["whole_gpu"])
    assert kinds(pool) == ["pool.created", "node.appeared", "device.appeared", "pool.online"]


def test_repeated_report_changes_nothing(catalog):
    pool = local_pool_with(node_info(gpus=2))
    before = kinds(pool), list(Device.objects.values()), Node.objects.get().pk
    report(pool, node_info(gpus=2))
    assert (kinds(pool), list(Device.objects.values()), Node.objects.get().pk) == before


def test_changed_values_are_stored(catalog):
    pool = local_pool_with(node_info(gpus=1))
    changed = node_info(gpus=1, cpu_milli=4000, programs=("bash",), warnings=("No bubblewrap. Install it.",))
    ill = replace(changed.devices[0], healthy=False, health_note="ECC errors")
    report(pool, replace(changed, devices=(ill,)))
    node = pool.nodes.get()
    assert (node.cpu_milli, node.warnings) == (4000, ["No bubblewrap. Install it."])
    assert node.programs == {"bash": "/usr/bin/bash"}
    device = node.devices.get()
    assert (device.healthy, device.health_note) == (False, "ECC errors")


def test_missing_device_is_kept_as_absent_and_returns_as_the_same_row(catalog):
    pool = local_pool_with(node_info(gpus=2))
    keys = set(Device.objects.values_list("pk", flat=True))
    report(pool, node_info(gpus=1))
    assert [device.present for device in Device.objects.order_by("index")] == [True, False]
    assert kinds(pool)[-1] == "device.disappeared"
    report(pool, node_info(gpus=2))
    assert all(Device.objects.values_list("present", flat=True))
    assert set(Device.objects.values_list("pk", flat=True)) == keys


def test_moved_device_keeps_its_row(catalog):
    a, b = node_info("a", gpus=1), node_info("b")
    pool = local_pool_with(a, b)
    device = Device.objects.get()
    moved = replace(b, devices=a.devices)
    report(pool, replace(a, devices=()), moved)
    assert Device.objects.get().pk == device.pk
    assert Device.objects.get().node.name == "b"
    assert Device.objects.get().present


def test_node_reports_offline_and_online(catalog):
    pool = local_pool_with(node_info())
    report(pool, node_info(online=False))
    assert not pool.nodes.get().online
    report(pool, node_info())
    assert pool.nodes.get().online
    assert kinds(pool)[-2:] == ["node.offline", "node.online"]


def test_node_of_a_local_pool_can_report_only_itself(catalog):
    pool = local_pool_with(node_info("a"), node_info("b"))
    report(pool, node_info("a"))
    assert set(pool.nodes.filter(online=True).values_list("name", flat=True)) == {"a", "b"}


def test_node_no_longer_listed_by_an_engine_is_offline(pool):
    services.apply_inventory(pool=pool, inventory=replace(inventory_of(), nodes=()))
    assert not pool.nodes.filter(online=True).exists()
    assert kinds(pool).count("node.offline") == 2


def test_two_simulated_pools_have_separate_devices(catalog, tmp_path):
    one = simulated_pool(str(tmp_path / "1"), slug="one")
    other = simulated_pool(str(tmp_path / "2"), slug="other")
    for pool in (one, other, one):
        services.apply_inventory(pool=pool, inventory=driver_for(config_of(pool)).inventory())
    assert Device.objects.filter(node__pool=one, present=True).count() == 8
    assert Device.objects.filter(node__pool=other, present=True).count() == 8


def test_home_limit_is_sent_to_nodes(pool, local_pool, settings):
    settings.BERTH_HOME_LIMIT_MIB = 51200
    assert config_of(local_pool).config == {**local_pool.config, "home_limit_mib": 51200}
    assert config_of(pool).config == pool.config, "nobody has a home there"
    assert driver_for(config_of(local_pool)).home_limit_mib == 51200


def test_inventory_keeps_allocations_and_cordons(make, alice, pool):
    workspace = make(alice, "sim-h100-x2")
    node = active(workspace)[0].node
    services.set_cordon(actor=SYSTEM, node_id=node.pk, cordoned=True)
    services.apply_inventory(pool=pool, inventory=driver_for(config_of(pool)).inventory())
    node.refresh_from_db()
    assert node.cordoned
    assert [item.milli for item in active(workspace)[0].devices.all()] == [1000, 1000]


# --- requests -------------------------------------------------------------------------------------


def test_inventory_is_requested_only_when_due(local_pool, pool, sent, clock, settings):
    # Pools that have reported are due later.
    Pool.objects.update(inventory_due_at=timezone.now())
    polling.refresh_due()
    assert sorted(message.queue for message in sent.of("node.inventory")) == ["engine", "node.node-1"]
    sent.clear()
    polling.refresh_due()
    assert len(sent) == 0
    clock.shift(settings.INVENTORY_INTERVAL_S + 1)
    polling.refresh_due()
    assert len(sent) == 2


def test_inventory_result_passes_through_both_planes(pool, sent, run_node):
    Node.objects.update(online=False)
    Pool.objects.update(inventory_due_at=timezone.now(), state=PoolState.UNKNOWN)
    polling.refresh_due()
    run_node()
    pool.refresh_from_db()
    assert pool.state == PoolState.ONLINE
    assert pool.nodes.filter(online=True).count() == 2


def test_started_worker_triggers_inventory_of_its_pools(local_pool, pool, sent):
    polling.worker_ready(["node.node-1", "other"])
    assert [message.queue for message in sent] == ["node.node-1"]
    sent.clear()
    polling.worker_ready(["engine"])
    assert [message.queue for message in sent] == ["engine"]
    sent.clear()
    polling.worker_ready(["node.somewhere-else"])
    assert len(sent) == 0


def test_disabled_pool_gets_no_inventory_request(pool, sent):
    Pool.objects.update(enabled=False, inventory_due_at=timezone.now())
    polling.refresh_due()
    polling.worker_ready(["engine"])
    assert len(sent) == 0


def test_failed_inventory_shows_its_reason_and_is_retried_soon(pool, sent, run_node, clock):
    pool.config["unavailable"] = True
    pool.save()
    Pool.objects.update(inventory_due_at=timezone.now())
    polling.refresh_due()
    run_node()
    pool.refresh_from_db()
    assert pool.state == PoolState.UNREACHABLE
    assert pool.state_message
    assert pool.nodes.filter(online=True).count() == 2, "nothing is concluded about what runs"
    del pool.config["unavailable"]
    pool.save()
    clock.shift(11)
    polling.refresh_due()
    run_node()
    pool.refresh_from_db()
    assert (pool.state, pool.state_message) == (PoolState.ONLINE, "")


def test_repeated_failure_is_one_event(pool):
    failure = Failure("backend_unavailable", "It does not answer.", retryable=True, blame="operator")
    for _ in range(3):
        services.apply_inventory_failure(pool=pool, failure=failure)
    assert kinds(pool).count("pool.unreachable") == 1


def test_inventory_during_a_gpu_reset_changes_nothing(pool, clock):
    pool.refresh_from_db()
    before = (pool.state, pool.state_message, list(Device.objects.order_by("pk").values()))
    failure = Failure(GpuBeingReset.code, "A GPU is being reset.", retryable=True, blame="backend")
    services.apply_inventory_failure(pool=pool, failure=failure)
    pool.refresh_from_db()
    assert (pool.state, pool.state_message, list(Device.objects.order_by("pk").values())) == before
    assert "pool.unreachable" not in kinds(pool)
    clock.shift(11)
    assert pool in services.pools_due(), "asked again soon"


def test_silent_pool_is_unreachable_and_takes_no_new_work(local_pool, sent, clock, settings):
    Pool.objects.update(inventory_at=timezone.now())
    Node.objects.update(seen_at=timezone.now())
    clock.shift(settings.INVENTORY_INTERVAL_S * services.SILENT_AFTER_INVENTORIES + 1)
    local_pool.refresh_from_db()
    services.mark_asked(local_pool)
    local_pool.refresh_from_db()
    assert local_pool.state == PoolState.UNREACHABLE
    assert not local_pool.nodes.get().online
    assert kinds(local_pool)[-1] == "node.offline"
    report(local_pool, node_info())
    local_pool.refresh_from_db()
    assert local_pool.state == PoolState.ONLINE
    assert local_pool.nodes.get().online


def test_result_for_a_deleted_pool_is_dropped(db):
    polling.apply("gone", None, None)


# --- pools and cordons ----------------------------------------------------------------------------


def test_only_operators_create_pools(alice, olga):
    fields = {"slug": "p", "name": "P", "driver": "simulated", "config": {}}
    with pytest.raises(NotAllowed):
        services.create_pool(actor=alice, **fields)
    assert services.create_pool(actor=olga, **fields).simulated


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"driver": "nonsense"}, "driver"),
        ({"config": {"gpsu": 4}}, "config"),
        ({"config": {"nodes": 0}}, "config"),
        ({"slug": "No Slug"}, "slug"),
        ({"slug": ""}, "slug"),
        ({"name": ""}, "name"),
    ],
)
def test_invalid_pool_is_refused(db, change, field):
    fields = {"slug": "p", "name": "P", "driver": "simulated", "config": {}} | change
    with pytest.raises(InvalidInput) as refused:
        services.create_pool(actor=SYSTEM, **fields)
    assert field in refused.value.extra["errors"]
    assert not Pool.objects.exists()


def test_pool_slug_is_unique(pool):
    with pytest.raises(StateConflict):
        services.create_pool(actor=SYSTEM, slug="sim", name="again", driver="simulated")


def test_cordon_blocks_new_work_and_is_audited_with_its_reason(make, alice, olga, local_pool, sent):
    node = local_pool.nodes.get()
    running = make(alice, name="before")
    services.set_cordon(actor=olga, node_id=node.pk, cordoned=True, reason="new fans")
    services.set_cordon(actor=olga, node_id=node.pk, cordoned=True)
    event = Event.objects.get(kind="node.cordoned")
    assert (event.actor, event.message) == (olga, "cordoned node-1: new fans")
    assert make(alice, name="after").state == "pending"
    running.refresh_from_db()
    assert running.state == "provisioning"
    services.set_cordon(actor=olga, node_id=node.pk, cordoned=False)
    assert Event.objects.filter(kind="node.uncordoned").count() == 1


def test_only_operators_cordon(alice, local_pool):
    with pytest.raises(NotAllowed):
        services.set_cordon(actor=alice, node_id=local_pool.nodes.get().pk, cordoned=True)
    with pytest.raises(NotFound):
        services.set_cordon(actor=SYSTEM, node_id=uuid.uuid4(), cordoned=True)


# --- reads ----------------------------------------------------------------------------------------


def test_counts_cover_real_nodes_in_service(make, alice, local_pool, pool, sent):
    assert counting.site()["cpu_milli"] == Count(total=8000, in_service=8000, allocated=0, free=8000)
    one, two = make(alice), make(alice)
    make(alice, "sim-cpu")
    used = sum(item.resources["cpu_milli"] for item in (one, two))
    assert counting.site()["cpu_milli"] == Count(8000, 8000, used, 8000 - used)
    Node.objects.update(cordoned=True)
    assert counting.site()["cpu_milli"] == Count(8000, 0, used, 0)


def test_allocated_devices_are_counted(catalog, make, alice):
    local_pool_with(node_info(gpus=4))
    assert counting.site()["gpu"] == counting.site()["gpu:h100"] == Count(4000, 4000, 0, 4000)
    make(alice, "nvidia-h100-80gb-hbm3-x2")
    assert counting.site()["gpu"] == Count(4000, 4000, 2000, 2000)


def test_counts_per_pool(catalog, tmp_path):
    pool = simulated_pool(str(tmp_path / "sim"), nodes=5, gpus=3)
    pool.nodes.filter(name="sim-002").update(online=False)
    found = selectors.pool_by_slug("sim")
    assert (found.node_count, found.online_count, found.device_count) == (5, 4, 15)
    with pytest.raises(NotFound):
        selectors.pool_by_slug("other")


def test_facts_for_placement_are_stored(catalog):
    parent = DeviceInfo(uuid="GPU-1", index=0, model="NVIDIA H100", memory_mib=81_559, mig_mode=True, numa=1)
    part = DeviceInfo(
        uuid="MIG-1",
        index=0,
        model="NVIDIA H100 MIG 1g.10gb",
        memory_mib=9856,
        kind=DeviceKind.MIG,
        parent_uuid="GPU-1",
        mig_profile="1g.10gb",
        mig_start=3,
        compute_capability="9.0",
    )
    facts = {
        "driver_version": "580.1",
        "cuda_version": "13.0",
        "provides": ("rdma",),
        "labels": {"zone": "a"},
    }
    local_pool_with(node_info(devices=(parent, part), accelerator_state="ok", **facts))
    found = Device.objects.get(uuid="MIG-1")
    assert (found.mig_profile, found.mig_start, found.parent_uuid) == ("1g.10gb", 3, "GPU-1")
    assert Device.objects.get(uuid="GPU-1").mig_mode
    node = Node.objects.get()
    assert (node.provides, node.labels, node.cuda_version) == (["rdma"], {"zone": "a"}, "13.0")
    offered = Flavor.objects.exclude(accelerator_count=0)
    assert [(flavor.name, flavor.mig_profile) for flavor in offered] == [("MIG 1g.10gb", "1g.10gb")]


def test_unseen_devices_are_unhealthy_and_not_missing(catalog):
    pool = local_pool_with(node_info(gpus=2, accelerator_state="ok"))
    blind = node_info(accelerator_state="driver_mismatch", accelerator_note="Reboot after the update.")
    services.apply_inventory(pool=pool, inventory=inventory_of(blind))
    assert [(row.present, row.healthy) for row in Device.objects.all()] == [(True, False)] * 2
    assert Device.objects.first().health_note == "Reboot after the update."
    assert Event.objects.filter(kind="node.accelerators").count() == 1
    services.apply_inventory(pool=pool, inventory=inventory_of(blind))
    assert Event.objects.filter(kind="device.unseen").count() == 1
    services.apply_inventory(pool=pool, inventory=inventory_of(node_info(gpus=2, accelerator_state="ok")))
    assert all(row.healthy for row in Device.objects.all())


# --- notices --------------------------------------------------------------------------------------


def notices_of(user) -> dict[str, tuple[str, int]]:
    return {
        notification.kind: (notification.title, notification.repeats)
        for notification in Notification.objects.filter(user=user)
    }


def test_operators_but_not_members_are_notified_of_offline_nodes_and_pools(pool, olga, alice):
    nodes = list(pool.nodes.order_by("name"))
    services.apply_inventory(pool=pool, inventory=inventory_of())
    failure = Failure("backend_unavailable", "It does not answer.", retryable=True, blame="backend")
    for _ in range(3):
        services.apply_inventory_failure(pool=pool, failure=failure)
    found = notices_of(olga)
    assert found["pool.unreachable"] == (f"Simulated: Pool {pool.name} is unreachable", 0)
    title, repeats = found["node.offline"]
    assert title.endswith(f"of {pool.name} is offline")
    assert repeats == len(nodes) - 1, "one notice, which counts the others"
    assert notices_of(alice) == {}


def test_operators_get_one_notice_about_all_failed_gpus(catalog, olga):
    pool = local_pool_with(node_info("node-1", gpus=2), node_info("node-2", gpus=2))
    infos = [node_info(name, gpus=2) for name in ("node-1", "node-2")]
    ill = [
        replace(info, devices=tuple(replace(device, healthy=False) for device in info.devices))
        for info in infos
    ]
    services.apply_inventory(pool=pool, inventory=inventory_of(*ill))
    assert notices_of(olga) == {"device.ill": ("4 GPUs of node-1 and node-2 are out of service", 0)}
