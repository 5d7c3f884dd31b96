"""The queue of a simulated cluster: order, reasons, estimates, time limits, preemption, and no double use."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioning.drivers.simulated_cluster import script
from provisioning.drivers.simulated_cluster.driver import SimulatedClusterDriver
from provisioning.drivers.simulated_cluster.schedule import (
    MAX_WAITING_OTHERS,
    Cluster,
    Event,
    Job,
    advance,
    first_used,
    forecast,
    stop,
    submit,
)
from provisioning.drivers.simulated_cluster.script import KNOWN_KEYS, Hardware, Others
from provisioning.errors import BackendUnavailable, InvalidSpec, StaleCommand, StartFailed
from provisioning.simulation.settings import InvalidConfig
from provisioning.types import (
    AcceleratorRequest,
    AgentSpec,
    AppSpec,
    Capability,
    NodePlacement,
    ObservedState,
    PlacedNode,
    Placement,
    PoolConfig,
    ResourceRequest,
    WorkspaceRef,
    WorkspaceSpec,
)
from tests.suite.choice import examples

START = 1_800_000_000.0
ABSENT, FAILED, QUEUED = ObservedState.ABSENT, ObservedState.FAILED, ObservedState.QUEUED
RUNNING, STARTING, STOPPED = ObservedState.RUNNING, ObservedState.STARTING, ObservedState.STOPPED
STOPPING = ObservedState.STOPPING


class Pool:
    """A cluster of 2 nodes with 4 GPUs each, with a controllable clock."""

    def __init__(self, folder: Path, **config: object) -> None:
        self.now = START
        self.config = {"state": str(folder), "nodes": 2, "gpus": 4} | config
        self.driver = self.driver_with()

    def driver_with(self, **config: object) -> SimulatedClusterDriver:
        pool = PoolConfig("trial", "simulated_cluster", {**self.config, **config})
        return SimulatedClusterDriver(pool, clock=lambda: self.now)

    def start(self, spec: WorkspaceSpec, driver: SimulatedClusterDriver | None = None):
        nodes = [NodePlacement(f"clu-{number:03d}") for number in range(1, spec.resources.nodes + 1)]
        return (driver or self.driver).ensure_started(spec, Placement(tuple(nodes)))

    def see(self, spec: WorkspaceSpec, at: float | None = None):
        """Return the observation at `at` seconds after the start."""
        self.now = self.now if at is None else START + at
        return self.driver.observe(spec.ref)


def make_spec(gpus: int = 4, *, nodes: int = 1, generation: int = 1, **resources: object) -> WorkspaceSpec:
    workspace_id = str(uuid.uuid4())
    return WorkspaceSpec(
        ref=WorkspaceRef(workspace_id, generation),
        name=f"w-{workspace_id[:8]}",
        owner="ada",
        team="analysts",
        template="jupyterlab",
        app=AppSpec(("jupyter-lab",)),
        resources=ResourceRequest(
            **{"cpu_milli": 1000, "memory_mib": 1024, **resources},
            nodes=nodes,
            accelerators=AcceleratorRequest(count=gpus),
        ),
        agent=AgentSpec("http://127.0.0.1:9", "agent-token"),
        app_token="app-token",
    )


@pytest.fixture
def pool(tmp_path):
    return lambda **config: Pool(tmp_path / "state", **config)


# Order


def test_with_free_capacity_nothing_waits(pool):
    cluster, one, two = pool(start_delay_s=5), make_spec(2), make_spec(1, nodes=2)
    seen = cluster.start(one)
    assert (seen.state, seen.queue, seen.began_at, seen.ends_at) == (STARTING, None, START, None)
    assert seen.placed == (PlacedNode("clu-001", ("h100/0", "h100/1")),)
    assert cluster.start(two).placed == (
        PlacedNode("clu-001", ("h100/2",)),
        PlacedNode("clu-002", ("h100/0",)),
    )
    seen = cluster.see(one, at=5)
    assert (seen.state, seen.ready) == (RUNNING, True)


def test_strict_order_without_back_fill(pool):
    cluster = pool(time_limit_s=100)
    one, two, wide, small = make_spec(), make_spec(2), make_spec(nodes=2), make_spec(1)
    for spec in (one, two, wide, small):
        cluster.start(spec)
        cluster.now += 10
    seen = cluster.see(wide)
    assert seen.state is QUEUED and not seen.placed and seen.began_at is None
    assert (seen.queue.position, seen.queue.code) == (1, "resources")
    assert seen.queue.message == "Waiting for free GPUs."
    assert (seen.queue.starts_at, seen.queue.seen_at) == (START + 110, START + 40)
    queue = cluster.see(small).queue
    assert (queue.position, queue.code, queue.message) == (2, "priority", "Earlier jobs wait too.")
    assert queue.starts_at == START + 210, "2 free GPUs are not used before its turn"
    assert cluster.see(wide, at=109).state is QUEUED
    assert cluster.see(wide, at=110).began_at == START + 110
    assert cluster.see(small).queue.position == 1
    assert cluster.see(small, at=210).state is RUNNING


def test_cpu_and_memory_count_too(pool):
    cluster = pool(cpu_milli=1000, nodes=1)
    one, two = make_spec(0), make_spec(0)
    cluster.start(one)
    assert cluster.start(two).queue.message == "Waiting for free CPU and memory."
    cluster.driver.ensure_deleted(one.ref)
    assert cluster.see(two).state is RUNNING


def test_expected_start_is_unknown_behind_a_workspace_without_time_limit(pool):
    cluster, one, two = pool(nodes=1, stop_delay_s=30), make_spec(), make_spec()
    cluster.start(one)
    assert cluster.start(two).queue.starts_at is None
    assert cluster.driver.ensure_stopped(one.ref).state is STOPPING
    assert cluster.see(two).queue.starts_at == START + 30
    assert cluster.see(one).placed, "an ending workspace holds its GPUs"
    assert cluster.see(two, at=30).began_at == START + 30
    assert cluster.see(one).state is STOPPED and not cluster.see(one).placed


def test_expected_start_comes_true(pool):
    cluster = pool(time_limit_s=70, others_gpus=3, others_every_s=20, others_for_s=90, others_first=5)
    specs = [make_spec(number % 4 + 1, nodes=number % 2 + 1) for number in range(8)]
    expected = {spec.ref: cluster.start(spec).queue.starts_at for spec in specs}
    began = {}
    while len(began) < len(specs):
        cluster.now += 5
        for seen in cluster.driver.list_owned():
            if seen.began_at is not None:
                began.setdefault(seen.ref, seen.began_at)
    assert began == expected


# Jobs of others


def test_others_are_ahead_and_arrive_later(pool):
    cluster, spec = pool(others_gpus=4, others_first=3, others_for_s=100, others_every_s=60), make_spec()
    assert cluster.driver.inventory().used_by_others == {"Simulated H100": 8}
    seen = cluster.start(spec)
    assert (seen.queue.position, seen.queue.starts_at) == (2, START + 100)
    assert cluster.see(spec, at=99).queue.position == 2, "the later arrival waits behind"
    assert cluster.see(spec, at=100).state is RUNNING
    assert cluster.driver.inventory().used_by_others == {"Simulated H100": 4}
    assert [seen.ref for seen in cluster.driver.list_owned()] == [spec.ref]


def test_others_without_end_are_waited_for_without_estimate(pool):
    cluster = pool(others_gpus=4, others_first=2, others_for_s=0)
    seen = cluster.start(make_spec(1))
    assert (seen.state, seen.queue.position, seen.queue.starts_at) == (QUEUED, 1, None)


def test_a_month_without_calls_is_quick_and_the_state_stays_small(pool, tmp_path):
    cluster = pool(others_gpus=4, others_every_s=1, others_for_s=900, others_first=1000)
    specs = [make_spec(1) for _ in range(3)]
    for spec in specs:
        cluster.start(spec)
    began = time.process_time()
    cluster.now += 30 * 86_400
    assert {seen.state for seen in cluster.driver.list_owned()} == {RUNNING}
    assert time.process_time() - began < 5
    with closing(sqlite3.connect(tmp_path / "state" / "state.sqlite3")) as connection:
        (state,) = connection.execute("SELECT state FROM cluster").fetchone()
    assert len(state) < 100 * (MAX_WAITING_OTHERS + 10)


# Ends


def test_time_limit_fails_the_workspace_and_frees_its_gpus(pool):
    cluster, one, two = pool(nodes=1, time_limit_s=60), make_spec(), make_spec()
    assert cluster.start(one).ends_at == START + 60
    cluster.start(two)
    seen = cluster.see(one, at=60)
    assert (seen.state, seen.code, seen.exit_code, seen.placed) == (FAILED, "time_limit", None, ())
    assert seen.message.startswith("The workspace reached the time limit of its engine. Start")
    assert "Ended at the time limit." in seen.log_tail
    assert (cluster.see(two).began_at, cluster.see(two).ends_at) == (START + 60, START + 120)
    assert cluster.driver.ensure_stopped(one.ref).state is STOPPED


def test_a_queued_workspace_ends_at_once(pool):
    cluster = pool(nodes=1, stop_delay_s=30)
    one, two, three, four = (make_spec() for _ in range(4))
    for spec in (one, two, three, four):
        cluster.start(spec)
    assert cluster.driver.ensure_stopped(two.ref).state is STOPPED
    assert cluster.see(two).began_at is None
    assert cluster.driver.ensure_deleted(three.ref).state is ABSENT
    assert cluster.see(four).queue.position == 1
    for spec in (two, three):
        with pytest.raises(StaleCommand):
            cluster.start(spec)
    following = replace(two, ref=replace(two.ref, generation=2))
    assert cluster.start(following).queue.position == 2
    assert cluster.driver.starts(two.ref) == 2


def test_a_cancelled_head_makes_way_at_once(pool):
    cluster, wide, small = pool(), make_spec(nodes=2), make_spec(2)
    cluster.start(make_spec(2))
    cluster.start(wide)
    cluster.start(small)
    cluster.now += 7
    cluster.driver.ensure_deleted(wide.ref)
    assert cluster.see(small).began_at == START + 7


def test_preempted_once_and_queued_again_at_the_end(pool):
    cluster, one, two = pool(nodes=1, requeue_after_s=20, time_limit_s=50), make_spec(), make_spec()
    cluster.start(one)
    cluster.start(two)
    early = cluster.driver.read_log(one.ref, after=None)
    seen = cluster.see(one, at=20)
    assert (seen.state, seen.queue.position, seen.began_at, seen.placed) == (QUEUED, 1, None, ())
    assert seen.queue.starts_at == START + 70, "the preemption of the other is not known before"
    assert cluster.see(two).state is RUNNING
    assert cluster.see(one, at=40).began_at == START + 40
    assert cluster.see(two).queue.position == 1
    assert cluster.see(one, at=89).state is RUNNING, "its time limit counts from its last start"
    assert cluster.see(one, at=90).code == "time_limit"
    log = cluster.driver.read_log(one.ref, after=early.reached)
    assert log.text.splitlines()[0].endswith("Preempted and queued again by the engine.")
    assert cluster.driver.starts(one.ref) == 1


def test_only_selected_workspaces_are_preempted(pool):
    one, two = make_spec(), make_spec()
    cluster = pool(requeue_after_s=20, requeue=one.name)
    cluster.start(two)
    cluster.start(one)
    assert cluster.see(two, at=20).began_at == START
    assert cluster.see(one).began_at == START + 20, "nobody else waits"


def test_an_ending_workspace_is_not_queued_again(pool):
    cluster, spec = pool(requeue_after_s=20, stop_delay_s=30), make_spec()
    cluster.start(spec)
    cluster.now += 10
    cluster.driver.ensure_stopped(spec.ref)
    assert cluster.see(spec, at=25).state is STOPPING
    assert cluster.see(spec, at=40).state is STOPPED


def test_crash_and_start_timeout_count_from_the_start_of_the_engine(pool):
    cluster, one, two = pool(nodes=1, crash_after_s=10, crash_exit_code=3), make_spec(), make_spec()
    cluster.start(one)
    cluster.start(two)
    seen = cluster.see(one, at=10)
    assert (seen.state, seen.code, seen.exit_code) == (FAILED, "app_exited", 3)
    assert cluster.see(two, at=19).state is RUNNING
    assert cluster.see(two, at=20).state is FAILED
    late = make_spec()
    cluster.start(late, cluster.driver_with(start_delay_s=500, crash_after_s=None))
    assert cluster.see(late, at=139).state is STARTING
    assert cluster.see(late, at=140).code == "start_timeout"


# Calls


def test_placement_is_checked_and_not_used(pool):
    cluster, spec = pool(), make_spec()
    elsewhere = Placement((NodePlacement("clu-002"),))
    assert cluster.driver.ensure_started(spec, elsewhere).placed[0].node == "clu-001"
    for nodes in ((), ("clu-003",), ("clu-001", "clu-002")):
        with pytest.raises(StartFailed):
            cluster.driver.ensure_started(make_spec(), Placement(tuple(map(NodePlacement, nodes))))
    assert len(cluster.driver.list_owned()) == 1


def test_a_lost_reply_queues_once(pool):
    cluster, spec = pool(others_gpus=4, others_first=2), make_spec()
    with pytest.raises(BackendUnavailable):
        cluster.start(spec, cluster.driver_with(lose_replies=True))
    assert cluster.start(spec).queue.position == 1
    assert cluster.driver.starts(spec.ref) == 1


def test_lists_are_complete_without_a_cursor(pool):
    cluster = pool(nodes=1)
    for _ in range(3):
        cluster.start(make_spec())
    seen = cluster.driver.observe_all("anything")
    assert (seen.complete, seen.cursor) == (True, "")
    assert sorted(one.queue.position if one.queue else 0 for one in seen.listed) == [0, 1, 2]


def test_inventory_offers_whole_gpus_of_each_node(pool):
    inventory = pool(model="RTX 6000 Ada").driver.inventory()
    assert [node.name for node in inventory.nodes] == ["clu-001", "clu-002"]
    device = inventory.nodes[1].devices[3]
    assert (device.uuid, device.model) == ("trial/clu-002/rtx-6000-ada/3", "Simulated RTX 6000 Ada")
    assert inventory.capabilities == {Capability.WHOLE_GPU, Capability.MULTI_GPU, Capability.MULTI_NODE}
    assert inventory.used_by_others == {"Simulated RTX 6000 Ada": 0}


@pytest.mark.parametrize(
    "gpus",
    [
        AcceleratorRequest(1, share_milli=500),
        AcceleratorRequest(1, mig_profile="1g.10gb"),
        AcceleratorRequest(5),
        AcceleratorRequest(1, memory_mib=100_000),
        AcceleratorRequest(1, models=("A100", "B200")),
    ],
)
def test_requests_that_never_fit_are_refused(pool, gpus):
    spec = make_spec()
    with pytest.raises(InvalidSpec, match=r"\. Choose .*\.$"):
        pool().driver.validate(replace(spec, resources=replace(spec.resources, accelerators=gpus)))


def test_settings_are_documented_and_checked():
    assert all(f"`{key}`" in (script.__doc__ or "") for key in KNOWN_KEYS)
    for setting in ({"vanish_nodes": "clu-001"}, {"others_gpus": 9}, {"others_every_s": 0.5}):
        with pytest.raises(InvalidConfig, match=next(iter(setting))):
            SimulatedClusterDriver(PoolConfig("trial", "simulated_cluster", setting))


def test_smaller_cluster_keeps_running_work(pool):
    cluster, one, two = pool(), make_spec(nodes=2), make_spec(1)
    cluster.start(one)
    cluster.start(two)
    cluster.driver = cluster.driver_with(nodes=1, gpus=2)
    assert cluster.see(one).state is RUNNING
    assert cluster.see(two).queue.starts_at is None
    cluster.driver.ensure_deleted(one.ref)
    assert cluster.see(two).placed == (PlacedNode("clu-001", ("h100/0",)),)


def _start_in_a_process(order: tuple[PoolConfig, WorkspaceSpec]) -> None:
    pool, spec = order
    driver = SimulatedClusterDriver(pool)
    driver.ensure_started(spec, Placement((NodePlacement("clu-001"),)))


def test_two_processes_share_one_queue(pool):
    cluster = pool(others_gpus=1, others_first=4, others_every_s=1, others_for_s=2)
    shared = PoolConfig("trial", "simulated_cluster", cluster.config)
    specs = [make_spec(2) for _ in range(12)]
    with ProcessPoolExecutor(2) as processes:
        list(processes.map(_start_in_a_process, [(shared, spec) for spec in specs]))
    seen = SimulatedClusterDriver(shared).list_owned()
    assert len(seen) == 12
    used = Counter((part.node, unit) for one in seen for part in one.placed for unit in part.devices)
    assert max(used.values()) == 1
    assert len({one.queue.position for one in seen if one.queue}) == sum(
        one.queue is not None for one in seen
    )


# Any jobs

HARDWARE = Hardware(nodes=3, gpus=4, cpu_milli=8, memory_mib=8, disk_mib=8)
seconds = st.integers(0, 40).map(float)
jobs = st.builds(
    Job,
    number=st.just(0),
    nodes=st.integers(1, 3),
    gpus=st.integers(0, 4),
    cpu_milli=st.integers(1, 8),
    memory_mib=st.integers(1, 8),
    disk_mib=st.integers(0, 8),
    limit_s=st.none() | seconds,
    ready_after_s=seconds,
    fails_after_s=st.none() | seconds,
    requeue_after_s=st.none() | seconds.filter(bool),
)
others = st.builds(
    Others,
    gpus=st.integers(0, 4),
    every_s=st.sampled_from([0.0, 1.0, 3.7, 10.0]),
    for_s=st.integers(1, 60).map(float),
    first=st.integers(0, 9),
)
# A job to submit, or the number of one to stop, and the time until then.
calls = st.lists(st.tuples(st.integers(0, 15).map(float), jobs | st.integers(0, 9)), max_size=25)


def replayed(calls: list, others: Others, between: list[float]) -> list[Cluster]:
    """Return the cluster after each call; `between` are parts of the time to the next call to observe at."""
    cluster, now, states = first_used(START, HARDWARE, others), START, []

    def advanced(until: float) -> Cluster:
        return advance(cluster, HARDWARE, others, epoch=START, until=until)

    for number, (wait_s, call) in enumerate([*calls, (500.0, 0)]):
        for part in between:
            cluster = advanced(now + wait_s * part)
        now += wait_s
        cluster = advanced(now)
        if isinstance(call, Job):
            cluster = submit(cluster, Job(**{**_values(call), "name": f"job-{number}"}), now)
        else:
            stopped = tuple(stop(job, now, 3) if job.name == f"job-{call}" else job for job in cluster.jobs)
            cluster = Cluster(cluster.at, cluster.next_number, stopped)
        cluster = advanced(now)
        states.append(cluster)
    return states


def _values(job: Job) -> dict[str, object]:
    return {field: getattr(job, field) for field in job.__struct_fields__}


@settings(max_examples=examples(120), deadline=None)
@given(calls, others)
def test_nothing_is_used_twice_and_nothing_overtakes(calls, others):
    for cluster in replayed(calls, others, []):
        used: Counter[tuple[int, str]] = Counter()
        for job in cluster.jobs:
            if not job.runs:
                continue
            assert len({node for node, _ in job.placed}) == job.nodes
            for node, units in job.placed:
                assert len(units) == job.gpus and all(0 <= unit < HARDWARE.gpus for unit in units)
                used += Counter((node, f"gpu {unit}") for unit in units)
                used += Counter({(node, "cpu"): job.cpu_milli, (node, "memory"): job.memory_mib})
                used += Counter({(node, "disk"): job.disk_mib})
        assert all(0 <= node < HARDWARE.nodes for node, _ in used)
        for (_, resource), amount in used.items():
            assert amount <= (1 if resource.startswith("gpu") else 8)
        waiting = [job.number for job in cluster.jobs if job.waits]
        running = [job.number for job in cluster.jobs if job.runs]
        assert not waiting or not running or max(running) < min(waiting)
        positions = sorted(position for position, _ in forecast(cluster, HARDWARE).values())
        assert len(set(positions)) == len(positions)


@settings(max_examples=examples(60), deadline=None)
@given(calls, others, st.lists(st.floats(0, 1), max_size=3).map(sorted))
def test_states_do_not_depend_on_observations(calls, others, between):
    def jobs_of(states: list[Cluster]) -> list[list[Job]]:
        return [sorted(cluster.jobs, key=lambda job: job.number) for cluster in states]

    assert jobs_of(replayed(calls, others, between)) == jobs_of(replayed(calls, others, []))


def test_500_workspaces_are_quick():
    hardware, others = Hardware(nodes=40), Others(gpus=4, every_s=2, for_s=300, first=60)
    cluster = first_used(START, hardware, others)
    for number in range(500):
        job = Job(0, f"job-{number}", gpus=number % 8 + 1, cpu_milli=1, memory_mib=1, limit_s=3600.0)
        cluster = submit(cluster, job, START)
    began = time.process_time()
    cluster = advance(cluster, hardware, others, epoch=START, until=START + 4000)
    waiting = forecast(cluster, hardware)
    assert time.process_time() - began < 3
    assert len(waiting) + sum(job.began_at is not None for job in cluster.jobs if job.name) == 500
    assert all(starts_at is not None for _, starts_at in waiting.values())
    assert any(event is Event.TIME_LIMIT for job in cluster.jobs for _, event in job.history)
