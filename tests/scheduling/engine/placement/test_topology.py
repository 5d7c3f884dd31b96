"""Devices of a request are close on a node, and its nodes close in the data centre."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.scheduling.engine.placement.engine import Cluster
from portal.scheduling.engine.placement.types import DeviceCapacity
from provisioning.types import Placement, Within
from tests.scheduling.engine.placement.helpers import (
    carrier,
    gpu,
    gpus,
    node,
    wants,
    where,
)
from tests.suite.choice import examples


def islands(name: str, *sizes: int, busy: tuple[int, ...] = ()):
    """A node with an NVLink island of each size; the devices in `busy` are in use."""
    devices = [(f"i{island}", index) for island, size in enumerate(sizes) for index in range(size)]
    return node(
        name,
        *(
            gpu(f"{name}{place}", 0 if place in busy else 1000, island=island)
            for place, (island, _) in enumerate(devices)
        ),
    )


def test_smallest_sufficient_island_is_chosen():
    assert where([islands("a", 4, 2)], wants(2)) == {"a": ["a4", "a5"]}
    assert where([islands("a", 4, 2)], wants(3)) == {"a": ["a0", "a1", "a2"]}


def test_the_island_with_the_fewest_free_devices_is_the_smallest():
    assert where([islands("a", 4, 4, busy=(0, 1))], wants(2)) == {"a": ["a2", "a3"]}


def test_island_precedes_numa_node_and_numa_node_precedes_node():
    numa = node("numa", *(gpu(f"n{index}", numa=index // 2) for index in range(4)))
    loose = node("loose", *gpus("l", 1000, 1000))
    assert where([loose, numa, islands("isle", 2)], wants(2)) == {"isle": ["isle0", "isle1"]}
    assert where([loose, numa], wants(2)) == {"numa": ["n0", "n1"]}
    assert where([loose], wants(2)) == {"loose": ["l0", "l1"]}


def test_devices_of_one_numa_node_are_used_without_a_large_enough_island():
    mixed = node(
        "a",
        *(gpu(f"g{index}", island=f"pair{index // 2}", numa=index // 4) for index in range(8)),
    )
    assert where([mixed], wants(4)) == {"a": ["g0", "g1", "g2", "g3"]}


def test_locality_is_a_preference_unless_required():
    nodes = [islands("a", 2, 2)]
    assert len(where(nodes, wants(3))["a"]) == 3
    assert where([*nodes, islands("b", 3)], wants(3, within=Within.ISLAND)) == {"b": ["b0", "b1", "b2"]}


def test_single_device_satisfies_any_locality():
    assert where([node("a", gpu("g"))], wants(1, within=Within.ISLAND)) == {"a": ["g"]}


def nvswitch(name: str, *free: int):
    """A host whose NVSwitch connects all GPUs, half of them on each of two NUMA nodes."""
    half = len(free) // 2
    return node(
        name,
        *(
            gpu(f"{name}{index}", each, island="nvswitch", numa=index // half)
            for index, each in enumerate(free)
        ),
    )


def test_island_across_numa_nodes_does_not_satisfy_numa_locality():
    host = nvswitch("a", 0, 0, 0, 1000, 1000, 0, 1000, 1000)
    assert where([host], wants(2, within=Within.NUMA)) == {"a": ["a4", "a6"]}
    assert where([host], wants(3, within=Within.NUMA)) == {"a": ["a4", "a6", "a7"]}


def test_one_numa_node_within_an_island_is_preferred_if_sufficient():
    assert where([nvswitch("a", 0, 0, 0, 1000, 1000, 0, 1000, 0)], wants(2)) == {"a": ["a4", "a6"]}
    host = nvswitch("a", 1000, 1000, 0, 0, 1000, 1000, 1000, 0)
    assert where([host], wants(2)) == {"a": ["a0", "a1"]}
    assert where([host], wants(2, within=Within.ISLAND)) == {"a": ["a0", "a1"]}
    assert where([host], wants(4, within=Within.ISLAND)) == {"a": ["a0", "a1", "a4", "a5"]}


def test_numa_node_precedes_an_island_across_numa_nodes():
    bridged = node(
        "a",
        *(
            gpu(f"a{index}", island="bridge" if index in (0, 2) else "", numa=index // 2)
            for index in range(4)
        ),
    )
    assert where([bridged], wants(2)) == {"a": ["a0", "a1"]}
    assert where([bridged], wants(2, within=Within.ISLAND)) == {"a": ["a0", "a2"]}


def test_host_with_a_sufficient_numa_node_is_preferred():
    split, whole = nvswitch("split", 1000, 0, 1000, 0), nvswitch("whole", 1000, 1000, 1000, 1000)
    assert where([split, whole], wants(2)) == {"whole": ["whole0", "whole1"]}


def numa_nodes(devices: list[DeviceCapacity]) -> set[int]:
    return {device.numa for device in devices if device.numa >= 0}


@st.composite
def hosts(draw):
    """Hosts of two NUMA nodes with GPUs connected by a switch, in pairs, randomly or not at all."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        size = draw(st.sampled_from([4, 8]))
        names = draw(
            st.sampled_from([["all"] * size, [f"pair{index // 2}" for index in range(size)], [""] * size])
            | st.lists(st.sampled_from(["", "x", "y"]), min_size=size, max_size=size)
        )
        known = draw(st.sampled_from([True, True, True, False]))
        found.append(
            node(
                f"n{number}",
                *(
                    gpu(
                        f"n{number}/{index}",
                        draw(st.sampled_from([0, 500, 1000, 1000, 1000])),
                        island=names[index],
                        numa=index * 2 // size if known else -1,
                        warned=draw(st.sampled_from([False, False, False, True])),
                    )
                    for index in range(size)
                ),
            )
        )
    return found


