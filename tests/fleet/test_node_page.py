"""GPUs on the page of a node and over REST: who holds each, its use now, and how long it has been idle."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.fleet.inventory.models import Device, DeviceMinute, DeviceSeries, Pool
from provisioning.types import DeviceInfo, DeviceKind
from tests.factories import FlavorFactory, local_pool_with, node_info

pytestmark = pytest.mark.django_db
H100 = "NVIDIA H100 80GB HBM3"


def gpu(index: int, node: str = "gpu-01", **fields: Any) -> DeviceInfo:
    return DeviceInfo(uuid=f"GPU-{node}-{index}", index=index, model=H100, memory_mib=81_559, **fields)


def measure(device: Device, percent: int, idle_s: int = 0) -> None:
    """Record a minute of a device, idle for this time."""
    now_s = int(timezone.now().timestamp())
    idle_since_s = now_s - idle_s if idle_s else None
    series = DeviceSeries.objects.create(device=device, newest_s=now_s, idle_since_s=idle_since_s)
    DeviceMinute.objects.create(
        series=series, start_s=now_s - 60, measured_s=60, gpu_pct_s=60 * percent, gpu_s=60
    )


def rows_of(response: Any) -> list[str]:
    """The text of each row of the table of GPUs."""
    table = unescape(response.content.decode()).split("<tbody>")[1].split("</tbody>")[0]
    return [" ".join(row.split()) for row in table.split("<tr")[1:]]


@pytest.fixture
def held(catalog: Any, make: Any, alice: Any) -> Device:
    """A GPU that a workspace of alice holds, on a node with another one."""
    pool = local_pool_with(node_info("gpu-01", devices=(gpu(0), gpu(1)), cpu_milli=64_000))
    Pool.objects.filter(pk=pool.pk).update(hand_out_max_age_hours=0)
    FlavorFactory(slug="gpu-1", accelerator_count=1, accelerator_model=H100)
    make(alice, "gpu-1", name="secret-work")
    return Device.objects.select_related("node").get(allocated__active=True)


def test_gpu_rows_show_holder_use_and_idle_time(held, alice, charlie, as_user):
    measure(held, 37)
    measure(Device.objects.exclude(pk=held.pk).get(), 0, idle_s=3600)
    url = f"/gpus/nodes/{held.node_id}/"
    row, free = sorted(rows_of(as_user(alice).get(url)), key=lambda text: "secret-work" not in text)
    assert ">secret-work of alice</a>" in row and "37 %" in row and "In use" in row
    # A free GPU is not idle: nobody holds it.
    assert "Not allocated" in free and "0 %" in free and "1 h" not in free
    other = " ".join(rows_of(as_user(charlie).get(url)))
    assert "another team" in other and "secret-work" not in other and "37 %" in other


def test_idle_gpu_shows_since_when(held, alice, as_user):
    measure(held, 0, idle_s=3600)
    (row,) = (
        text for text in rows_of(as_user(alice).get(f"/gpus/nodes/{held.node_id}/")) if "secret-work" in text
    )
    assert "Idle" in row and "1 h" in row and "0 %" in row


def test_instances_stand_below_their_gpu_with_their_holders(catalog, make, alice, as_user):
    part = DeviceInfo(
        uuid="MIG-0", index=0, model=H100, memory_mib=9_856, kind=DeviceKind.MIG,
        parent_uuid="GPU-gpu-01-0", mig_profile="1g.10gb", mig_start=0, facts={"memory_slices": 1},
    )  # fmt: skip
    second = replace(part, uuid="MIG-1", mig_start=1)
    pool = local_pool_with(node_info("gpu-01", devices=(gpu(0, mig_mode=True), part, second)))
    allocation = make(alice, name="on-a-part").allocations.get()
    allocation.devices.create(device=Device.objects.get(uuid="MIG-0"))
    whole, first, other = rows_of(as_user(alice).get(f"/gpus/nodes/{pool.nodes.get().pk}/"))
    assert "1 of 2 instances free" in whole and "on-a-part" not in whole
    assert "1g.10gb of GPU 0" in first and "on-a-part of alice" in first
    assert "Not allocated" in other


def test_query_count_is_the_same_for_1_and_16_gpus(catalog, make, alice, olga, as_user, with_token):
    nodes = [
        node_info(f"gpu-{count}", devices=tuple(gpu(index, f"gpu-{count}") for index in range(count)))
        for count in (1, 16)
    ]
    pool = local_pool_with(*nodes)
    allocations = [make(alice, name=f"work-{number}").allocations.get() for number in range(4)]
    for device in Device.objects.all():
        allocations[device.index % 4].devices.create(device=device)
        measure(device, 0, idle_s=3600)
    # Not as an operator, whose page also has the check of several GPUs at once.
    page, program = as_user(alice), with_token(olga)
    counts = []
    for count in (1, 16):
        node = pool.nodes.get(name=f"gpu-{count}")
        queries = []
        for client, url, mark in (
            (page, f"/gpus/nodes/{node.pk}/", 'id="gpu-'),
            (program, f"/api/v1/devices?node={node.name}", '"share_milli"'),
        ):
            client.get(url)
            with CaptureQueriesContext(connection) as seen:
                answer = client.get(url)
            assert answer.content.decode().count(mark) == count
            queries.append(len(seen))
        counts.append(queries)
    assert counts[0] == counts[1]


def test_rest_shows_who_holds_a_device_and_its_use(held, alice, charlie, with_token):
    measure(held, 37, idle_s=60)
    free = Device.objects.exclude(pk=held.pk).get()
    client = with_token(alice)
    row = client.get(f"/api/v1/devices/{held.pk}").json()
    workspace = held.allocated.get(active=True).allocation.workspace
    (holder,) = row["holders"]
    assert holder["since"] is not None
    assert holder == {
        "workspace_id": str(workspace.pk),
        "workspace": "secret-work",
        "owner": "alice",
        "share_milli": 1000,
        "since": holder["since"],
    }
    assert (row["gpu_pct"], row["idle_s"]) == (37, 60)
    listed = {row["id"]: row for row in client.get("/api/v1/devices").json()["results"]}
    assert listed[str(held.pk)] == row
    assert (listed[str(free.pk)]["holders"], listed[str(free.pk)]["gpu_pct"]) == ([], None)
    hidden = [{"workspace_id": None, "workspace": "", "owner": "", "share_milli": 1000, "since": None}]
    for token in (with_token(charlie), with_token(alice, "pools:read")):
        assert token.get(f"/api/v1/devices/{held.pk}").json()["holders"] == hidden
