"""Samples over REST."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from portal.fleet.inventory import samples
from portal.fleet.inventory.models import Device
from tests.factories import local_pool_with, make_token, node_info
from tests.inventory.sampled import apply, rollup

pytestmark = pytest.mark.django_db


@pytest.fixture
def gpu(catalog) -> Device:
    local_pool_with(node_info(gpus=1))
    return Device.objects.get()


def get(client, user, path: str, scope: str = "pools:read"):
    _, secret = make_token(user, scope)
    return client.get(path, headers={"Authorization": f"Bearer {secret}"})


def test_last_hour_and_last_month(client, bob, gpu):
    now_s = int(datetime.now(UTC).timestamp()) // 60 * 60
    for back in (5, 3, 2, 1):
        apply(rollup(gpu.uuid, now_s - 60 * back, [50 * (back == 5)] * 60))
    samples.roll_up_hours()
    body = get(client, bob, f"/api/v1/devices/{gpu.pk}/samples").json()
    assert (body["span"], body["step_s"], body["simulated"], body["idle_s"]) == ("hour", 60, False, 180)
    assert [point["gpu_pct"] for point in body["points"]] == [50, 0, 0, 0], "the gap is left out"
    first = body["points"][0]
    assert datetime.fromisoformat(first["start"]).timestamp() == now_s - 300
    assert first["power_mw"] is None and first["measured_s"] == 60
    length = datetime.fromisoformat(body["end"]) - datetime.fromisoformat(body["start"])
    assert length.total_seconds() == 3600
    month = get(client, bob, f"/api/v1/devices/{gpu.pk}/samples?span=month").json()
    assert sum(point["gpu_s"] for point in month["points"]) == 240 and month["step_s"] == 3600


def test_invalid_requests_are_refused(client, bob, gpu):
    path = f"/api/v1/devices/{gpu.pk}/samples"
    assert get(client, bob, f"{path}?span=year").status_code == 400
    assert get(client, bob, f"{path}?sapn=hour").status_code == 400
    assert get(client, bob, path, "catalog:read").status_code == 403
    missing = get(client, bob, "/api/v1/devices/00000000-0000-0000-0000-000000000000/samples")
    assert missing.status_code == 404 and client.get(path).status_code == 401


def test_simulated_device_has_no_samples(client, bob, pool):
    device = Device.objects.first()
    body = get(client, bob, f"/api/v1/devices/{device.pk}/samples").json()
    assert body["simulated"] is True and body["points"] == [] and body["idle_s"] == 0
