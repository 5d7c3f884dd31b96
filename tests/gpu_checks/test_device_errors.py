"""XIDs reported by a node: the device is cordoned, its user notified, and a check lifts the cordon."""

from __future__ import annotations

from typing import Any

import pytest

from portal.celery import app as control_app
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.cordons import cordon_device
from portal.fleet.inventory.models import AllocatedDevice, CordonCause, Device, Pool
from portal.gpu_checks import device_errors, runs
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.check_messages import DeviceError, DeviceErrors
from provisioning.types import DeviceInfo, DeviceKind
from tests.factories import node_info
from tests.gpu_checks.helpers import answer, checked_pool, fresh, only
from tests.senders import sent_by

pytestmark = pytest.mark.django_db
LINE = "NVRM: Xid (PCI:0000:1b:00): 79, pid=77, name=secret-project, GPU has fallen off the bus."


def gpu_info(number: int) -> DeviceInfo:
    return DeviceInfo(
        uuid=f"GPU-{number}",
        index=number,
        model="NVIDIA H100 80GB HBM3",
        memory_mib=81_559,
        facts={"pci_bus_id": f"0000:{number}b:00.0"},
    )


@pytest.fixture
def gpus(catalog: Any) -> list[Device]:
    pool = checked_pool(node_info(devices=tuple(gpu_info(number) for number in range(2))))
    return list(Device.objects.filter(node__pool=pool).order_by("index"))


def seen(*errors: DeviceError, node: str = "node-1", pool: str = "this-machine") -> int:
    return device_errors.apply(DeviceErrors(pool, node, errors))


def test_fatal_xid_cordons_the_device(gpus: list[Device], olga: Any) -> None:
    assert seen(DeviceError("0000:1b:00", 79, LINE)) == 1
    device = fresh(gpus[1])
    assert (device.cordoned, device.cordon_cause, device.recovery) == (True, CordonCause.CHECK, "reboot")
    assert device.cordon_reason == "XID 79: the device has fallen off the bus."
    assert not fresh(gpus[0]).cordoned
    # The kernel's line may name a tenant's program.
    assert "secret-project" not in str(list(Event.objects.values_list("message", "data")))
    notice = Notification.objects.get(user=olga, kind="device.cordoned")
    assert "XID 79" in notice.body and "reboot" in notice.body
    # A second time, as when the message comes twice: nothing new.
    assert seen(DeviceError("0000:1b:00", 79, LINE)) == 1
    assert Event.objects.filter(kind="device.cordoned").count() == 1
    assert Notification.objects.filter(kind="device.cordoned", user=olga).count() == 1


def test_repeated_errors_are_one_event_and_the_strongest_recovery_is_kept(
    gpus: list[Device],
) -> None:
    for xid in (92, 79, 92, 94, 79, 92):
        assert seen(DeviceError("0000:1b:00", xid)) == 1
    device = fresh(gpus[1])
    assert (device.recovery, device.cordon_reason[:7]) == ("reboot", "XID 79:")
    assert Event.objects.filter(kind="device.cordoned").count() == 2


@pytest.mark.parametrize(
    ("xid", "line", "recovery"),
    [
        (63, "", "drain_and_reset"),
        (92, "", "inspect"),
        (94, "", "drain_and_reset"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "reset"),
    ],
)
def test_reasons_to_cordon_a_device(gpus: list[Device], xid: int, line: str, recovery: str) -> None:
    assert seen(DeviceError("0000:0b:00", xid, line)) == 1
    assert (fresh(gpus[0]).cordoned, fresh(gpus[0]).recovery) == (True, recovery)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 5])
def test_application_xids_have_no_effect(gpus: list[Device], xid: int) -> None:
    assert seen(DeviceError("0000:0b:00", xid)) == 0
    assert not Device.objects.filter(cordoned=True).exists()


