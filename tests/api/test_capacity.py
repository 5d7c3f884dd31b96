"""Pools, nodes and devices"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from portal.fleet.inventory.models import Device, Node
from tests.api.conftest import problem
from tests.factories import FlavorFactory

pytestmark = pytest.mark.django_db


def test_pools(api: Any, bob: Any, pool: Any) -> None:
    rows = api(bob).get("pools").json()["results"]

    assert [row["slug"] for row in rows] == ["sim"]
    assert rows[0]["simulated"] is True
    assert (rows[0]["node_count"], rows[0]["device_count"], rows[0]["state"]) == (2, 8, "online")
    assert "config" not in rows[0]
    assert api(bob).get("pools/sim").json() == rows[0]


def test_nodes_and_devices_show_usage(api: Any, bob: Any, make: Any, pool: Any) -> None:
    workspace = make(bob, "sim-h100-x2")
    held = workspace.allocations.get()

    nodes = {row["name"]: row for row in api(bob).get("nodes?pool=sim").json()["results"]}
    used = nodes[held.node.name]
    assert (used["used_cpu_milli"], used["used_memory_mib"]) == (held.cpu_milli, held.memory_mib)
    assert len(used["devices"]) == 4
    devices = api(bob).get(f"devices?node={held.node.name}").json()["results"]
    assert sorted(device["used_milli"] for device in devices) == [0, 0, 1000, 1000]
    assert {device["uuid"] for device in devices} == set(used["devices"])
    assert api(bob).get(f"devices/{devices[0]['id']}").json() == devices[0]
    assert api(bob).get(f"nodes/{used['id']}").json() == used


def gpus_of(program: Any) -> dict[str, Any]:
    """The amounts of the pool's GPUs, of any model."""
    rows = program.get("pools/sim").json()["resources"]
    return next(row for row in rows if "gpu" in row["resource"])


def test_unscrubbed_device_is_not_free(api: Any, bob: Any, make: Any, pool: Any) -> None:
    FlavorFactory(slug="half", pool=pool, accelerator_count=1, accelerator_milli=500)
    held = make(bob, "half").allocations.get().devices.get()
    assert api(bob).get(f"devices/{held.device_id}").json()["kept_back"] is False
    before = gpus_of(api(bob))
    Device.objects.filter(pk=held.device_id).update(unscrubbed=True)
    row = api(bob).get(f"devices/{held.device_id}").json()
    assert (row["state"], row["kept_back"], row["used_milli"]) == ("shared", True, 500)
    after = gpus_of(api(bob))
    assert (after["free"], after["in_service"]) == (before["free"] - 500, before["in_service"])


def test_only_operators_cordon(api: Any, olga: Any, bob: Any, pool: Any) -> None:
    node = Node.objects.first()
    assert node is not None

    problem(api(bob).post(f"nodes/{node.pk}/cordon", {}), 403, "not_allowed")
    problem(api(olga, "pools:read").post(f"nodes/{node.pk}/cordon", {}), 403, "permission_denied")
    for _ in range(2):
        assert api(olga).post(f"nodes/{node.pk}/cordon", {"note": "fan"}).json()["cordoned"] is True
    assert pool.events.get(kind="node.cordoned").message.endswith(": fan")
    assert api(olga).post(f"nodes/{node.pk}/uncordon/").json()["cordoned"] is False
    problem(api(olga).post(f"nodes/{uuid.uuid4()}/cordon"), 404, "not_found")
