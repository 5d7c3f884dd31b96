"""One site with all device states: every page, REST field and metric shows equal counts.

The numbers are read from rendered pages, JSON and metrics, not from the functions that compute them. The pool
`lab` has a node with one partitioned GPU (two MIG instances) and one whole GPU, a node with a GPU in each
state, and an offline node. A second pool is simulated, a third is disabled.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from portal.fleet.inventory import counting
from portal.fleet.inventory.device_states import DeviceState
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, DeviceSeries, Node, Pool
from portal.scheduling import capacity
from provisioning.types import DeviceInfo, DeviceKind
from tests import sites
from tests.factories import FlavorFactory, WorkspaceFactory, local_pool_with, node_info, simulated_pool
from tests.quota_requests.helpers import ask

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog
H100 = "NVIDIA H100 80GB HBM3"
WORDS = {
    "allocated": "In use",
    "idle": "Idle",
    "shared": "Shared",
    "free": "Free",
    "checking": "Being checked",
    "cordoned": "Cordoned",
    "failed": "Failed",
    "offline": "Offline",
}
STATES = {
    "GPU-mixed-0": "shared",  # partitioned into the two instances below; counted nowhere
    "MIG-0": "allocated",
    "MIG-1": "free",
    "GPU-mixed-1": "free",
    "GPU-each-0": "failed",
    "GPU-each-1": "cordoned",
    "GPU-each-2": "checking",
    "GPU-each-3": "offline",  # its node lost it
    "GPU-each-4": "shared",
    "GPU-each-5": "idle",
    "GPU-each-6": "allocated",
    "GPU-each-7": "free",
    "GPU-dark-0": "offline",
}
SPLIT = "GPU-mixed-0"
BY_STATE = Counter(state for uuid, state in STATES.items() if uuid != SPLIT)
# total, in service, allocated, free
GPUS = (10_000, 6000, 2500, 2500)
INSTANCES = (2000, 2000, 1000, 1000)
CORES = (24_000, 16_000, 4000, 12_000)
MEMORY = (48 * 1024, 32 * 1024, 4 * 1024, 28 * 1024)
SIMULATED = (8000, 8000, 1000, 7000)
LAB = {"gpu": GPUS, "gpu:h100": GPUS, "mig:1g.10gb": INSTANCES, "cpu_milli": CORES, "memory_mib": MEMORY}
AMOUNTS = ("total", "in_service", "allocated", "free")
PER_NODE = (
    ("berth_cpu_{}_cores", "cpu_milli", 1 / 1000),
    ("berth_memory_{}_bytes", "memory_mib", 1024 * 1024),
)


@pytest.fixture
def site(catalog, bob, team, tmp_path) -> Pool:
    split = DeviceInfo(uuid=SPLIT, index=0, model=H100, memory_mib=81_559, mig_mode=True)
    instances = [
        DeviceInfo(
            uuid=f"MIG-{start}", index=0, model=H100, memory_mib=9_856, kind=DeviceKind.MIG,
            parent_uuid=SPLIT, mig_profile="1g.10gb", mig_start=start, facts={"memory_slices": 1},
        )
        for start in (0, 1)
    ]  # fmt: skip
    whole = replace(split, uuid="GPU-mixed-1", index=1, mig_mode=False)
    lab = local_pool_with(
        node_info("mixed", devices=(split, *instances, whole)),
        node_info("each", gpus=8),
        node_info("dark", gpus=1),
        slug="lab",
    )
    Node.objects.filter(name="dark").update(online=False)
    for number, fields in enumerate(
        ({"healthy": False}, {"cordoned": True}, {"checking": True}, {"present": False})
    ):
        Device.objects.filter(uuid=f"GPU-each-{number}").update(**fields)

    def hold(*devices: tuple[str, int], pool: Pool, amounts: dict[str, int]) -> None:
        workspace = WorkspaceFactory(
            owner=bob, team=team, pool=pool, state="running", flavor=FlavorFactory(pool=pool), amounts=amounts
        )
        held = [(Device.objects.get(uuid=uuid), milli) for uuid, milli in devices]
        allocation = Allocation.objects.create(
            workspace=workspace, node=held[0][0].node, generation=1, cpu_milli=1000, memory_mib=1024,
            granted_at=timezone.now(),
        )  # fmt: skip
        for device, milli in held:
            AllocatedDevice.objects.create(allocation=allocation, device=device, milli=milli)

    plain = {"cpu_milli": 1000, "memory_mib": 1024, "workspaces": 1}
    for uuid, milli in (("GPU-each-4", 500), ("GPU-each-5", 1000), ("GPU-each-6", 1000)):
        hold((uuid, milli), pool=lab, amounts={**plain, "gpu": milli, "gpu:h100": milli})
    hold(("MIG-0", 1000), pool=lab, amounts={**plain, "mig:1g.10gb": 1000})
    now = int(time.time())
    DeviceSeries.objects.create(
        device=Device.objects.get(uuid="GPU-each-5"), newest_s=now, idle_since_s=now - 3600
    )
    sim = simulated_pool(str(tmp_path / "sim"))
    simulated = {"simulated_cpu_milli": 1000, "simulated_memory_mib": 1024, "workspaces": 1}
    first = Device.objects.filter(node__pool=sim).order_by("uuid")[0]
    hold((first.uuid, 1000), pool=sim, amounts={**simulated, "gpu:simulated-h100": 1000})
    off = local_pool_with(node_info("unused", gpus=2), slug="off")
    Pool.objects.filter(pk=off.pk).update(enabled=False)
    return lab


def text(response: Any) -> str:
    """The visible text: no tags, single spaces."""
    assert response.status_code == 200
    plain = re.sub(r"<[^>]+>", " ", response.content.decode())
    return " ".join(unescape(plain).split())


def rows(response: Any) -> list[list[str]]:
    """The cells of all rows of all tables."""
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", response.content.decode(), re.DOTALL)
    return [
        [" ".join(unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in re.findall(
            r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL
        )]
        for row in found
    ]  # fmt: skip


def card(page: str, title: str, end: str = "online") -> str:
    """A pool's capacity card, from its title."""
    return page[page.index(title) :].split(end)[0]


