"""Each predicate: its reasons, and agreement of its scalar and array forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement import filters
from portal.scheduling.engine.placement.arrays import NodeArrays
from portal.scheduling.engine.placement.engine import place
from portal.scheduling.engine.placement.types import Unplaceable
from provisioning.types import Within
from tests.scheduling.engine.placement.helpers import (
    A10,
    FAILED,
    H100,
    OFFLINE,
    carrier,
    gpu,
    gpus,
    node,
    nodes_,
    reasons,
    requests_,
    wants,
)
from tests.suite.choice import examples

CASES = [
    ("offline", node("a", unusable=OFFLINE), wants(), PlacementCode.NODE_OFFLINE, "is offline"),
    (
        "cpu",
        node("a", cpu=500),
        wants(cpu=1500),
        PlacementCode.CPU_SHORT,
        "0.5 of 64 CPU cores free, needs 1.5",
    ),
    (
        "memory",
        node("a", memory=512),
        wants(memory=2048),
        PlacementCode.MEMORY_SHORT,
        "0.5 of 256 GiB memory free, needs 2",
    ),
    ("disk", node("a", disk=0), wants(disk_mib=2048), PlacementCode.DISK_SHORT, "0 GiB disk free, needs 2"),
    (
        "overcommitted",
        node("a", disk=-1),
        wants(),
        PlacementCode.NODE_OVERCOMMITTED,
        "is overcommitted",
    ),
    (
        "label",
        node("a"),
        wants(labels=(("zone", "b"),)),
        PlacementCode.LABEL_MISSING,
        "lacks the label zone=b",
    ),
    (
        "rdma",
        node("a", provides=("dpu_offload",)),
        wants(needs=("rdma", "dpu_offload")),
        PlacementCode.FEATURE_MISSING,
        "lacks rdma",
    ),
    (
        "tier",
        node("a"),
        wants(needs=("memory_tier:cxl",)),
        PlacementCode.FEATURE_MISSING,
        "lacks memory_tier:cxl",
    ),
    (
        "licence",
        node("a"),
        wants(needs=("licence:vgpu",)),
        PlacementCode.FEATURE_MISSING,
        "lacks licence:vgpu",
    ),
    ("none", node("a"), wants(1), PlacementCode.MODEL_MISSING, "has no accelerator"),
    (
        "model",
        node("a", gpu("x", model=A10)),
        wants(1, model=H100),
        PlacementCode.MODEL_MISSING,
        "has no H100",
    ),
    (
        "models",
        node("a", gpu("x", model="T4")),
        wants(1, models=(H100, A10)),
        PlacementCode.MODEL_MISSING,
        "has no H100 or A10",
    ),
    (
        "count",
        node("gpu-03", *gpus("g", 1000, 1000, 0, 250)),
        wants(3),
        PlacementCode.DEVICES_SHORT,
        "2 of 4 × accelerator free, needs 3 on one node",
    ),
    (
        "share",
        node("a", *gpus("g", 300, 400)),
        wants(1, share_milli=500),
        PlacementCode.DEVICE_SHARES_SHORT,
        "0 of 2 × accelerator with 50 % free, needs 1 on one node",
    ),
    (
        "size",
        node("a", gpu("x", model=A10)),
        wants(1, memory_mib=40_960),
        PlacementCode.DEVICE_MEMORY_SHORT,
        "the largest accelerator has 23.4 GiB; the request needs 40",
    ),
    (
        "share of memory",
        node("a", gpu("x", 600, free_memory_mib=1000)),
        wants(1, share_milli=500, memory_mib=2000),
        PlacementCode.DEVICE_SHARES_SHORT,
        "0 of 1 × accelerator with 50 % free, needs 1 on one node",
    ),
    (
        "health",
        node("a", gpu("x", unusable=FAILED), gpu("y")),
        wants(2),
        PlacementCode.DEVICES_SHORT,
        "1 of 2 × accelerator free, needs 2 on one node (1 out of service)",
    ),
    (
        "island",
        node("a", *(gpu(f"g{i}", island="x" if i < 2 else "y") for i in range(4))),
        wants(3, within=Within.ISLAND),
        PlacementCode.BONDED_DEVICES_SHORT,
        "2 × accelerator free in one NVLink island, needs 3",
    ),
    (
        "numa unknown",
        node("a", *gpus("g", 1000, 1000)),
        wants(2, within=Within.NUMA),
        PlacementCode.BONDED_DEVICES_SHORT,
        "0 × accelerator free in one NUMA node, needs 2",
    ),
    (
        "no mig",
        node("a", gpu("x")),
        wants(1, mig_profile="1g.10gb"),
        PlacementCode.MIG_PROFILE_MISSING,
        "has no MIG instance 1g.10gb",
    ),
    (
        "mig in use",
        node("a", *carrier("p", ("7g.80gb", 0, False))),
        wants(1, mig_profile="7g.80gb"),
        PlacementCode.MIG_INSTANCES_SHORT,
        "0 of 1 × 7g.80gb free, needs 1 on one node",
    ),
    (
        "mig other layout",
        node("a", *carrier("p", ("3g.40gb", 0, False), ("3g.40gb", 4, True))),
        wants(1, mig_profile="2g.20gb"),
        PlacementCode.MIG_PROFILE_MISSING,
        "has no MIG instance 2g.20gb; another MIG layout of p would make room",
    ),
    (
        "only mig",
        node("a", *carrier("p", ("1g.10gb", 0, True))),
        wants(1),
        PlacementCode.ONLY_AS_MIG,
        "has accelerator only as MIG instances",
    ),
]


@pytest.mark.parametrize(
    ("state", "request_", "code", "text"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_each_reason_has_its_code_and_text(state, request_, code, text):
    decision = place([state], request_)
    assert [reason.code for _, reason in decision.reasons] == [code]
    assert reasons([state], request_) == [text]


def test_every_node_has_its_reason_in_the_order_of_the_snapshot():
    nodes = [node("z", cpu=0), node("m", unusable=OFFLINE), node("a")]
    assert reasons(nodes, wants(1)) == [
        "0 of 64 CPU cores free, needs 1",
        "is offline",
        "has no accelerator",
    ]


def test_fitting_node_reports_that_other_nodes_are_missing():
    nodes = [node("a"), node("b", cpu=0)]
    assert reasons(nodes, wants(nodes=2)) == [
        "fits, but only 1 of 2 nodes fit",
        "0 of 64 CPU cores free, needs 1",
    ]


@settings(max_examples=examples(200))
@given(nodes_(), requests_())
def test_scalar_and_array_predicates_agree(nodes, request):
    arrays = NodeArrays(nodes)
    for row, state in enumerate(arrays.states):
        for each in filters.applying(request):
            passes = bool(each.mask(arrays, np.array([row]), request)[0])
            assert passes == (each.reason(state, request) is None), (each, state)


@given(nodes_(), requests_())
def test_a_refusal_has_a_reason_for_every_node(nodes, request):
    decision = place(nodes, request)
    if isinstance(decision, Unplaceable):
        assert [name for name, _ in decision.reasons] == [state.name for state in nodes]
        assert all(reason for _, reason in decision.reasons)
