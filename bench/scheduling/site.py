"""A site in memory whose queue decides like the portal's: request, verdict, cycle, placement.

Only the database rows are missing. One node has all GPUs, as in the policies under comparison, because the
order of the queue is compared here. `bench.placement` compares placement.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from bench.placement.site import snapshot_of
from portal.catalog.models import Flavor, Template
from portal.fleet.inventory.models import Pool, PoolState
from portal.people.accounts.models import Team
from portal.quota.limits.types import Cohort
from portal.quota.limits.types import Team as Limits
from portal.scheduling import admission, capacity, decision, queue_status
from portal.scheduling.engine import model
from portal.scheduling.engine.outlook import Outlook
from portal.scheduling.engine.placement.types import DeviceCapacity, NodeCapacity
from portal.scheduling.engine.scheduler import Scheduler
from portal.scheduling.placement_request import PlacementRequest
from portal.scheduling.placer import PoolPlacer
from portal.scheduling.pool_nodes import PoolNodes
from portal.scheduling.snapshot import ClusterSnapshot, PendingWorkload, enqueue
from portal.scheduling.verdicts import Verdict
from provisioning import messages
from provisioning.types import AcceleratorRequest, Placement, ResourceRequest

MODEL = "GPU"
CPU_MILLI, MEMORY_MIB = 1000, 1024
"""Per GPU. The node has enough for all of them, since a trace contains GPUs only."""
Held = dict[str, list[tuple[UUID, Placement, ResourceRequest]]]


def node_with(gpus: int) -> NodeCapacity:
    """Return a node with all GPUs of the site, free."""
    devices = tuple(DeviceCapacity(f"gpu-{number:04d}", MODEL, 81_920) for number in range(gpus))
    cpu, memory = gpus * CPU_MILLI, gpus * MEMORY_MIB
    return NodeCapacity("all", cpu, memory, 0, cpu, memory, 0, devices)


class QueueSite:
    """Teams that share the GPUs of a pool with default settings. Times are UTC seconds."""

    def __init__(
        self, gpus: int, teams: Sequence[Limits], cohorts: Sequence[Cohort], policy: model.Policy, now_s: int
    ) -> None:
        pool = Pool(slug="all", name="All", driver="local", state=PoolState.ONLINE)
        self._pool = PoolNodes(pool, (node_with(gpus),))
        self._held: Held = {}
        self._requests: dict[str, PlacementRequest] = {}
        pools = {pool.pk: self._pool}
        limits = model.Snapshot(
            now_s,
            tuple(teams),
            tuple(cohorts),
            capacity=capacity.total_capacity(pools.values()),
            policy=policy,
        )
        placer = PoolPlacer(pools, read_allocations=self._held_by)
        self.snapshot: ClusterSnapshot = snapshot_of(pools, limits, placer, _moment(now_s))
        # Jobs end at the time given by the trace.
        self._template = Template(
            slug="replay", name="Replay", argv=["bash"], default_lifetime_hours=0, max_lifetime_hours=0
        )
        self._flavor = Flavor(slug="replay", name="Replay")
        self._teams = {team.name: Team(slug=team.name, name=team.name) for team in teams}
        self._bodies: dict[int, Any] = {}

    def _held_by(self, workspaces: Collection[UUID]) -> Held:
        return {name: self._held[name] for name in map(str, workspaces)}

    @property
    def scheduler(self) -> Scheduler:
        return self.snapshot.scheduler

    def build_request(self, team: str, gpus: int, expected_s: int) -> admission.StartRequest:
        body = self._bodies.get(gpus)
        if body is None:
            request = ResourceRequest(
                gpus * CPU_MILLI, gpus * MEMORY_MIB, accelerators=AcceleratorRequest(count=gpus)
            )
            body = self._bodies[gpus] = messages.dump(request)
        return admission.StartRequest(
            self._template, self._flavor, self._teams[team], None, body, expected_s=expected_s
        )

    def at(self, now_s: int) -> None:
        self.snapshot.now = _moment(now_s)
        self.snapshot.scheduler.now_s = now_s

    def preview(self, start_request: admission.StartRequest) -> Verdict:
        return admission.assess_on(self.snapshot, start_request)

    def submit(self, name: str, start_request: admission.StartRequest, created_s: int) -> None:
        """Queue a request whose work is lost when it is preempted. `name` is the text of a UUID."""
        snapshot, team = self.snapshot, start_request.team
        assert team is not None
        request = snapshot.placement_requests.build(self._template, self._flavor, start_request.resources)
        workload = start_request.workload(team, _moment(created_s))
        self._requests[name] = request
        self._enqueue(replace(workload, id=name, place=request.place_key, loses_work=True))

    def _enqueue(self, workload: model.Workload) -> None:
        enqueue(self.snapshot, PendingWorkload(workload.id, self._requests[workload.id], workload))

    def decide(self) -> model.Cycle:
        """Run a cycle and its starts. Started jobs hold their GPUs from now on."""
        cycle = decision.decide(self.snapshot).cycle
        placer = self.snapshot.placer
        for name in cycle.starts:
            self.snapshot.pending_workloads.pop(name)
            pool, placement = placer.placement_of(name)
            request = self._requests[name].request
            self._held[name] = [(pool.pool.pk, placement, request)]
            placer.add_running(name)
        return cycle

    def decide_again(self) -> model.Cycle:
        """Return the decision of a next cycle. Nothing changes."""
        with self.snapshot.trial() as trial:
            return decision.decide(trial).cycle

    def finish(self, name: str, *, preempted: bool) -> None:
        """End a running job. A preempted job waits again, from its beginning."""
        run = self.snapshot.scheduler.finish(name)
        self.snapshot.placer.remove_running(name)
        for _, placement, request in self._held.pop(name):
            self._pool.cluster.release(placement, request)
            self._pool.invalidate_reasons()
        if preempted:
            times = run.workload.preempted + 1
            self._enqueue(replace(run.workload, nominated=False, preempted=times))
        else:
            del self._requests[name]

    def eta(self, name: str) -> int | None:
        """Return when a waiting job is expected to start, as its page shows it."""
        with self.snapshot.trial() as trial:
            outlook = Outlook(trial.scheduler, decision.decide(trial).unchanged_cycle)
            status = queue_status.status_of(trial, trial.pending_workloads[name], outlook)
            return int(status.eta_at.timestamp()) if status.eta_at is not None else None


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
