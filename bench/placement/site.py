"""A site in memory whose requests follow the portal's own path: request, verdict, cycle, placement.

Only the database rows are missing. `PlacementRequests`, `admission.assess_on` and `decision.decide` decide,
as for a preview, a creation and a scheduling cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.utils import timezone

from portal.catalog.models import Flavor, Template
from portal.fleet.inventory.models import Pool, PoolState
from portal.people.accounts.models import Team
from portal.quota.limits.types import Team as Limits
from portal.scheduling import admission, capacity, decision
from portal.scheduling.engine import model
from portal.scheduling.engine.placement.mix import RequestMix
from portal.scheduling.engine.placement.types import HOME_LABEL, NodeCapacity
from portal.scheduling.engine.scheduler import Scheduler
from portal.scheduling.placement_request import PlacementRequests
from portal.scheduling.placer import PoolPlacer
from portal.scheduling.pool_nodes import PoolNodes, weight_by_scarcity
from portal.scheduling.snapshot import ClusterSnapshot, PendingWorkload, enqueue, policy
from provisioning import messages
from provisioning.share_messages import PROVIDES_SHARES
from provisioning.types import NodePlacement, ResourceRequest

TEAM = "replay"
APART = timedelta(seconds=1)
"""Time between two requests. No request ends while a workload arrives."""
Nodes = tuple[NodePlacement, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the nodes form a site: in one pool or one per model, with homes on nodes or shared.

    With `engine_alone`, the placement engine of one pool decides without the portal.
    """

    by_model: bool = False
    homes_apart: bool = True
    engine_alone: bool = False


DEFAULT_LAYOUT = Layout()
LAYOUTS = {
    "pool": DEFAULT_LAYOUT,
    "pool-shared-homes": Layout(homes_apart=False),
    "pool-per-model": Layout(by_model=True),
    "pool-per-model-shared-homes": Layout(by_model=True, homes_apart=False),
    "engine": Layout(homes_apart=False, engine_alone=True),
}


def pools_of(
    nodes: Sequence[NodeCapacity], mix: RequestMix, *, policy: str, layout: Layout
) -> dict[UUID, PoolNodes]:
    """Return the pools with default settings except for the arguments, as from database rows."""
    parts: dict[str, list[NodeCapacity]] = {}
    for node in nodes:
        name = node.devices[0].model if layout.by_model and node.devices else "all"
        parts.setdefault(name, []).append(_reported(node, homes_apart=layout.homes_apart))
    pools = {}
    for name, members in sorted(parts.items()):
        pool = Pool(
            slug=f"pool-{name.lower()}",
            name=name,
            driver="local",
            config={} if layout.homes_apart else {"homes_shared": True},
            state=PoolState.ONLINE,
            placement_policy=policy,
        )
        pools[pool.pk] = PoolNodes(pool, tuple(members), mix)
    set_mix(pools.values(), mix)
    return pools


def set_mix(pools: Collection[PoolNodes], mix: RequestMix) -> None:
    """Set the expected mix of all pools, weighted by current scarcity as in `portal.scheduling.learning`."""
    weighted = weight_by_scarcity((pool, mix) for pool in pools)
    for pool, its_mix in zip(pools, weighted, strict=True):
        pool.set_mix(its_mix)


def _reported(node: NodeCapacity, *, homes_apart: bool) -> NodeCapacity:
    """Return the node as its inventory reports it: it enforces shares of GPUs, and may have its own homes."""
    labels = ((HOME_LABEL, node.name),) if homes_apart else ()
    return replace(node, provides=(PROVIDES_SHARES,), labels=labels)


def snapshot_of(
    pools: Mapping[UUID, PoolNodes], limits: model.Snapshot, placer: PoolPlacer, now: datetime
) -> ClusterSnapshot:
    """Return the input of a cycle or preview, as from database rows."""
    return ClusterSnapshot(
        now=now,
        generation=0,
        pools=pools,
        placement_requests=PlacementRequests(pools),
        placer=placer,
        scheduler=Scheduler(limits, placer),
        pending_workloads={},
        capacity=limits.capacity,
        team_names={},
        read_at=now,
        limits=limits,
        limits_at=now,
        changes=set(),
        retry_at={},
    )


class Site:
    """Pools, one team without limits, and an empty queue."""

    def __init__(self, pools: Mapping[UUID, PoolNodes]) -> None:
        now = timezone.now()
        total = capacity.total_capacity(pools.values())
        limits = model.Snapshot(int(now.timestamp()), (Limits(TEAM),), capacity=total, policy=policy())
        self.pools = pools
        self.team = Team(slug=TEAM, name="Replay")
        self.template = Template(slug="replay", name="Replay", argv=["bash"])
        self.flavor = Flavor(slug="replay", name="Replay")
        self.snapshot = snapshot_of(pools, limits, PoolPlacer(pools), now)
        self._bodies: dict[ResourceRequest, Any] = {}

    def build_request(self, request: ResourceRequest) -> admission.StartRequest:
        body = self._bodies.get(request)
        if body is None:
            body = self._bodies[request] = messages.dump(request)
        return admission.StartRequest(self.template, self.flavor, self.team, None, body)

    def preview(self, request: ResourceRequest) -> Nodes:
        """Return the placement that a preview predicts for the request."""
        placement = admission.assess_on(self.snapshot, self.build_request(request)).placement
        return placement.nodes if placement is not None else ()

    def submit(self, request: ResourceRequest) -> Nodes:
        """Return the placement of the request. A request that does not start leaves the queue again."""
        snapshot, start_request = self.snapshot, self.build_request(request)
        snapshot.now += APART
        snapshot.scheduler.now_s = snapshot.now_s
        asked = snapshot.placement_requests.build(self.template, self.flavor, start_request.resources)
        if not asked.possible:
            return ()
        workload = replace(
            start_request.workload(self.team, snapshot.now), id=str(uuid4()), place=asked.place_key
        )
        enqueue(snapshot, PendingWorkload(workload.id, asked, workload))
        decision.decide(snapshot)
        del snapshot.pending_workloads[workload.id]
        if workload.id in snapshot.scheduler.running:
            return snapshot.placer.placement_of(workload.id)[1].nodes
        snapshot.scheduler.withdraw(workload.id)
        return ()


class EngineAlone:
    """The placement engine of one pool: the upper limit of a site with several models, without a queue."""

    def __init__(self, pools: Mapping[UUID, PoolNodes]) -> None:
        self.pools = pools
        (self._pool,) = pools.values()

    def preview(self, request: ResourceRequest) -> Nodes:
        placement = self._pool.find(request)
        return placement.nodes if placement is not None else ()

    def submit(self, request: ResourceRequest) -> Nodes:
        placement = self._pool.find(request)
        if placement is None:
            return ()
        self._pool.cluster.commit(placement, request)
        return placement.nodes
