"""Send the openb request stream through the database in bursts, beside the same decisions in memory.

Nodes and devices are rows only, and nothing starts: this measures the cycle, which decides and writes.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from django.db import connection
from django.utils import timezone

from bench.admission import site
from bench.placement import speed
from bench.placement.traces import TraceError, read_nodes, read_workloads
from portal.catalog.models import Flavor, Template
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, Node, Pool, PoolState
from portal.people.accounts.models import Membership, Team, User
from portal.scheduling import cycle, launches, queue_status, snapshot_cache
from portal.scheduling.engine.placement.engine import Cluster, RequestMix
from portal.scheduling.engine.placement.types import NodeCapacity
from portal.scheduling.engine.scheduler import Scheduler
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomePlace, Workspace
from provisioning import messages
from provisioning.share_messages import PROVIDES_SHARES
from provisioning.types import ResourceRequest

BATCH = 2000
TEAMS = 100
PEOPLE = 5000
"""Users of a cluster of this size. With homes on nodes, each user is tied to the node of the first start."""
FULL_BELOW_PERCENT = 20
"""The site is full once a burst starts fewer than this percentage of its requests."""
PARTS: tuple[tuple[str, Any, str], ...] = (
    ("read", snapshot_cache, "load"),
    ("follow", snapshot_cache, "apply_changes"),
    ("decide", Scheduler, "cycle"),
    ("write", launches, "start_workspaces"),
    ("update", queue_status, "update"),
)


def read(data: Path, workload: str, copies: int, count: int) -> tuple[list[NodeCapacity], Any, list[Any]]:
    """Return the cluster, the requests that define the mix, and the stream.

    The requests are drawn as in `bench.placement.speed`.
    """
    nodes = speed.copies(read_nodes(data), copies)
    past = next((read.past for read in read_workloads(data) if read.name == workload), None)
    if past is None:
        raise TraceError(f"{data} has no workload {workload}")
    chance = random.Random(1)
    return nodes, past, [chance.choice(past) for _ in range(count)]


def build(nodes: Sequence[NodeCapacity], *, homes: str) -> None:
    """Create the rows of the cluster and the users. `homes`: `apart`, on the nodes (default), or `shared`."""
    now = timezone.now()
    pool = Pool.objects.create(
        slug="openb",
        name="openb",
        driver="local",
        state=PoolState.ONLINE,
        config=site.CONFIGS[homes],
        hand_out_max_age_hours=0,
    )
    Template.objects.create(slug="bench", name="Bench", program="bash", argv=["bash"])
    Flavor.objects.create(slug="any", name="Any", cpu_milli=1000, memory_mib=1024, pool=pool)
    teams = Team.objects.bulk_create(Team(slug=f"team-{n}", name=f"Team {n}") for n in range(TEAMS))
    users = User.objects.bulk_create(User(username=f"user-{n}", password="!") for n in range(PEOPLE))
    Membership.objects.bulk_create(
        Membership(team=teams[n % TEAMS], user=user) for n, user in enumerate(users)
    )
    rows = {
        node.name: Node(
            pool=pool, name=node.name, cpu_milli=node.cpu_milli, memory_mib=node.memory_mib, disk_mib=0,
            online=True, programs={"bash": "/bin/bash"}, provides=[PROVIDES_SHARES], seen_at=now,
        )
        for node in nodes
    }  # fmt: skip
    Node.objects.bulk_create(rows.values(), batch_size=BATCH)
    Device.objects.bulk_create(
        (
            Device(node=rows[node.name], uuid=device.uuid, index=index, model=device.model)
            for node in nodes
            for index, device in enumerate(node.devices)
        ),
        batch_size=BATCH,
    )


def empty() -> None:
    """Release all placements, so that the next run starts on the same empty site."""
    AllocatedDevice.objects.all().delete()
    Allocation.objects.update(released_at=timezone.now())
    Workspace.objects.update(state=State.TERMINATED)
    HomePlace.objects.all().delete()
    snapshot_cache.forget()


def in_memory(
    nodes: Sequence[NodeCapacity], past: Any, stream: Sequence[ResourceRequest]
) -> dict[str, float]:
    return speed.measure(Cluster(nodes, mix=RequestMix.of(past)), stream, 0)


@contextmanager
def clocked(spent: dict[str, float]) -> Iterator[None]:
    """Add up the seconds of each part of a cycle. `decide` runs within `update` and is counted there only."""
    inside: list[str] = []

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if inside:
                return work(*args, **kwargs)
            inside.append(name)
            began = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                inside.pop()
                spent[name] += time.perf_counter() - began

        return call

    patches = [mock.patch.object(of, name, timed(part, getattr(of, name))) for part, of, name in PARTS]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def through_database(stream: Sequence[ResourceRequest], burst: int) -> dict[str, Any]:
    """Send requests in bursts of `burst`, each followed by a cycle. Requests that do not fit are withdrawn.

    Seconds are those of the cycles including their commits, without the creation of requests.
    """
    template, flavor = Template.objects.get(), Flavor.objects.get()
    people = list(Membership.objects.select_related("team", "user"))
    bodies: dict[ResourceRequest, Any] = {}
    spent: dict[str, float] = defaultdict(float)
    submitted = started = 0
    busy_s = 0.0
    cycles: list[tuple[int, float]] = []
    with clocked(spent):
        while submitted < len(stream):
            now = timezone.now()
            some = stream[submitted : submitted + burst]
            for request in some:
                if request not in bodies:
                    bodies[request] = messages.dump(request)
            site.submit(
                Workspace(
                    name=f"a{burst}-{submitted + place}", owner=person.user, team=person.team,
                    template=template, flavor=flavor, resources=bodies[request],
                    state_since=now, requested_at=now,
                )
                for place, request in enumerate(some)
                for person in (people[(submitted + place) % PEOPLE],)
            )  # fmt: skip
            began, busy_from = time.perf_counter(), time.process_time()
            report = cycle.run()
            took_s, busy_s = time.perf_counter() - began, busy_s + time.process_time() - busy_from
            assert report is not None  # no other process runs cycles
            submitted, started = submitted + len(some), started + len(report.started)
            cycles.append((len(report.started), took_s))
            site.withdraw_waiting()
            if len(report.started) * 100 < len(some) * FULL_BELOW_PERCENT:
                break
    total_s = sum(took_s for _, took_s in cycles)
    last = cycles[-max(1, len(cycles) // 10) :]
    return {
        "database": connection.vendor,
        "burst": burst,
        "requests": submitted,
        "started": started,
        "per_s": round(started / total_s, 1),
        "per_cpu_s": round(started / busy_s, 1),
        "per_s_first_tenth": _rate(cycles[: max(1, len(cycles) // 10)]),
        "decisions_per_s_last_tenth": round(burst * len(last) / sum(took_s for _, took_s in last), 1),
        "cycle_p50_ms": round(sorted(took_s for _, took_s in cycles)[len(cycles) // 2] * 1000),
        "parts_percent": {
            **{part: round(100 * seconds / total_s) for part, seconds in spent.items()},
            "else, with the commit": round(100 * (total_s - sum(spent.values())) / total_s),
        },
    }


def _rate(cycles: Sequence[tuple[int, float]]) -> float:
    return round(sum(count for count, _ in cycles) / sum(took_s for _, took_s in cycles), 1)


def table(result: dict[str, Any]) -> str:
    """Return the rows of one run as Markdown."""
    memory = result["memory"]
    lines = [
        f"{result['gpus']} GPUs on {result['nodes']} nodes, workload {result['workload']}; rows only, "
        "nothing starts.",
        "",
        "| | requests | started | admissions/s | per CPU second | a decision, mean | p99 |",
        "|---|---|---|---|---|---|---|",
        f"| in memory | {result['requests_in_memory']} | {memory['placed']} | | | {memory['mean_ms']} ms | "
        f"{memory['p99_ms']} ms |",
    ]
    lines += [
        f"| {run['database']}, homes {result['homes']}, bursts of {run['burst']} | {run['requests']} | "
        f"{run['started']} | {run['per_s']} | {run['per_cpu_s']} | | |"
        for run in result["runs"]
    ]
    return "\n".join(lines)
