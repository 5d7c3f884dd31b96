"""Computes where a flavor fits, now and on empty nodes, with the placement engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from portal.catalog.models import Flavor, Template
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.held_environments import environment_need
from portal.fleet.inventory.models import Pool
from portal.scheduling import snapshot_cache
from portal.scheduling.engine.placement.types import SoftwareRequirements
from portal.scheduling.placement_request import PlacementRequest, candidate_pools, request_of
from portal.scheduling.pool_nodes import PoolNodes
from portal.scheduling.software_requirements import requirements_of
from provisioning.types import Placement, ResourceRequest

MAX_COUNTED = 50
"""Maximum count of workspaces that could start at once. Pages then show "50 or more"."""


@dataclass(frozen=True, slots=True)
class PoolFit:
    """How a flavor fits a pool. `refusal` explains why the pool's driver can never run the flavor.

    - `nodes_now`, `nodes_ever`: nodes with room for a share of the flavor now, and if they were empty.
    - `devices_now`, `devices_ever`: devices of these nodes with room; instances for a MIG profile.
    - `starts_now`: workspaces that could be placed one after the other, at most `MAX_COUNTED`.
    """

    pool: Pool
    nodes_now: int = 0
    nodes_ever: int = 0
    devices_now: int = 0
    devices_ever: int = 0
    starts_now: int = 0
    refusal: Reason | None = None

    @property
    def many(self) -> bool:
        """Whether the count was cut off."""
        return self.starts_now >= MAX_COUNTED


@dataclass(frozen=True, slots=True)
class FlavorFit:
    """The pools that may take a flavor, and its charged amounts, one entry per acceptable model."""

    pools: tuple[PoolFit, ...]
    charges: tuple[Mapping[str, int], ...]

    @property
    def nodes_now(self) -> int:
        return sum(pool.nodes_now for pool in self.pools)

    @property
    def nodes_ever(self) -> int:
        return sum(pool.nodes_ever for pool in self.pools)


def fit_flavor(flavor: Flavor, template: Template | None = None, *, environment: str = "") -> FlavorFit:
    """Return where the flavor fits with the template's requirements or, without a template, by size alone.

    `environment` is the digest of the template's software environment. Nodes without the environment count
    too, because it can be copied to them.
    """
    with snapshot_cache.preview_cache.use() as snapshot:
        candidates = candidate_pools(flavor, snapshot.pools)
        if template is not None:
            placement_request = snapshot.placement_requests.build(template, flavor)
            needs = [environment_need(environment)] if environment else []
            software = requirements_of(template, placement_request.request.accelerators, needs)
            refusals = dict(placement_request.refusals)
        else:
            placement_request = _by_size(flavor, candidates)
            software, refusals = SoftwareRequirements(), {}
        pools = []
        for pool in candidates:
            if (refusal := refusals.get(pool.pool.name)) is not None:
                pools.append(PoolFit(pool.pool, refusal=refusal))
                continue
            request = pool.with_requirements(placement_request.request, software)
            now, ever = pool.count_fits(request)
            starts = _count_starts(pool, request) if now.nodes else 0
            pools.append(PoolFit(pool.pool, now.nodes, ever.nodes, now.devices, ever.devices, starts))
        pools.sort(key=lambda fit: (fit.pool.simulated, fit.pool.slug))
        return FlavorFit(tuple(pools), tuple(variant.amounts for variant in placement_request.variants))


def _by_size(flavor: Flavor, candidates: list[PoolNodes]) -> PlacementRequest:
    request = request_of(flavor.as_request())
    return PlacementRequest.of_size(request, candidates, simulated=flavor.simulated)


def _count_starts(pool: PoolNodes, request: ResourceRequest) -> int:
    """Return how many workspaces could be placed one after the other. The pool is unchanged afterwards."""
    taken: list[Placement] = []
    try:
        while len(taken) < MAX_COUNTED and (placement := pool.cluster.find(request)) is not None:
            pool.cluster.commit(placement, request)
            taken.append(placement)
    finally:
        for placement in reversed(taken):
            pool.cluster.release(placement, request)
        if taken:
            pool.invalidate_reasons()
    if not taken:
        # Another MIG layout would be needed first.
        return int(pool.find(request) is not None)
    return len(taken)