several = st.builds(
    wants, st.integers(2, 5), cpu=st.just(0), memory=st.just(0), within=st.sampled_from(Within),
    share_milli=st.sampled_from([500, 1000, 1000]),
)  # fmt: skip


@settings(max_examples=examples(300))
@given(
    hosts(),
    st.lists(several, min_size=1, max_size=5),
    st.sampled_from(["fragmentation", "best_fit", "spread"]),
)
def test_placement_crosses_numa_nodes_only_if_necessary(states, requests, policy):
    """Over the life of a cluster, with earlier placements unchanged."""
    cluster = Cluster(states, policy=policy)
    for request in requests:
        accelerators = request.accelerators
        before = {state.name: state for state in cluster.snapshot()}
        placement: Placement | None = cluster.find(request)
        if placement is None:
            continue
        part = placement.nodes[0]
        granted = {grant.uuid for grant in part.devices}
        chosen = [device for device in before[part.node].devices if device.uuid in granted]
        if accelerators.within is Within.NUMA:
            assert len(numa_nodes(chosen)) == 1 and all(device.numa >= 0 for device in chosen)
        if accelerators.within is Within.ISLAND:
            assert len({device.island for device in chosen}) == 1 and chosen[0].island
        if len(numa_nodes(chosen)) > 1:
            alone = [
                replace(
                    state,
                    name=f"{state.name}/{numa}",
                    devices=tuple(device for device in state.devices if device.numa == numa),
                )
                for state in before.values()
                for numa in numa_nodes(list(state.devices))
            ]
            assert Cluster(alone).find(request) is None
        cluster.commit(placement, request)


def test_device_without_warning_on_another_node_is_preferred():
    tidy = [node("ill", gpu("i0", warned=True)), node("well", *gpus("w", *[1000] * 8))]
    for policy in ("fragmentation", "best_fit", "spread"):
        assert where(tidy, wants(1), policy=policy) == {"well": ["w0"]}
        assert where(tidy, wants(1, share_milli=250), policy=policy) == {"well": ["w0"]}
    assert where(tidy[:1], wants(1)) == {"ill": ["i0"]}
    assert where([tidy[0], node("full", *gpus("f", 0))], wants(1)) == {"ill": ["i0"]}


