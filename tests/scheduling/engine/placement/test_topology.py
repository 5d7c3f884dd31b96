"""Devices of one request stay close on a node, and its nodes close in the room."""

from __future__ import annotations

from provisioning.types import Within
from tests.scheduling.engine.placement.helpers import gpu, gpus, node, wants, where


def islands(name: str, *sizes: int, busy: tuple[int, ...] = ()):
    """One node with an NVLink island of each size; the devices in `busy` are in use."""
    devices = [(f"i{island}", index) for island, size in enumerate(sizes) for index in range(size)]
    return node(
        name,
        *(
            gpu(f"{name}{place}", 0 if place in busy else 1000, island=island)
            for place, (island, _) in enumerate(devices)
        ),
    )


def test_the_smallest_island_that_suffices():
    assert where([islands("a", 4, 2)], wants(2)) == {"a": ["a4", "a5"]}
    assert where([islands("a", 4, 2)], wants(3)) == {"a": ["a0", "a1", "a2"]}


def test_the_island_with_the_fewest_free_devices_is_the_smallest():
    assert where([islands("a", 4, 4, busy=(0, 1))], wants(2)) == {"a": ["a2", "a3"]}


def test_an_island_comes_before_a_numa_node_and_that_before_the_node():
    numa = node("numa", *(gpu(f"n{index}", numa=index // 2) for index in range(4)))
    loose = node("loose", *gpus("l", 1000, 1000))
    assert where([loose, numa, islands("isle", 2)], wants(2)) == {"isle": ["isle0", "isle1"]}
    assert where([loose, numa], wants(2)) == {"numa": ["n0", "n1"]}
    assert where([loose], wants(2)) == {"loose": ["l0", "l1"]}


def test_without_an_island_large_enough_devices_of_one_numa_node_are_taken():
    mixed = node(
        "a",
        *(gpu(f"g{index}", island=f"pair{index // 2}", numa=index // 4) for index in range(8)),
    )
    assert where([mixed], wants(4)) == {"a": ["g0", "g1", "g2", "g3"]}


def test_a_bond_is_a_wish_unless_it_is_required():
    nodes = [islands("a", 2, 2)]
    assert len(where(nodes, wants(3))["a"]) == 3
    assert where([*nodes, islands("b", 3)], wants(3, within=Within.ISLAND)) == {"b": ["b0", "b1", "b2"]}


def test_one_device_has_no_bond_to_keep():
    assert where([node("a", gpu("g"))], wants(1, within=Within.ISLAND)) == {"a": ["g"]}


def rack(block: str, name: str, count: int):
    return [node(f"{block}{name}{index}", rack=name, block=block) for index in range(count)]


def test_several_nodes_come_from_the_tightest_rack():
    nodes = [*rack("b1", "r1", 4), *rack("b1", "r2", 2), *rack("b2", "r3", 3)]
    assert set(where(nodes, wants(nodes=2))) == {"b1r20", "b1r21"}
    assert set(where(nodes, wants(nodes=3))) == {"b2r30", "b2r31", "b2r32"}


def test_then_from_the_tightest_block_then_from_anywhere():
    nodes = [*rack("b1", "r1", 2), *rack("b1", "r2", 2), *rack("b2", "r3", 2), *rack("b2", "r4", 3)]
    assert {name[:2] for name in where(nodes, wants(nodes=4))} == {"b1"}
    assert {name[:2] for name in where(nodes, wants(nodes=5))} == {"b2"}
    assert len(where(nodes, wants(nodes=9))) == 9


def test_racks_of_one_name_in_two_blocks_are_two_racks():
    nodes = [*rack("b1", "r", 1), *rack("b2", "r", 1), *rack("b3", "r", 3)]
    assert {name[:2] for name in where(nodes, wants(nodes=2))} == {"b3"}


def test_nodes_that_stand_nowhere_are_no_rack():
    nodes = [node("x"), node("y"), *rack("b", "r", 2)]
    assert set(where(nodes, wants(nodes=2))) == {"br0", "br1"}
