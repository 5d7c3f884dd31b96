"""The home of a first start: placed where load is lowest, without affecting feasibility."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from portal.fleet.inventory.models import Pool
from portal.scheduling.engine.placement.arrays import NodeArrays
from portal.scheduling.engine.placement.engine import Cluster
from portal.scheduling.pool_nodes import PoolNodes
from tests.scheduling.engine.placement.helpers import carrier, gpus, node, nodes_, requests_, wants
from tests.suite.choice import examples

POLICIES = st.sampled_from(["fragmentation", "best_fit", "spread"])
LOADS = st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 100_000)), min_size=6, max_size=6)


def with_homes(nodes, loads):
    return [
        replace(each, home_gpu_milli=gpu, home_cpu_milli=cpu)
        for each, (gpu, cpu) in zip(nodes, loads, strict=False)
    ]


def home_of(cluster: Cluster, request) -> str:
    """Return the node chosen for the request and its home, which is then counted there."""
    placement = cluster.find(request, new_home=True)
    (part,) = placement.nodes
    cluster.take_home(part.node, 1000, 1000)
    return part.node


@settings(max_examples=examples(200))
@given(nodes_(most=6), LOADS, st.lists(requests_(), min_size=1, max_size=6), POLICIES)
def test_new_home_never_changes_feasibility_or_locality(nodes, loads, requests, policy):
    cluster = Cluster(with_homes(nodes, loads), policy=policy)
    for request in requests:
        usual, new = cluster.find(request), cluster.find(request, new_home=True)
        assert (usual is None) == (new is None)
        best = cluster.best(request, new_home=True)
        assert (best is None) == (new is None)
        if best is None:
            continue
        assert best.placement == new
        if not request.accelerators.mig_profile:
            # Connections and warnings are compared first.
            assert best.rank[0] >> 22 == cluster.best(request).rank[0] >> 22
        cluster.commit(new, request)


@settings(max_examples=examples(200))
@given(nodes_(most=6), LOADS, st.lists(requests_(), min_size=1, max_size=6), POLICIES)
def test_other_requests_ignore_the_load_of_homes(nodes, loads, requests, policy):
    without, loaded = Cluster(nodes, policy=policy), Cluster(with_homes(nodes, loads), policy=policy)
    for request in requests:
        assert loaded.best(request) == without.best(request)
        placement = loaded.find(request)
        assert placement == without.find(request)
        if placement is not None:
            without.commit(placement, request)
            loaded.commit(placement, request)


@settings(max_examples=examples(200))
@given(nodes_(most=6), LOADS, st.lists(requests_(), min_size=1, max_size=6), POLICIES)
def test_new_home_does_not_affect_placement_if_homes_are_shared(nodes, loads, requests, policy):
    for pool in (
        Pool(driver="local", config={"homes_shared": True}, placement_policy=policy),
        Pool(driver="simulated", placement_policy=policy),
    ):
        places = PoolNodes(pool, tuple(with_homes(nodes, loads)))
        for request in requests:
            placement = places.find(request)
            assert places.find(request, new_home=True) == placement
            assert places.best(request, new_home=True) == places.best(request)
            if placement is not None:
                places.cluster.commit(placement, request)


@settings(max_examples=examples(100))
@given(nodes_(most=6), LOADS, st.lists(requests_(), min_size=1, max_size=8), POLICIES)
def test_decides_like_a_new_cluster(nodes, loads, requests, policy):
    cluster = Cluster(with_homes(nodes, loads), policy=policy)
    for request in requests:
        fresh = Cluster(cluster.snapshot(), policy=policy)
        placement = cluster.find(request, new_home=True)
        assert placement == fresh.find(request, new_home=True)
        if placement is not None:
            cluster.commit(placement, request)
            cluster.take_home(placement.nodes[0].node, 1000, 1000)
    for state in cluster.snapshot():
        cluster.update(replace(state, home_gpu_milli=0, home_cpu_milli=500))
    assert all(state.home_cpu_milli == 500 and not state.home_gpu_milli for state in cluster.snapshot())


def test_equal_nodes_get_equally_many_homes():
    for policy in ("fragmentation", "best_fit", "spread"):
        cluster = Cluster([node(name, *gpus(name, 1000, 1000, 1000, 1000)) for name in "abc"], policy=policy)
        found = [home_of(cluster, wants(1)) for _ in range(9)]
        assert {name: found.count(name) for name in "abc"} == {"a": 3, "b": 3, "c": 3}


def test_larger_nodes_get_more_homes():
    cluster = Cluster([node("small", *gpus("s", *[1000] * 2)), node("large", *gpus("l", *[1000] * 6))])
    found = [home_of(cluster, wants(1)) for _ in range(8)]
    assert (found.count("small"), found.count("large")) == (2, 6)


def test_home_load_of_nodes_without_gpus_uses_cores():
    cluster = Cluster([node("a"), node("b", home_cpu_milli=3000)])
    assert [home_of(cluster, wants()) for _ in range(4)].count("a") >= 3


def test_mig_instances_count_as_gpus_for_home_load():
    instances = carrier("m", *[("1g.10gb", start, True) for start in range(7)])
    arrays = NodeArrays([node("a", *instances, home_gpu_milli=1000)])
    assert arrays.home_load.tolist() == [1000 // 7]


def test_new_home_is_packed_if_spreading_costs_more():
    """One home on a machine in use keeps an unused machine whole for eight GPUs at once."""
    busy = node("busy", *gpus("b", *[0] * 2, *[1000] * 6), home_gpu_milli=1000)
    empty = node("empty", *gpus("e", *[1000] * 8))
    assert Cluster([busy, empty]).find(wants(1), new_home=True).nodes[0].node == "busy"
    crowded = replace(busy, home_gpu_milli=8000)
    assert Cluster([crowded, empty]).find(wants(1), new_home=True).nodes[0].node == "empty"
