"""Missing GPUs of a node, by PCI and by earlier reports, over REST and on the node's page."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from portal.fleet.inventory import cordons, services
from portal.fleet.inventory.models import Device, Node, Pool
from provisioning.types import DeviceInfo
from tests.api.conftest import api as api
from tests.factories import inventory_of, local_pool_with, node_info

pytestmark = pytest.mark.django_db
ON_PCI = "Check dmesg for lines with NVRM, then reboot the machine."
GONE = "Check its slot and power. If it was removed on purpose, cordon it."


def gpu(number: int, uuid: str = "") -> DeviceInfo:
    return DeviceInfo(
        uuid=uuid or f"GPU-{number}",
        index=number,
        model="NVIDIA H200",
        memory_mib=143_771,
        facts={"pci_bus_id": f"0000:{number}b:00.0"},
    )


def report_gpus(pool: Pool, *gpus: DeviceInfo, missing: Any = (), state: str = "ok") -> Node:
    info = node_info(devices=gpus, accelerator_state=state, facts={"missing_gpus": list(missing)})
    services.apply_inventory(pool=pool, inventory=inventory_of(info))
    return pool.nodes.get()


@pytest.fixture
def pool() -> Pool:
    pool = local_pool_with(node_info())
    report_gpus(pool, gpu(0), gpu(1))
    return pool


def test_gpu_still_on_pci_is_reported_with_its_last_model(pool: Pool, api: Any, bob: Any, olga: Any) -> None:
    node = report_gpus(pool, gpu(0), missing=["0000:1b:00.0", "0000:3b:00.0"], state="gpu_lost")
    (row,) = api(bob).get("nodes").json()["results"]
    known = {"pci_bus_id": "0000:1b:00.0", "uuid": "GPU-1", "model": "NVIDIA H200"}
    unknown = {"pci_bus_id": "0000:3b:00.0", "uuid": "", "model": ""}
    rest = {"on_pci": True, "next_action": ON_PCI}
    assert row["missing_gpus"] == [known | rest, unknown | rest]
    assert row["facts"]["missing_gpus"] == ["0000:1b:00.0", "0000:3b:00.0"]
    client = Client()
    client.force_login(olga)
    page = client.get(f"/gpus/nodes/{node.pk}/").content.decode()
    assert f"The NVIDIA H200 at 0000:1b:00.0 is missing. {ON_PCI}" in page
    assert f"The GPU at 0000:3b:00.0 is missing. {ON_PCI}" in page


def test_gpu_no_longer_on_pci_is_still_reported_missing(pool: Pool, api: Any, bob: Any, olga: Any) -> None:
    report_gpus(pool, gpu(0))
    (row,) = api(bob).get("nodes").json()["results"]
    assert [(each["uuid"], each["on_pci"], each["next_action"]) for each in row["missing_gpus"]] == [
        ("GPU-1", False, GONE)
    ]
    cordons.cordon_device(
        actor=olga, device_id=Device.objects.get(uuid="GPU-1").pk, reason="Sent to be repaired"
    )
    (row,) = api(bob).get("nodes").json()["results"]
    assert row["missing_gpus"] == []


def test_slot_with_another_gpu_has_no_missing_gpu(pool: Pool, api: Any, bob: Any) -> None:
    report_gpus(pool, gpu(0), gpu(1, "GPU-new"))
    (row,) = api(bob).get("nodes").json()["results"]
    assert row["missing_gpus"] == []


@pytest.mark.parametrize("facts", [{}, {"missing_gpus": None}, {"missing_gpus": [7]}])
def test_node_without_facts_has_no_missing_gpus(pool: Pool, api: Any, bob: Any, facts: Any) -> None:
    Node.objects.update(facts=facts)
    (row,) = api(bob).get("nodes").json()["results"]
    assert row["missing_gpus"] == []
