"""Movable workspaces, read on demand for the search."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from portal.catalog.models import Flavor, Template
from portal.reclaim.engine.crowd import Movable
from portal.reclaim.engine.placement_health import PlacementHealth
from portal.reclaim.rebalancing.reading import Running, Runs
from portal.scheduling.capacity import PoolNodes
from portal.scheduling.placement_request import PlacementRequests
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes.places import Homes
from provisioning.types import WHOLE_DEVICE_MILLI, ResourceRequest

AT_EASE = PlacementHealth()


class Crowd:
    """Workspaces that could be placed again in their pool: on one node, by a request with a fixed model.

    Requests for any model are excluded, since another model would be charged differently. Workspaces without
    a verdict count as content. Pools in `off` are excluded.
    """

    def __init__(
        self,
        pools: Mapping[UUID, PoolNodes],
        running: Running,
        verdicts: Mapping[UUID, PlacementHealth],
        off: Collection[UUID] = (),
    ) -> None:
        self._pools = {key: pool for key, pool in pools.items() if key not in off}
        self._running = running
        self._verdicts = verdicts
        self._requests = PlacementRequests(pools)
        self._nodes: dict[str, set[str]] = {}
        node_keys = {(key, node.name) for key, pool in self._pools.items() for node in pool.nodes}
        for key, name in running.on:
            if (key, name) in node_keys:
                self._nodes.setdefault(str(key), set()).add(name)
        self._templates: dict[UUID, Template] = {}
        self._flavors: dict[UUID, Flavor] = {}
        # Cached: thousands have equal requests.
        self._again: dict[object, ResourceRequest | None] = {}
        self._movable: dict[UUID, Movable | None] = {}

    def discontent(self) -> list[Movable]:
        low = [str(pk) for pk, verdict in self._verdicts.items() if verdict.reasons]
        return self._movables(self._running.of(low))

    def nodes(self, pool: str) -> Collection[str]:
        return self._nodes.get(pool, ())

    def on(self, pool: str, nodes: Collection[str]) -> list[Movable]:
        key = UUID(pool)
        return self._movables(
            self._running.of([runs for name in nodes for runs in self._running.on[key, name]])
        )

    def _movables(self, running: Sequence[Runs]) -> list[Movable]:
        fresh = [runs for runs in running if runs.pk not in self._movable]
        if fresh:
            self._make(fresh)
        return [one for runs in running if (one := self._movable[runs.pk]) is not None]

    def _make(self, running: Sequence[Runs]) -> None:
        templates = {runs.template for runs in running} - self._templates.keys()
        flavors = {runs.flavor for runs in running} - self._flavors.keys()
        if templates:
            self._templates |= Template.objects.in_bulk(templates)
        if flavors:
            self._flavors |= Flavor.objects.select_related("pool").in_bulk(flavors)
        homes = home_places.home_places_by_user([runs.home for runs in running])
        for runs in running:
            self._movable[runs.pk] = self._movable_of(runs, homes.get(runs.home, home_places.NOWHERE))

    def _movable_of(self, runs: Runs, homes: Homes) -> Movable | None:
        if len(runs.held) != 1:
            return None
        pool, placement, allocations = runs.held[0]
        if placement.nodes[0].node not in self._nodes.get(str(pool), ()):
            return None
        shares = any(grant.milli < WHOLE_DEVICE_MILLI for grant in placement.nodes[0].devices)
        if shares and self._pools[pool].pool.scrub_required:
            # The shared GPU is scrubbed before reuse, after all have left: a move would free nothing.
            return None
        key = (pool, runs.template, runs.flavor, runs.resources, frozenset(homes.items()))
        if key not in self._again:
            self._again[key] = _in_its_pool(
                self._requests,
                pool,
                self._templates[runs.template],
                self._flavors[runs.flavor],
                json.loads(runs.resources),
                homes,
            )
        request = self._again[key]
        if request is None:
            return None
        verdict = self._verdicts.get(runs.pk, AT_EASE)
        return Movable(
            id=str(runs.pk),
            pool=str(pool),
            placement=placement,
            held=allocations,
            request=request,
            milli=sum(grant.milli for grant in placement.nodes[0].devices),
            score=verdict.score,
            reasons=verdict.reasons,
            preemptible=runs.preemptible,
            loses_work=runs.loses_work,
            started_s=int(runs.placed_at.timestamp()) if runs.placed_at else 0,
            free=not runs.noticed,
        )


def _in_its_pool(
    requests: PlacementRequests, pool: UUID, template: Template, flavor: Flavor, data: Any, homes: Homes
) -> ResourceRequest | None:
    """Return its request for a new placement in its pool; None if impossible or ambiguous."""
    try:
        placement_request = requests.of(template, flavor, data, homes=homes)
    except ValueError:
        return None
    own = next((option for option in placement_request.pools if option.pool.pk == pool), None)
    if own is None or len(placement_request.variants) != 1:
        return None
    return own.adapted(placement_request.variants[0].request, placement_request.software)
