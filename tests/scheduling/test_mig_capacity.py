"""Capacity read for GPUs in MIG mode."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.scheduling import capacity
from provisioning.types import DeviceInfo, DeviceKind
from tests.factories import local_pool_with, node_info

pytestmark = pytest.mark.django_db
MODEL = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
PROFILES = [
    {"name": "1g.24gb", "memory_mib": 24_000, "most": 4, "placements": [[0, 1], [1, 1], [2, 1], [3, 1]]},
    {"name": "2g.48gb", "memory_mib": 48_000, "most": 2, "placements": [[0, 2], [2, 2]]},
]


def gpu(uuid: str, index: int, **fields) -> DeviceInfo:
    return DeviceInfo(uuid, index, MODEL, 97_887, **fields)


def queries_of(pool) -> int:
    with CaptureQueriesContext(connection) as found:
        capacity.load([pool])
    return len(found)


def test_layout_is_the_one_reported_by_the_driver(catalog):
    devices = (
        gpu("GPU-0", 0, mig_mode=True, facts={"profiles": PROFILES}),
        DeviceInfo("MIG-0", 0, f"{MODEL} MIG 1g.24gb", 24_000, kind=DeviceKind.MIG, parent_uuid="GPU-0",
                   mig_profile="1g.24gb", mig_start=2),
        gpu("GPU-1", 1, mig_mode=True),
        gpu("GPU-2", 2, facts={"profiles": []}),
    )  # fmt: skip
    pool = local_pool_with(node_info(devices=devices))
    (node,) = capacity.load([pool])[pool.pk].nodes
    found = {device.uuid: device for device in node.devices}
    layout = found["GPU-0"].layout
    assert layout is not None
    assert (layout.slots, [profile.name for profile in layout.profiles]) == (4, ["1g.24gb", "2g.48gb"])
    assert [found[uuid].layout for uuid in ("MIG-0", "GPU-1", "GPU-2")] == [None] * 3


def test_layouts_take_one_query_only_if_present(catalog):
    plain = local_pool_with(node_info("plain", gpus=2), slug="plain")
    split = local_pool_with(
        node_info("split", devices=tuple(gpu(f"GPU-{index}", index, mig_mode=True) for index in range(8))),
        slug="split",
    )
    assert queries_of(split) == queries_of(plain) + 1
