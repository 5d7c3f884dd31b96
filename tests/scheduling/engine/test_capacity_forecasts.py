"""Capacity forecasts of nodes are shared by equal requests, with the same results."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from portal.fleet.inventory.models import Pool
from portal.scheduling import capacity
from portal.scheduling.engine import backfill
from portal.scheduling.engine.model import Policy, Workload
from portal.scheduling.engine.placement.types import HOME_LABEL, NodeCapacity
from portal.scheduling.engine.scheduler import Scheduler
from portal.scheduling.placement_request import PlacementRequest
from portal.scheduling.placer import PoolPlacer
from portal.scheduling.pool_nodes import PoolNodes
from provisioning.types import DeviceGrant, NodePlacement, Placement, ResourceRequest
from tests.scheduling.engine.nodes import NodePlacer, live
from tests.scheduling.engine.placement.helpers import gpus, node, wants
from tests.scheduling.engine.test_over_time import FEW, arrivals, site
from tests.suite.choice import examples

GONE = str(UUID(int=7))
ASKED = mock.patch.object(backfill.CapacityForecasts, "get", lambda self, workload, key, compute: compute())


@settings(FEW, max_examples=examples(40))
@given(
    st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=4),
    arrivals(most=30),
    st.booleans(),
    st.booleans(),
)
def test_cached_forecasts_give_the_same_decisions(sizes, workloads, alike, preemption):
    if alike:
        workloads = [replace(each, amounts=workloads[0].amounts) for each in workloads]
    workloads = [each for each in workloads if each.amounts["gpu:h100"] <= 1000 * max(sizes)]

    def days():
        return live(Scheduler(site(policy=Policy(preemption=preemption)), NodePlacer(*sizes)), workloads)

    usual = days()
    with ASKED:
        assert days() == usual


def test_equal_requests_are_queried_once():
    asked = []
    scheduler = Scheduler(site(policy=Policy(preemption=False)), NodePlacer(4, 4))
    three = Workload("a", "a", {"gpu:h100": 3000}, duration_s=600)
    for team in "ab":
        scheduler.submit(replace(three, id=team, team=team))
    scheduler.apply(scheduler.cycle(10), 10)
    for team in "ab":
        # Sufficient in total, but on no node.
        scheduler.submit(replace(three, id=f"w{team}", team=team, amounts={"gpu:h100": 2000}))
    with mock.patch("portal.scheduling.engine.scheduler.forecast_capacity") as room:
        room.side_effect = lambda workload, ends, placer: asked.append(workload.id)
        scheduler.cycle(20)
        assert asked == ["wa"]
        # Another cycle computes it again.
        scheduler.cycle(21)
        assert asked == ["wa", "wa"]


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(st.data())
def test_stepwise_forecasts_equal_separate_ones(data):
    """In any order; simulated releases are undone afterwards."""
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    names = [f"n{at}" for at in range(len(sizes))]
    nodes = [node(name, *gpus(f"{name}-", *[1000] * size)) for name, size in zip(names, sizes, strict=True)]
    pool = PoolNodes(Pool(name="p", slug="p", driver="local"), tuple(nodes))
    placer, held = PoolPlacer({pool.pool.pk: pool}), {}
    for at in range(data.draw(st.integers(0, 8))):
        request = wants(data.draw(st.integers(1, 3)), model="H100")
        placement = pool.find(request)
        if placement is not None:
            pool.cluster.commit(placement, request)
            placer.add_running(str(UUID(int=at)))
            held[str(UUID(int=at))] = [(pool.pool.pk, placement, request)]
    workloads = []
    for count in data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)):
        workloads.append(Workload(f"w{count}", "a", {}))
        asked = PlacementRequest.of_size(wants(count, model="H100"), [pool], simulated=False)
        placer.register(f"w{count}", asked)
    order = data.draw(st.permutations([*held, str(UUID(int=99))]))
    before = pool.cluster.snapshot()
    with mock.patch.object(capacity, "allocations_by_workspace", return_value=held):
        steps = [
            (data.draw(st.sampled_from(workloads)), order[: data.draw(st.integers(0, len(order)))])
            for _ in range(data.draw(st.integers(1, 6)))
        ]
        alone = [placer.fits(*each) for each in steps]
        assert pool.cluster.snapshot() == before
        with placer.prefix_fits() as fits:
            assert [fits(*each) for each in steps] == alone
    assert pool.cluster.snapshot() == before
    assert isinstance(placer, backfill.PrefixPlacer)


def test_simulated_release_on_an_overcommitted_node_is_undone():
    """Every request is answered, at once and stepwise, without changing the state."""
    small = node("n1", *gpus("a", 0), cpu=-1000, memory=0)
    pool = PoolNodes(Pool(name="p", slug="p", driver="local"), (small,))
    placer, request = PoolPlacer({pool.pool.pk: pool}), wants(1, cpu=2000, model="H100")
    held = Placement((NodePlacement("n1", (DeviceGrant("a0", 1000),)),))
    placer.add_running(GONE)
    asked = PlacementRequest.of_size(wants(1, cpu=1000, model="H100"), [pool], simulated=False)
    placer.register("w", asked)
    workload = Workload("w", "a", {})
    with mock.patch.object(
        capacity, "allocations_by_workspace", return_value={GONE: [(pool.pool.pk, held, request)]}
    ):
        assert placer.fits(workload, [GONE])
        with placer.prefix_fits() as fits:
            assert [fits(workload, []), fits(workload, [GONE]), fits(workload, [])] == [False, True, False]
    assert pool.cluster.snapshot() == [small]


def test_what_a_pool_could_ever_take_follows_its_nodes():
    small, large = (NodeCapacity("a", cpu, 65_536, 1000, cpu, 65_536, 1000) for cpu in (1000, 8000))
    pool = PoolNodes(Pool(name="p", slug="p", driver="local"), (small,))
    request = ResourceRequest(cpu_milli=4000, memory_mib=1024, disk_mib=0)
    assert not pool.could_ever_fit(request)
    pool.replace(replace(small, free_cpu_milli=0))
    assert not pool.could_ever_fit(request)
    pool.replace(large)
    assert pool.could_ever_fit(request)
    assert not pool.could_ever_fit(replace(request, labels=((HOME_LABEL, "elsewhere"),)))