def test_device_without_warning_on_the_same_node_is_preferred():
    mixed = node("a", gpu("a0", 500, warned=True), gpu("a1"))
    assert where([mixed], wants(1, share_milli=500)) == {"a": ["a1"]}


def test_multi_device_request_avoids_devices_with_a_warning():
    ill = node("ill", *(gpu(f"i{index}", numa=0, island="x", warned=index < 2) for index in range(4)))
    well = node("well", *(gpu(f"w{index}", numa=0, island="x") for index in range(8)))
    assert where([ill, well], wants(2)) == {"ill": ["i2", "i3"]}
    assert where([ill, well], wants(3)) == {"well": ["w0", "w1", "w2"]}
    assert where([ill], wants(3)) == {"ill": ["i0", "i2", "i3"]}
    loose = node("loose", *(gpu(f"l{index}", warned=index < 2) for index in range(4)))
    assert where([loose], wants(2)) == {"loose": ["l2", "l3"]}
    assert where([loose], wants(3)) == {"loose": ["l0", "l2", "l3"]}
    assert where([loose, node("b", *gpus("b", *[1000] * 8))], wants(3)) == {"b": ["b0", "b1", "b2"]}


def test_locality_precedes_warnings():
    ill = node("ill", *(gpu(f"i{index}", numa=index // 2, warned=index == 0) for index in range(3)))
    assert where([ill], wants(2)) == {"ill": ["i0", "i1"]}


@pytest.mark.parametrize("of_parent", [True, False])
def test_instance_without_warning_is_preferred(of_parent):
    def state(name: str, warned: bool):
        parent, *parts = carrier(f"{name}g", ("1g.10gb", 0, True))
        if of_parent:
            parent = replace(parent, warned=warned)
        else:
            parts = [replace(part, warned=warned) for part in parts]
        return node(name, parent, *parts)

    asked = wants(1, mig_profile="1g.10gb")
    assert set(where([state("a", True), state("b", False)], asked)) == {"b"}
    assert set(where([state("a", False), state("b", True)], asked)) == {"a"}
    assert set(where([state("a", True)], asked)) == {"a"}


def test_later_warning_is_respected():
    cluster = Cluster([node("a", gpu("a0")), node("b", *gpus("b", 1000, 1000))])
    asked = wants(1)
    found = cluster.find(asked)
    assert found is not None and found.nodes[0].node == "a"
    cluster.update(node("a", gpu("a0", warned=True)))
    found = cluster.find(asked)
    assert found is not None and found.nodes[0].node == "b"


def rack(block: str, name: str, count: int):
    return [node(f"{block}{name}{index}", rack=name, block=block) for index in range(count)]


def test_multi_node_request_uses_the_tightest_rack():
    nodes = [*rack("b1", "r1", 4), *rack("b1", "r2", 2), *rack("b2", "r3", 3)]
    assert set(where(nodes, wants(nodes=2))) == {"b1r20", "b1r21"}
    assert set(where(nodes, wants(nodes=3))) == {"b2r30", "b2r31", "b2r32"}


def test_multi_node_request_falls_back_to_the_tightest_block_then_anywhere():
    nodes = [*rack("b1", "r1", 2), *rack("b1", "r2", 2), *rack("b2", "r3", 2), *rack("b2", "r4", 3)]
    assert {name[:2] for name in where(nodes, wants(nodes=4))} == {"b1"}
    assert {name[:2] for name in where(nodes, wants(nodes=5))} == {"b2"}
    assert len(where(nodes, wants(nodes=9))) == 9


def test_racks_with_equal_names_in_two_blocks_are_distinct():
    nodes = [*rack("b1", "r", 1), *rack("b2", "r", 1), *rack("b3", "r", 3)]
    assert {name[:2] for name in where(nodes, wants(nodes=2))} == {"b3"}


def test_nodes_without_a_location_form_no_rack():
    nodes = [node("x"), node("y"), *rack("b", "r", 2)]
    assert set(where(nodes, wants(nodes=2))) == {"br0", "br1"}
