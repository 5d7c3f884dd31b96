"""A cached cluster: commits, releases, and decisions equal to those of a new cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement import cluster as cluster_module
from portal.scheduling.engine.placement.engine import Cluster, place
from portal.scheduling.engine.placement.types import Placed
from provisioning.gpu.shares import part_mib
from provisioning.types import DeviceGrant, NodePlacement, Placement
from tests.scheduling.engine.placement.helpers import (
    FAILED,
    OFFLINE,
    carrier,
    gpu,
    gpus,
    node,
    nodes_,
    requests_,
    wants,
)
from tests.suite.choice import examples

POLICIES = st.sampled_from(["fragmentation", "best_fit", "spread"])


@settings(max_examples=examples(100))
@given(nodes_(most=6), st.lists(st.tuples(requests_(), st.booleans()), max_size=12), POLICIES)
def test_decides_like_a_new_cluster_without_overcommit(nodes, steps, policy):
    cluster = Cluster(nodes, policy=policy)
    running = []
    for request, leave in steps:
        now = cluster.snapshot()
        decision = cluster.decide(request)
        assert decision == place(now, request, policy=policy)
        # Asked repeatedly: only changed nodes are examined.
        assert cluster.explain(steps[0][0]) == Cluster(now, policy=policy).explain(steps[0][0])
        if isinstance(decision, Placed):
            cluster.commit(decision.placement, request)
            running.append((decision.placement, request))
        if leave and running:
            cluster.release(*running.pop(0))
        for state in cluster.snapshot():
            assert min(state.free_cpu_milli, state.free_memory_mib, state.free_disk_mib) >= 0
            assert all(0 <= device.free_milli <= 1000 for device in state.devices)
            assert all(device.free_memory_mib >= -1 for device in state.devices)
    for placement, request in running:
        cluster.release(placement, request)
    assert cluster.snapshot() == nodes


@settings(
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(nodes_(most=4, bonds=False), st.lists(requests_(), min_size=1, max_size=12), st.data(), POLICIES)
def test_shared_scores_of_equal_nodes_give_the_same_decisions(monkeypatch, nodes, requests, data, policy):
    """The same steps with each node scored separately."""
    nodes = [
        replace(
            each,
            name=f"{copy}-{each.name}",
            devices=tuple(
                replace(device, uuid=f"{copy}-{device.uuid}", warned=data.draw(st.booleans()))
                if not device.parent_uuid and not device.mig_mode
                else replace(
                    device,
                    uuid=f"{copy}-{device.uuid}",
                    parent_uuid=device.parent_uuid and f"{copy}-{device.parent_uuid}",
                )
                for device in each.devices
            ),
        )
        for copy in range(3)
        for each in nodes
    ]
    decisions = []
    for worth in (1, len(nodes) + 1):
        monkeypatch.setattr(cluster_module, "_MIN_ROWS_TO_GROUP", worth)
        cluster = Cluster(nodes, policy=policy)
        decisions.append([])
        for request in requests:
            decision = cluster.decide(request)
            decisions[-1].append(decision)
            if isinstance(decision, Placed):
                cluster.commit(decision.placement, request)
    assert decisions[0] == decisions[1]


def test_commit_beyond_free_capacity_fails_without_changes():
    nodes = [node("a", *gpus("a", 1000, 400)), node("b", *gpus("b", 0))]
    cluster = Cluster(nodes)
    request = wants(1)
    good = NodePlacement("a", (DeviceGrant("a0"),))
    for bad in (
        NodePlacement("b", (DeviceGrant("b0"),)),
        NodePlacement("b", (DeviceGrant("unknown"),)),
        NodePlacement("nowhere"),
        NodePlacement("a", (DeviceGrant("a1"),)),
    ):
        with pytest.raises(ValueError, match=r"no 1000 milli|no device|not in the snapshot"):
            cluster.commit(Placement((good, bad)), request)
        assert cluster.snapshot() == nodes
    with pytest.raises(ValueError, match="more than is free"):
        cluster.commit(Placement((good,)), wants(1, cpu=65_000))
    assert cluster.snapshot() == nodes


def test_release_without_commit_fails():
    cluster = Cluster([node("a", gpu("g"))])
    with pytest.raises(ValueError, match="given back"):
        cluster.release(Placement((NodePlacement("a"),)), wants())
    with pytest.raises(ValueError, match="no -1000 milli"):
        cluster.release(Placement((NodePlacement("a", (DeviceGrant("g"),)),)), wants(1, cpu=0, memory=0))


def test_overcommitted_node_accepts_no_work_until_enough_is_released():
    cluster = Cluster([node("a", cpu=-1000, memory=0)])
    given = Placement((NodePlacement("a"),))
    assert cluster.find(wants(cpu=0)) is None
    cluster.release(given, wants(cpu=500))
    assert cluster.find(wants(cpu=0)) is None
    cluster.release(given, wants(cpu=2500))
    assert cluster.find(wants(cpu=2000)) is not None


def test_overcommitted_allocations_can_be_released_and_restored():
    """It has shrunk: 2 CPU cores and 1 GiB above its capacity are allocated."""
    small = node("n1", *gpus("a", 0, 1000), cpu=-2000, memory=-1024, disk=-10)
    cluster = Cluster([small])
    request = wants(1, cpu=1000, memory=512)
    held = Placement((NodePlacement("n1", (DeviceGrant("a0", 1000),)),))
    cluster.release(held, request)
    assert cluster.node("n1").free_cpu_milli == -1000
    with pytest.raises(ValueError):
        cluster.commit(held, request)
    cluster.restore(held, request)
    assert cluster.snapshot() == [small]
    assert cluster.find(wants(cpu=1, memory=0)) is None
    with pytest.raises(ValueError):
        # Its device is used again.
        cluster.restore(held, request)
    assert cluster.snapshot() == [small]


def test_memory_of_shares_is_counted_if_tracked():
    cluster = Cluster([node("a", gpu("g", free_memory_mib=80_000))])
    request = wants(1, share_milli=100, memory_mib=30_000)
    for _ in range(2):
        placement = cluster.find(request)
        assert placement is not None
        assert placement.nodes[0].devices == (DeviceGrant("g", 100, 30_000),)
        cluster.commit(placement, request)
    assert cluster.find(request) is None
    assert cluster.snapshot()[0].devices[0].free_memory_mib == 20_000


@pytest.mark.parametrize("amount_first", [True, False])
def test_share_without_memory_amount_gets_its_fraction_of_memory(amount_first):
    """40,000 of 80,000 are its own; others can have at most the other half, in any order."""
    cluster = Cluster([node("a", gpu("g", free_memory_mib=80_000))])
    plain, large = wants(1, share_milli=500), wants(1, share_milli=400, memory_mib=40_001)
    first, second = (large, plain) if amount_first else (plain, large)
    placement = cluster.find(first)
    assert placement.nodes[0].devices[0].memory_mib == (40_001 if amount_first else 40_000)
    cluster.commit(placement, first)
    assert cluster.find(second) is None
    assert cluster.explain(second).reasons[0][1].code is PlacementCode.DEVICE_SHARES_SHORT
    fitting = wants(1, share_milli=400, memory_mib=39_999)
    assert cluster.find(fitting) is not None
    cluster.release(placement, first)
    assert cluster.find(second) is not None
    assert cluster.snapshot()[0].devices[0] == gpu("g", free_memory_mib=80_000)


@settings(max_examples=examples(200))
@given(
    st.sampled_from([79_999, 80_000, 81_559]),
    st.lists(st.tuples(st.integers(1, 999), st.sampled_from([0, 0, 1, 20_000, 60_000])), max_size=12),
)
def test_device_memory_is_never_overcommitted(memory, sizes):
    cluster = Cluster([node("a", gpu("g", memory_mib=memory, free_memory_mib=memory))])
    promised = []
    for milli, asked in sizes:
        request = wants(1, cpu=1, memory=0, share_milli=milli, memory_mib=asked)
        placement = cluster.find(request)
        if placement is not None:
            (grant,) = placement.nodes[0].devices
            # The limit that its node enforces.
            assert (
                grant.memory_mib
                == part_mib(memory, milli, asked)
                == part_mib(memory, milli, grant.memory_mib)
            )
            cluster.commit(placement, request)
            promised.append(grant.memory_mib)
    assert sum(promised) <= memory
    assert cluster.snapshot()[0].devices[0].free_memory_mib == memory - sum(promised)


def test_equal_shares_fill_a_device_of_any_memory_size():
    """Also thirds of sizes not divisible by three."""
    cluster = Cluster([node("a", gpu("g", memory_mib=81_559, free_memory_mib=81_559))])
    for milli in (333, 333, 334):
        placement = cluster.find(wants(1, share_milli=milli))
        assert placement is not None
        cluster.commit(placement, wants(1, share_milli=milli))


def test_overcommitted_memory_can_be_released_and_restored():
    """No memory of the device is free, and its holders leave one after the other."""
    full = node("a", gpu("g", 100, free_memory_mib=0))
    cluster = Cluster([full])
    one, other = (Placement((NodePlacement("a", (DeviceGrant("g", 450, mib),)),)) for mib in (60_000, 40_000))
    for held in (one, other):
        cluster.release(held, wants(cpu=0, memory=0))
    assert cluster.snapshot()[0].devices[0].free_memory_mib == 80_000
    for held in (other, one):
        cluster.restore(held, wants(cpu=0, memory=0))
    assert cluster.snapshot() == [full]


def test_untracked_memory_of_shares_follows_the_fraction():
    cluster = Cluster([node("a", gpu("g"))])
    half = wants(1, share_milli=500, memory_mib=40_000)
    for _ in range(2):
        placement = cluster.find(half)
        assert placement is not None
        cluster.commit(placement, half)
    assert cluster.find(half) is None


def test_node_can_be_cordoned_and_uncordoned():
    state = node("a", gpu("g"))
    cluster = Cluster([state, node("b")])
    assert cluster.find(wants(1)) is not None
    cluster.update(replace(state, unusable=OFFLINE))
    assert cluster.find(wants(1)) is None
    assert [(name, reason.code) for name, reason in cluster.explain(wants(1)).reasons] == [
        ("a", PlacementCode.NODE_OFFLINE),
        ("b", PlacementCode.MODEL_MISSING),
    ]
    cluster.update(state)
    assert cluster.find(wants(1)) is not None


def test_device_failing_in_use_is_not_granted_until_healthy():
    cluster = Cluster([node("a", gpu("g"))])
    placement = cluster.find(wants(1))
    assert placement is not None
    cluster.commit(placement, wants(1))
    (busy,) = cluster.snapshot()
    cluster.update(replace(busy, devices=(replace(busy.devices[0], unusable=FAILED),)))
    cluster.release(placement, wants(1))
    assert cluster.find(wants(1)) is None
    assert cluster.find(wants(1, share_milli=1)) is None
    (idle,) = cluster.snapshot()
    assert idle.devices[0].free_milli == 1000
    cluster.update(replace(idle, devices=(replace(idle.devices[0], unusable=None),)))
    assert cluster.find(wants(1)) == placement


def test_added_devices_of_a_node_are_used():
    cluster = Cluster([node("a"), node("b")])
    assert cluster.find(wants(2)) is None
    cluster.update(node("b", *gpus("n", 1000, 1000)))
    assert cluster.find(wants(2)) is not None
    assert [state.name for state in cluster.snapshot()] == ["a", "b"]
    with pytest.raises(KeyError):
        cluster.update(node("c"))


def test_mig_instances_are_committed_and_released():
    states = [node("a", *carrier("p", ("1g.10gb", 0, True), ("1g.10gb", 1, True)))]
    cluster = Cluster(states)
    request = wants(1, mig_profile="1g.10gb")
    taken = []
    while (placement := cluster.find(request)) is not None:
        cluster.commit(placement, request)
        taken.append(placement)
    assert sorted(grant.uuid for each in taken for grant in each.nodes[0].devices) == [
        "p/1g.10gb@0",
        "p/1g.10gb@1",
    ]
    for placement in taken:
        cluster.release(placement, request)
    assert cluster.snapshot() == states


def test_rarely_queried_shape_sees_all_changes_since():
    """More changes than are remembered individually."""
    cluster = Cluster([node("a", gpu("a0"), cpu=64_000), node("b", gpu("b0"), cpu=32_000)])
    seldom, often = wants(1), wants(cpu=10)
    first = cluster.find(seldom)
    assert first is not None
    cluster.commit(first, seldom)
    for _ in range(cluster_module._MAX_REMEMBERED_CHANGES):
        taken = cluster.find(often)
        assert taken is not None
        cluster.commit(taken, often)
        cluster.release(taken, often)
    second = cluster.find(seldom)
    assert second is not None
    assert {first.nodes[0].node, second.nodes[0].node} == {"a", "b"}


def test_more_shapes_than_cached_are_still_placed():
    cluster = Cluster([node("a", cpu=64_000)])
    for cpu in range(1, 1100):
        assert cluster.find(wants(cpu=cpu)) is not None
    assert cluster.find(wants(cpu=1)) is not None