def amounts_of(row: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {resource["resource"]: tuple(resource[name] for name in AMOUNTS) for resource in row["resources"]}


def metrics(client: Any) -> dict[str, list[tuple[dict[str, str], float]]]:
    found = text_string_to_metric_families(client.get("/metrics").content.decode())
    return {each.name: [(sample.labels, sample.value) for sample in each.samples] for each in found}


# --- pages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["/", "/pools/"])
def test_home_and_list_of_pools(site, bob, as_user, address):
    page = text(as_user(bob).get(address))
    lab = card(page, "Pool lab")
    assert f"{H100} 2.5 of 10 free" in lab and f"{H100} · 1g.10gb 1 of 2 free" in lab
    assert "CPU 12 of 24 cores free" in lab and "Memory 28 GiB of 48 GiB free" in lab
    assert "Simulated H100 7 of 8 free" in card(page, "Simulated sim")
    off = card(page, "Pool off", end="warning")
    assert f"{H100} 0 of 2 free" in off and "CPU 0 of 8 cores free" in off


def test_box_has_the_color_of_its_device_state(site, bob, as_user):
    page = as_user(bob).get("/pools/lab/").content.decode()
    drawn = page[page.index(f"<span>{H100}</span>") :].split("</div>")[1]
    boxes = Counter(re.findall(r'class="slot ?(\w*)"', drawn))
    expected = Counter(STATES[uuid] for uuid in STATES if uuid.startswith("GPU-"))
    assert boxes["wait"] == expected["cordoned"] and boxes["bad"] == expected["failed"] + expected["offline"]


def test_pool_page(site, bob, as_user):
    response = as_user(bob).get("/pools/lab/")
    page = text(response)
    assert f"{H100} 2.5 of 10 free" in page and f"{H100} · 1g.10gb 1 of 2 free" in page
    table = rows(response)
    nodes = {row[0]: row for row in table if row and row[0] in ("mixed", "each", "dark")}
    assert [nodes[name][2] for name in ("mixed", "each", "dark")] == [
        "2 of 3 free", "1.5 of 8 free", "0 of 1 in use",
    ]  # fmt: skip
    assert nodes["each"][3:5] == ["5 / 8 cores", "13 GiB / 16 GiB"]
    assert nodes["dark"][3:5] == ["– / 8 cores", "– / 16 GiB"]
    words = {row[0]: row[4] for row in table if row and row[0] in STATES}
    assert words == {uuid: WORDS[state] for uuid, state in STATES.items()}


def test_page_of_a_disabled_pool(site, bob, as_user):
    response = as_user(bob).get("/pools/off/")
    assert "0 of 2 free" in text(response)
    assert [row[4] for row in rows(response) if row and row[0].startswith("GPU-unused")] == ["Offline"] * 2


def test_gpu_map(site, bob, as_user):
    response = as_user(bob).get("/gpus/")
    page = text(response)
    headline = "2 of 10 GPUs in use, 1 idle, 2 free, 1 being checked, 4 out of service"
    assert f"{headline}; 1 of 2 MIG instances in use, 1 free" in page
    assert "1 of 8 GPUs in use, 7 free" in page
    page = text(as_user(bob).get("/gpus/?pool=lab"))
    legend = {
        state: int(found[1]) for state, word in WORDS.items() if (found := re.search(rf"{word} (\d+)", page))
    }
    assert legend == BY_STATE
    cells = re.findall(r'aria-label="(GPU \d[^"]*)"', response.content.decode())
    assert len(cells) == 11 + 8 and "GPU 0, partitioned: 1g.10gb in use, 1g.10gb free" in cells
    for state, word in WORDS.items():
        shown = as_user(bob).get(f"/gpus/?pool=lab&state={state}").content.decode()
        expected = {uuid for uuid, its in STATES.items() if its == state and not uuid.startswith("MIG")}
        expected |= {SPLIT} if state in ("allocated", "free") else set()
        found = re.findall(r'<a class="gpu (\w+)', shown)
        assert len(found) == len(expected), (state, word)


def test_node_and_device_pages(site, bob, as_user):
    client = as_user(bob)
    for device in Device.objects.filter(node__pool=site).select_related("node"):
        word = WORDS[STATES[device.uuid]]
        page = text(client.get(f"/gpus/devices/{device.pk}/"))
        assert f"State {word}" in page, device.uuid
    for node in Node.objects.filter(pool=site):
        found = Counter(row[1] for row in rows(client.get(f"/gpus/nodes/{node.pk}/")) if len(row) == 6)
        del found["State"]
        assert found == Counter(WORDS[STATES[each.uuid]] for each in node.devices.all())
    page = text(client.get(f"/gpus/nodes/{Node.objects.get(name='each').pk}/"))
    assert "5 free of 8 cores" in page and "13 GiB free of 16 GiB" in page
    page = text(client.get(f"/gpus/nodes/{Node.objects.get(name='dark').pk}/"))
    assert "0 free of 8 cores" in page and "0 GiB free of 16 GiB" in page


def test_limits_page(site, olga, as_user):
    response = as_user(olga).get("/quotas/limits/?resource=gpu:h100")
    table = {row[0]: row for row in rows(response) if len(row) == 5}
    assert [(name, table[name][1], table[name][3]) for name in (
        "H100", "GPUs of any model", "MIG 1g.10gb", "CPU cores", "Memory", "Simulated H100",
    )] == [
        ("H100", "6", "2.5"), ("GPUs of any model", "6", "2.5"), ("MIG 1g.10gb", "2", "1"),
        ("CPU cores", "16", "4"), ("Memory", "32 GiB", "4 GiB"), ("Simulated H100", "8", "1"),
    ]  # fmt: skip
    page = text(response)
    assert "In service 6 Sum of quotas" in page and "In use 2.5" in page


def test_evidence_for_approvals(site, bob, petra, team, as_user, with_token):
    gpu, part = ask(bob, team), ask(bob, team, resource="mig:1g.10gb")
    page = text(as_user(petra).get("/quotas/approvals/"))
    assert "6 in service, 2.5 free" in page and "2 in service, 1 free" in page
    client = with_token(petra, "quotas:read", "quotas:decide")
    for request, size, free in ((gpu, 6000, "2.5"), (part, 2000, "1")):
        evidence = client.get(f"/api/v1/quota-requests/{request.pk}").json()["evidence"]
        assert evidence["site_size"] == size
        assert f"{free} free now" in evidence["effect"]


def test_reservable_amounts(site, olga, as_user):
    page = as_user(olga).get("/calendar/").content.decode()
    options = dict(re.findall(r'<option value="((?:gpu|mig):[^"]+)"[^>]*>([^<]+)<', page))
    found = {name: re.findall(r"\d+", words)[-1] for name, words in options.items()}
    assert found == {"gpu:h100": "6", "gpu:simulated-h100": "8", "mig:1g.10gb": "2"}, options


# --- REST, metrics and the scheduler ----------------------------------------------------------------


def test_rest(site, bob, with_token):
    client = with_token(bob)
    pools = {row["slug"]: row for row in client.get("/api/v1/pools").json()["results"]}
    lab = amounts_of(pools["lab"])
    assert {name: lab[name] for name in LAB} == LAB
    assert amounts_of(pools["sim"])["gpu:simulated-h100"] == SIMULATED
    assert amounts_of(pools["off"])["gpu:h100"] == (2000, 0, 0, 0)
    assert [pools[slug]["device_count"] for slug in ("lab", "sim", "off")] == [12, 8, 2]
    assert amounts_of(client.get("/api/v1/pools/lab").json()) == lab

    nodes = client.get("/api/v1/nodes?pool=lab").json()["results"]
    added: dict[str, list[int]] = {}
    for row in nodes:
        for name, amounts in amounts_of(row).items():
            added[name] = [a + b for a, b in zip(added.get(name, [0] * 4), amounts, strict=True)]
    assert {name: tuple(amounts) for name, amounts in added.items()} == lab
    node = next(row for row in nodes if row["name"] == "mixed")
    assert amounts_of(node)["gpu"] == (1000, 1000, 0, 1000)
    assert amounts_of(client.get(f"/api/v1/nodes/{node['id']}").json()) == amounts_of(node)

    devices = client.get("/api/v1/devices?pool=lab").json()["results"]
    assert {row["uuid"]: row["state"] for row in devices} == STATES
    assert [row["uuid"] for row in devices if row["partitioned"]] == [SPLIT]
    assert Counter(row["state"] for row in devices if not row["partitioned"]) == BY_STATE
    for state in WORDS:
        found = client.get(f"/api/v1/devices?pool=lab&state={state}").json()["results"]
        assert {row["uuid"] for row in found} == {uuid for uuid, its in STATES.items() if its == state}
    off = client.get("/api/v1/devices?pool=off").json()["results"]
    assert {row["state"] for row in off} == {"offline"}


def test_metrics(site, bob, client):
    client.force_login(bob)
    found = metrics(client)
    by_state = {labels["state"]: value for labels, value in found["berth_devices"] if labels["pool"] == "lab"}
    assert set(by_state) == set(DeviceState)
    assert {state: value for state, value in by_state.items() if value} == BY_STATE
    for place, amount in enumerate(AMOUNTS):
        name = "capacity" if amount == "total" else amount
        of = {(row["pool"], row["resource"]): value for row, value in found[f"berth_gpus_{name}"]}
        gpus = {resource: amounts[place] / 1000 for resource, amounts in LAB.items() if ":" in resource}
        assert {resource: of["lab", resource] for resource in gpus} == gpus
        assert of["sim", "gpu:simulated-h100"] == SIMULATED[place] / 1000
        assert of["off", "gpu:h100"] == (2, 0, 0, 0)[place]
        for metric, resource, factor in PER_NODE:
            of = {row["pool"]: value for row, value in found[metric.format(name)]}
            assert of["lab"] == LAB[resource][place] * factor
    # Half a GPU, two whole ones, and one of the two instances of a GPU.
    held = {labels["simulated"]: value for labels, value in found["berth_team_gpus_allocated"]}
    assert held == {"false": 3, "true": 1}
    (idle,) = [labels["UUID"] for labels, _ in found["berth_device_idle_seconds"]]
    assert idle == "GPU-each-5"


def test_scheduler_capacity_is_free_plus_allocated(site):
    totals = capacity.total_capacity(capacity.load().values())
    assert totals == {
        "gpu": GPUS[2] + GPUS[3],
        "gpu:h100": GPUS[2] + GPUS[3],
        "mig:1g.10gb": INSTANCES[2] + INSTANCES[3],
        "gpu:simulated-h100": SIMULATED[2] + SIMULATED[3],
    }


def test_totals_match_the_counts(site):
    counts = counting.site()
    assert counts["gpu"].total == GPUS[0] and counts["mig:1g.10gb"].total == INSTANCES[0]
    assert counting.site_totals() == {name: count.total for name, count in counts.items()}
