"""Benchmarks use the functions of real requests and do not call the engine directly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from bench.placement.replay import replay
from bench.placement.site import DEFAULT_LAYOUT, LAYOUTS, Layout, Site, pools_of
from bench.placement.traces import read_nodes, read_workloads
from bench.scheduling.replay import quotas
from bench.scheduling.replay import replay as queue_replay
from bench.scheduling.trace import Job
from portal.catalog.models import Template
from portal.scheduling import admission, choice, cycle, decision, launches, queue_status, snapshot
from portal.scheduling.engine.placement.cluster import Cluster
from portal.scheduling.engine.placement.engine import DEFAULT_MIX
from portal.scheduling.engine.scheduler import Scheduler
from portal.scheduling.placement_request import PlacementRequests
from portal.scheduling.placer import PoolPlacer
from portal.scheduling.pool_nodes import PoolNodes
from provisioning.types import AcceleratorRequest, ResourceRequest
from tests.factories import FlavorFactory, local_pool_with, node_info
from tests.scheduling.test_model_choice import A100, T4

SAMPLE = Path(__file__).parent / "engine" / "placement" / "data"
DECISION: tuple[Callable[..., Any], ...] = (
    PlacementRequests.build,
    snapshot.enqueue,
    snapshot.register,
    decision.decide,
    Scheduler.cycle,
    PoolPlacer.choose,
    PoolPlacer.take,
    PoolPlacer.placement_of,
    choice.best_placement,
    choice.model_preference,
    PoolNodes.best,
    Cluster.best,
    Cluster.commit,
)
"""What decides on a request that several models satisfy, from the request to its place."""
QUEUE: tuple[Callable[..., Any], ...] = (
    PlacementRequests.build,
    snapshot.enqueue,
    snapshot.register,
    decision.decide,
    Scheduler.cycle,
    PoolPlacer.fits,
    PoolPlacer.take,
    PoolPlacer.placement_of,
    PoolNodes.find,
    Cluster.commit,
    queue_status.status_of,
)
"""What decides on requests of one model that wait for each other."""
ENGINE = (Cluster, PoolNodes, Scheduler, PoolPlacer)


def names(functions: tuple[Callable[..., Any], ...]) -> set[str]:
    return {function.__qualname__ for function in functions}


@contextmanager
def recorded() -> Iterator[list[tuple[str, str]]]:
    """Yield a list of calls within the scheduler: the function, and the file of its caller."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code: CodeType = frame.f_code
        if event == "call" and "/portal/scheduling/" in code.co_filename and frame.f_back is not None:
            calls.append((code.co_qualname, frame.f_back.f_code.co_filename))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def of_bench(calls: list[tuple[str, str]]) -> set[str]:
    """Return the calls made by a benchmark itself."""
    return {name for name, caller in calls if "/bench/" in caller}


@pytest.mark.django_db
def test_replay_and_creation_call_the_same_functions(make, alice, team, catalog):
    machines = (node_info("a", gpus=1, model=A100), node_info("b", gpus=1, model=T4))
    pool = local_pool_with(*machines)
    pool.hand_out_max_age_hours = 0
    pool.save()
    flavor = FlavorFactory(slug="any", accelerator_count=1)
    with recorded() as calls:
        template = Template.objects.get(slug="jupyterlab")
        admission.assess(template=template, flavor=flavor, team=team, actor=alice)
        make(alice, "any")
    creation = {name for name, _ in calls}
    assert names((*DECISION, admission.assess_on, cycle.decide, launches.start_workspaces)) <= creation
    nodes = read_nodes(SAMPLE)
    site = Site(pools_of(nodes, DEFAULT_MIX, policy="fragmentation", layout=DEFAULT_LAYOUT))
    request = ResourceRequest(1000, 1024, accelerators=AcceleratorRequest(count=1))
    with recorded() as calls:
        assert site.preview(request) == site.submit(request) != ()
    assert names((*DECISION, admission.assess_on)) <= {name for name, _ in calls}
    by_itself = {name for name in of_bench(calls) if name.split(".")[0] in {kind.__name__ for kind in ENGINE}}
    assert by_itself == {"PoolPlacer.placement_of"}


@pytest.mark.django_db
def test_queue_replay_and_creation_call_the_same_functions(make, alice, team, catalog):
    pool = local_pool_with(node_info("a", gpus=1, model=A100))
    pool.hand_out_max_age_hours = 0
    pool.save()
    flavor = FlavorFactory(slug="one", accelerator_count=1, accelerator_model=A100)
    with recorded() as calls:
        for _ in range(2):
            make(alice, "one")
        admission.assess(
            template=Template.objects.get(slug="jupyterlab"), flavor=flavor, team=team, actor=alice
        )
    assert names((*QUEUE, admission.assess_on)) <= {name for name, _ in calls}
    jobs = [Job("a", "g", 1, 0, 600), Job("b", "g", 1, 60, 60), Job("c", "g", 1, 60, 60)]
    with recorded() as calls:
        outcome = queue_replay(
            jobs, 1, snapshot.policy(), teams=quotas(jobs, 1), eta_every=1, preview_every=1
        )
    assert outcome.waits == {"a": 0, "b": 540, "c": 600}
    assert outcome.previews == 2
    assert names((*QUEUE, admission.assess_on)) <= {name for name, _ in calls}
    # Ended work returns its capacity directly; in the portal, its node is read again.
    by_itself = {name for name in of_bench(calls) if name.split(".")[0] in {kind.__name__ for kind in ENGINE}}
    assert by_itself == {
        "PoolPlacer.__init__",
        "PoolPlacer.remove_running",
        "PoolPlacer.placement_of",
        "PoolPlacer.add_running",
        "PoolNodes.cluster",
        "PoolNodes.invalidate_reasons",
        "Cluster.release",
        "Scheduler.__init__",
        "Scheduler.finish",
    }


def test_the_portal_decides_as_well_as_its_engine():
    nodes, workload = read_nodes(SAMPLE), next(read_workloads(SAMPLE))
    curves = {
        name: replay(nodes, workload, "fragmentation", measure=False, layout=layout).allocation
        for name, layout in LAYOUTS.items()
        if name in ("pool", "engine")
    }
    for mark in (95, 100, 130):
        assert abs(curves["pool"][mark] - curves["engine"][mark]) <= 0.05


@pytest.mark.thorough("two traces, each as bench/placement has it")
@pytest.mark.parametrize(
    ("layout", "loss"),
    [(LAYOUTS["pool-shared-homes"], 0.05), (Layout(by_model=True, homes_apart=False), 0.5)],
)
def test_other_layouts_are_little_worse(layout, loss):
    nodes, workload = read_nodes(SAMPLE), next(read_workloads(SAMPLE))
    engine = replay(nodes, workload, "fragmentation", measure=False, layout=LAYOUTS["engine"]).allocation
    found = replay(nodes, workload, "fragmentation", measure=False, layout=layout).allocation
    assert found[130] >= engine[130] - loss
