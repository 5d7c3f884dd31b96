"""A simulated pool of eight GPUs with scripted faults, over REST and on pages."""

from __future__ import annotations

from html import unescape

import pytest

from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Device, Pool
from portal.fleet.inventory.node_commands import config_of
from portal.gpu_checks import policy
from portal.gpu_checks.models import GpuCheckRun
from provisioning.registry import driver_for
from tests.api.conftest import Api
from tests.factories import rescript, simulated_pool

pytestmark = pytest.mark.django_db
FAULTS = {
    "fault_ecc": "sim-001:0",
    "fault_xid79": "sim-001:1",
    "fault_hang": "sim-001:2",
    "fault_slow_memory": "sim-001:3",
    "fault_leak": "sim-001:4",
    "fault_vanish": "sim-001:5",
}


@pytest.fixture
def pool(catalog, tmp_path) -> Pool:
    """Eight checked devices, six of them with one fault each."""
    made = simulated_pool(str(tmp_path / "sim"), nodes=1, gpus=8)
    Pool.objects.filter(pk=made.pk).update(check_every_hours=1, scrub_required=True)
    rescript(made, **FAULTS)
    take_stock(made)
    return made


def take_stock(pool: Pool) -> None:
    pool.refresh_from_db()
    inventory.apply_inventory(pool=pool, inventory=driver_for(config_of(pool)).inventory())


def text(response) -> str:
    assert response.status_code == 200, response
    return " ".join(unescape(response.content.decode()).split())


def states(operator: Api) -> list[str]:
    found = operator.get("devices?pool=sim&page_size=50").json()["results"]
    assert all(each["simulated"] for each in found)
    return [each["state"] for each in sorted(found, key=lambda each: each["index"])]


def test_faulty_gpus_are_cordoned_recovered_and_returned(pool, olga, with_token, as_user, sent):
    operator, pages = Api(with_token(olga)), as_user(olga)
    for _ in range(12):
        policy.run()
        sent.run()
    assert states(operator) == ["failed", "failed", "failed", "free", "failed", "offline", "free", "free"]
    told = text(pages.get("/gpus/"))
    assert "0 of 8 GPUs in use, 3 free, 5 out of service" in told and "simulated" in told
    for word in ("GPU 0 failed", "GPU 5 offline", "GPU 6 free"):
        assert word in told

    actions = {0: "drain_and_reset", 1: "reboot", 2: "reboot", 4: "inspect"}
    words = {
        "drain_and_reset": "Drain the node, then reset",
        "reboot": "reboot the node",
        "inspect": "Check the machine",
    }
    devices = {device.index: device for device in Device.objects.all()}
    for index, recovery in actions.items():
        shown = operator.get(f"devices/{devices[index].pk}").json()
        assert (shown["cordoned"], shown["cordon_cause"], shown["recovery"]) == (True, "check", recovery)
        page = text(pages.get(f"/gpus/devices/{devices[index].pk}/"))
        assert words[recovery] in page and "imulated" in page and "Return to service" in page
    assert "is below" in operator.get(f"devices/{devices[3].pk}").json()["warning"]
    assert "is below" in text(pages.get(f"/gpus/devices/{devices[3].pk}/"))
    for run in operator.get("gpu-checks?page_size=50").json()["results"]:
        assert run["simulated"] and "imulated" in run["summary"]
        assert "says nothing about real hardware" in text(pages.get(f"/gpus/checks/{run['id']}/"))

    # Repaired and checked again: some over REST, one on the page. The missing one returns.
    rescript(pool, **dict.fromkeys(FAULTS, ""))
    take_stock(pool)
    for index in (0, 1, 2):
        asked = operator.post("gpu-checks", {"device": devices[index].uuid, "level": "standard"})
        assert asked.status_code == 202
    where = pages.post(f"/gpus/devices/{devices[4].pk}/checks/", {"level": "standard"}).url
    sent.run()
    assert "Passed" in text(pages.get(where))
    for _ in range(8):
        policy.run()
        sent.run()
    assert states(operator) == ["free"] * 8
    assert "0 of 8 GPUs in use, 8 free" in text(pages.get("/gpus/"))
    happened = text(pages.get(f"/gpus/devices/{devices[0].pk}/"))
    assert "uncordoned GPU 0 of sim-001" in happened and "cordoned GPU 0 of sim-001" in happened
    assert GpuCheckRun.objects.filter(simulated=False).count() == 0
