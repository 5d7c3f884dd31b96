"""Nodes and devices over REST: properties, cordons and drains."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

import pytest
from django.utils import timezone

from portal.common.events.models import Event
from portal.fleet.inventory import cordons, services
from portal.fleet.inventory.device_states import DeviceState
from portal.fleet.inventory.models import AllocatedDevice, CordonCause, Device, DeviceSeries, Node, Pool
from portal.workspaces.models import Workspace
from provisioning.types import DeviceInfo, DeviceKind
from tests.api.conftest import problem
from tests.factories import inventory_of, local_pool_with, node_info, simulated_pool
from tests.rows import preempt_at

pytestmark = pytest.mark.django_db


def states(program: Any) -> dict[str, str]:
    """The state of each device; the filter by state must agree."""
    said = {row["uuid"]: row["state"] for row in program.get("devices").json()["results"]}
    for state in DeviceState:
        found = {row["uuid"] for row in program.get(f"devices?state={state}").json()["results"]}
        assert found == {uuid for uuid, word in said.items() if word == state}, state
    return said


def test_device_and_node_show_all_reported_properties(api: Any, bob: Any, olga: Any, catalog: Any) -> None:
    gpu = DeviceInfo(
        uuid="GPU-0",
        index=3,
        model="NVIDIA H100 80GB HBM3",
        memory_mib=81_559,
        island="nvlink-0",
        numa=1,
        compute_capability="9.0",
        facts={"pci_bus_id": "0000:1B:00.0"},
    )
    info = node_info(
        devices=(gpu,),
        driver_version="570.86",
        cuda_version="12.8",
        accelerator_state="ok",
        provides=("rdma",),
        labels={"zone": "a"},
        facts={"cpu": {"model": "EPYC"}},
    )
    pool = local_pool_with(info)
    Node.objects.update(rack="r1", block="b1")
    passed = timezone.now()
    Device.objects.update(passed_at=passed, warning="Slow PCIe")
    cordons.cordon_device(
        actor=olga,
        device_id=pool.nodes.get().devices.get().pk,
        reason="ECC",
        cause=CordonCause.CHECK,
        recovery="reset",
    )
    (device,) = api(bob).get("devices").json()["results"]
    assert device["state"] == "failed"
    assert (device["cordoned"], device["cordon_reason"], device["cordon_cause"]) == (True, "ECC", "check")
    assert (device["recovery"], device["warning"], device["checking"]) == ("reset", "Slow PCIe", False)
    assert device["passed_at"].startswith(f"{passed:%Y-%m-%dT%H:%M:%S}")
    assert (device["compute_capability"], device["numa"], device["island"]) == ("9.0", 1, "nvlink-0")
    assert device["facts"] == {"pci_bus_id": "0000:1B:00.0"}
    assert (device["mig_mode"], device["mig_profile"], device["mig_start"]) == (False, "", -1)
    (node,) = api(bob).get("nodes").json()["results"]
    assert (node["driver_version"], node["cuda_version"], node["accelerator_state"]) == (
        "570.86",
        "12.8",
        "ok",
    )
    assert (node["provides"], node["labels"], node["rack"], node["block"]) == (
        ["rdma"],
        {"zone": "a"},
        "r1",
        "b1",
    )
    assert (node["facts"], node["cordon_reason"]) == ({"cpu": {"model": "EPYC"}}, "")


def test_device_states(api: Any, bob: Any, olga: Any, make: Any, pool: Pool) -> None:
    make(bob, "sim-h100-x4")
    held = list(Device.objects.filter(allocated__active=True).order_by("index"))
    free = list(Device.objects.exclude(pk__in=[device.pk for device in held]).order_by("index"))
    now_s = int(time.time())
    # Idle for long, idle recently, and idle by an old measurement.
    for device, since, newest in (
        (held[0], 3600, 30),
        (held[1], 300, 30),
        (held[2], 7200, 3600),
    ):
        DeviceSeries.objects.create(device=device, idle_since_s=now_s - since, newest_s=now_s - newest)
    AllocatedDevice.objects.filter(device=held[3]).update(milli=500)
    Device.objects.filter(pk=free[0].pk).update(checking=True)
    cordons.cordon_device(actor=olga, device_id=free[1].pk, reason="")
    Device.objects.filter(pk=free[2].pk).update(healthy=False)
    expected = {
        **dict(zip([d.uuid for d in held], ["idle", "allocated", "allocated", "shared"], strict=True)),
        **dict(zip([d.uuid for d in free], ["checking", "cordoned", "failed", "free"], strict=True)),
    }
    assert states(api(bob)) == expected
    Device.objects.filter(pk=free[3].pk).update(present=False)
    assert states(api(bob))[free[3].uuid] == "offline"
    Node.objects.update(cordoned=True)
    assert set(states(api(bob)).values()) == {"cordoned", "failed", "offline"}
    # The last known states are kept.
    Node.objects.update(online=False)
    assert set(states(api(bob)).values()) == {"cordoned", "failed", "offline"}


def test_partitioned_gpu_is_in_use_with_its_instances_and_they_fail_with_it(
    api: Any, bob: Any, olga: Any, make: Any, catalog: Any
) -> None:
    gpu = DeviceInfo(uuid="GPU-0", index=0, model="H100", memory_mib=81_559, mig_mode=True)
    part = DeviceInfo(
        uuid="MIG-0", index=0, model="H100", memory_mib=9_856, kind=DeviceKind.MIG, parent_uuid="GPU-0",
        mig_profile="1g.10gb", mig_start=0,
    )  # fmt: skip
    local_pool_with(node_info(devices=(gpu, part, replace(part, uuid="MIG-1", mig_start=1))))
    assert states(api(bob)) == {"GPU-0": "free", "MIG-0": "free", "MIG-1": "free"}
    allocations = [make(bob, name=name).allocations.get() for name in ("one", "two")]
    parts = list(Device.objects.filter(kind="mig").order_by("uuid"))
    AllocatedDevice.objects.create(allocation=allocations[0], device=parts[0])
    assert states(api(bob)) == {"GPU-0": "shared", "MIG-0": "allocated", "MIG-1": "free"}
    AllocatedDevice.objects.create(allocation=allocations[1], device=parts[1])
    assert states(api(bob))["GPU-0"] == "allocated"
    whole = Device.objects.get(uuid="GPU-0")
    cordons.cordon_device(actor=olga, device_id=whole.pk, reason="")
    assert set(states(api(bob)).values()) == {"cordoned"}
    cordons.lift_cordon(actor=olga, device_id=whole.pk)
    Device.objects.filter(pk=whole.pk).update(healthy=False)
    assert set(states(api(bob)).values()) == {"failed"}


def test_operator_cordons_and_uncordons_a_device(api: Any, olga: Any, bob: Any, pool: Pool) -> None:
    device = Device.objects.order_by("pk").first()
    assert device is not None
    for _ in range(2):
        answer = api(olga).post(f"devices/{device.pk}/cordon", {"note": "fan"}).json()
        assert (answer["state"], answer["cordon_reason"]) == ("cordoned", "fan")
        assert answer["cordon_cause"] == "operator"
    assert Event.objects.filter(kind="device.cordoned").count() == 1
    listed = api(bob).get("devices?cordoned=true").json()["results"]
    assert [row["id"] for row in listed] == [str(device.pk)]
    assert len(api(bob).get("devices?cordoned=false").json()["results"]) == 7
    Device.objects.exclude(pk=device.pk).update(checking=True)
    assert len(api(bob).get("devices?checking=true").json()["results"]) == 7
    answer = api(olga).post(f"devices/{device.pk}/uncordon/").json()
    assert (answer["state"], answer["cordon_cause"]) == ("free", "")


def test_operator_cordon_keeps_the_recovery_action_of_a_failed_check(api: Any, olga: Any, pool: Pool) -> None:
    device = Device.objects.order_by("pk")[0]
    cordons.cordon_device(
        actor=olga, device_id=device.pk, reason="ECC", cause=CordonCause.CHECK, recovery="reset"
    )
    assert api(olga).post(f"devices/{device.pk}/cordon", {"note": "mine"}).json()["recovery"] == "reset"


@pytest.mark.parametrize("what", ["node", "device"])
def test_drains_show_progress(api: Any, olga: Any, bob: Any, make: Any, pool: Pool, what: str) -> None:
    workspace = make(bob, "sim-h100-x1")
    held = AllocatedDevice.objects.get()
    target = held.device if what == "device" else held.device.node
    answer = api(olga).post(f"{what}s/{target.pk}/drain", {"note": "fan"})
    assert answer.status_code == 200
    first = answer.json()
    assert (first["asked"], first["left"], first["done"]) == (1, 1, False)
    assert first["until"] is not None
    again = api(olga).post(f"{what}s/{target.pk}/drain").json()
    assert again == {**first, "asked": 0}
    preempting = api(bob).get(f"workspaces/{workspace.pk}").json()["preempting"]
    assert (preempting["reason"], preempting["at"]) == ("drain", first["until"])
    assert api(olga).post(f"{what}s/{target.pk}/uncordon").status_code == 200
    assert preempt_at(Workspace.objects.get()) is None


@pytest.mark.parametrize(
    "path",
    ["nodes/{node}/drain", "devices/{device}/cordon", "devices/{device}/uncordon", "devices/{device}/drain"],
)
def test_permissions_for_devices(api: Any, bob: Any, olga: Any, pool: Pool, path: str) -> None:
    device = Device.objects.order_by("pk")[0]
    real = path.format(node=device.node_id, device=device.pk)
    none = path.format(node=uuid.uuid4(), device=uuid.uuid4())
    problem(api(None).post(real), 401, "not_authenticated")
    problem(api(bob).post(real), 403, "not_allowed")
    problem(api(olga, "pools:read").post(real), 403, "permission_denied")
    problem(api(olga).post(none), 404, "not_found")
    problem(api(olga).post(real, {"note": "x" * 201}), 400, "invalid")
    problem(api(olga).post(real, {"why": "x"}), 400, "invalid")
    problem(api(olga).get(real), 405, "method_not_allowed")
    problem(api(olga).get("devices?state=asleep"), 400, "invalid")
    assert not Device.objects.filter(cordoned=True).exists()
    assert not Node.objects.filter(cordoned=True).exists()


def test_query_count_is_constant_for_devices_in_all_states(
    api: Any, bob: Any, catalog: Any, tmp_path: Any, make: Any, django_assert_max_num_queries: Any
) -> None:
    simulated_pool(str(tmp_path / "many"), nodes=13, gpus=8)
    make(bob, "sim-h100-x4")
    for device in Device.objects.order_by("pk")[:50]:
        DeviceSeries.objects.create(device=device, idle_since_s=1, newest_s=int(time.time()))
    program = api(bob)
    program.get("me")
    with django_assert_max_num_queries(5):
        assert len(program.get("devices?page_size=100").json()["results"]) == 100


def test_inventory_changes_are_read_at_once(api: Any, bob: Any, catalog: Any) -> None:
    pool = local_pool_with(node_info(gpus=1, driver_version="570"))
    services.apply_inventory(pool=pool, inventory=inventory_of(node_info(gpus=1, driver_version="580")))
    assert api(bob).get("nodes").json()["results"][0]["driver_version"] == "580"