@pytest.mark.parametrize(
    ("slot", "node", "pool"),
    [
        ("0000:ff:00", "node-1", "this-machine"),
        ("", "node-1", "this-machine"),
        ("0000:0b:00", "node-2", "this-machine"),
        ("0000:0b:00", "node-1", "another"),
    ],
)
def test_errors_of_unknown_devices_are_ignored(gpus: list[Device], slot: str, node: str, pool: str) -> None:
    assert seen(DeviceError(slot, 79), node=node, pool=pool) == 0
    assert not Device.objects.filter(cordoned=True).exists()


def test_errors_without_pool_are_matched_by_node(gpus: list[Device]) -> None:
    assert seen(DeviceError("0000:0b:00", 79), pool="") == 1


def test_passed_check_lifts_its_cordon_and_not_an_operators(gpus: list[Device], olga: Any, sent: Any) -> None:
    seen(DeviceError("0000:0b:00", 92))
    runs.request_check(actor=olga, device_id=gpus[0].pk)
    assert answer(only(sent)) and not fresh(gpus[0]).cordoned
    cordon_device(actor=olga, device_id=gpus[1].pk, reason="Mine")
    seen(DeviceError("0000:1b:00", 79))
    device = fresh(gpus[1])
    assert (device.cordon_cause, device.cordon_reason) == (CordonCause.OPERATOR, "Mine")
    assert device.recovery == "reboot"


def test_user_of_the_device_is_notified(make: Any, bob: Any, pool: Pool) -> None:
    workspace: Workspace = make(bob, "sim-h100-x1")
    held = AllocatedDevice.objects.get(allocation__workspace=workspace, active=True).device
    Device.objects.filter(pk=held.pk).update(facts={"pci_bus_id": "0000:3b:00.0"})
    Notification.objects.all().delete()
    error = DeviceError("0000:3b:00", 48)
    assert seen(error, node=held.node.name, pool=pool.slug) == 1
    notice = Notification.objects.get(kind="workspace.device_error")
    assert notice.user == bob and workspace.name in notice.title
    assert notice.url == f"/workspaces/{workspace.pk}/" and "XID 48" in notice.body
    workspace.refresh_from_db()
    assert AllocatedDevice.objects.filter(allocation__workspace=workspace, active=True).exists()
    # No repeated notice after reading while errors continue.
    notice.read_at = notice.at
    notice.save(update_fields=["read_at"])
    assert seen(error, node=held.node.name, pool=pool.slug) == 1
    assert Notification.objects.filter(kind="workspace.device_error").count() == 1


def test_instance_is_cordoned_with_its_gpu_and_its_user_notified(make: Any, bob: Any, pool: Pool) -> None:
    workspace: Workspace = make(bob, "sim-h100-x1")
    held = AllocatedDevice.objects.get(allocation__workspace=workspace, active=True).device
    parent = Device.objects.exclude(pk=held.pk).filter(node=held.node).first()
    assert parent is not None
    Device.objects.filter(pk=parent.pk).update(facts={"pci_bus_id": "0000:3b:00.0"})
    Device.objects.filter(pk=held.pk).update(kind=DeviceKind.MIG.value, parent_uuid=parent.uuid, facts={})
    assert seen(DeviceError("0000:3b:00", 48), node=held.node.name, pool=pool.slug) == 1
    assert fresh(parent).cordoned and not fresh(held).cordoned
    assert Notification.objects.filter(kind="workspace.device_error", user=bob).exists()


def test_node_can_report_only_its_own_devices(gpus: list[Device]) -> None:
    control_app.loader.import_default_modules()
    task = control_app.tasks["control.apply_device_errors"]
    found = messages.dump(DeviceErrors("this-machine", "node-1", (DeviceError("0000:0b:00", 79),)))
    for sender in ("node.node-2", "control", ""):
        with sent_by(sender):
            task.run(report=found)
    with sent_by("node.node-1"):
        task.run(report={"node": "node-1"})
        assert not fresh(gpus[0]).cordoned
        task.run(report=found)
    assert fresh(gpus[0]).cordoned
