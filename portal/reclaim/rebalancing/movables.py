"""Reads movable workspaces on demand for the search."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from portal.catalog.models import Flavor, Template
from portal.reclaim.engine.movables import Movable
from portal.reclaim.engine.placement_health import PlacementHealth
from portal.reclaim.rebalancing.reading import RunningWorkspace, RunningWorkspaces
from portal.scheduling.placement_request import PlacementRequests
from portal.scheduling.pool_nodes import PoolNodes
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes.places import Homes
from provisioning.types import WHOLE_DEVICE_MILLI, ResourceRequest

GOOD_HEALTH = PlacementHealth()


class SnapshotMovables:
    """Workspaces that could be placed again in their pool: on one node, with a request for a fixed model.

    Excludes requests for any model, because another model would be charged differently, and pools in `off`.
    Workspaces without a verdict have no reason to move.
    """

    def __init__(
        self,
        pools: Mapping[UUID, PoolNodes],
        running: RunningWorkspaces,
        verdicts: Mapping[UUID, PlacementHealth],
        off: Collection[UUID] = (),
    ) -> None:
        self._pools = {key: pool for key, pool in pools.items() if key not in off}
        self._running = running
        self._verdicts = verdicts
        self._requests = PlacementRequests(pools)
        self._nodes: dict[str, set[str]] = {}
        node_keys = {(key, node.name) for key, pool in self._pools.items() for node in pool.nodes}
        for key, name in running.by_node:
            if (key, name) in node_keys:
                self._nodes.setdefault(str(key), set()).add(name)
        self._templates: dict[UUID, Template] = {}
        self._flavors: dict[UUID, Flavor] = {}
        # Cached, because thousands of workspaces have equal requests.
        self._again: dict[object, ResourceRequest | None] = {}
        self._movable: dict[UUID, Movable | None] = {}

    def discontent(self) -> list[Movable]:
        low = [str(pk) for pk, verdict in self._verdicts.items() if verdict.reasons]
        return self._movables(self._running.get(low))

    def nodes(self, pool: str) -> Collection[str]:
        return self._nodes.get(pool, ())

    def on_nodes(self, pool: str, nodes: Collection[str]) -> list[Movable]:
        key = UUID(pool)
        return self._movables(
            self._running.get([workspace for name in nodes for workspace in self._running.by_node[key, name]])
        )

    def _movables(self, running: Sequence[RunningWorkspace]) -> list[Movable]:
        fresh = [workspace for workspace in running if workspace.pk not in self._movable]
        if fresh:
            self._make(fresh)
        return [movable for workspace in running if (movable := self._movable[workspace.pk]) is not None]

    def _make(self, running: Sequence[RunningWorkspace]) -> None:
        templates = {workspace.template for workspace in running} - self._templates.keys()
        flavors = {workspace.flavor for workspace in running} - self._flavors.keys()
        if templates:
            self._templates |= Template.objects.in_bulk(templates)
        if flavors:
            self._flavors |= Flavor.objects.select_related("pool").in_bulk(flavors)
        homes = home_places.home_places_by_user([workspace.home for workspace in running])
        for workspace in running:
            self._movable[workspace.pk] = self._movable_of(
                workspace, homes.get(workspace.home, home_places.NOWHERE)
            )

    def _movable_of(self, workspace: RunningWorkspace, homes: Homes) -> Movable | None:
        if len(workspace.allocations) != 1:
            return None
        pool, placement, allocations = workspace.allocations[0]
        if placement.nodes[0].node not in self._nodes.get(str(pool), ()):
            return None
        shares = any(grant.milli < WHOLE_DEVICE_MILLI for grant in placement.nodes[0].devices)
        if shares and self._pools[pool].pool.scrub_required:
            # A shared GPU is scrubbed before reuse, after all workspaces have left, so a move would free
            # nothing.
            return None
        key = (pool, workspace.template, workspace.flavor, workspace.resources, frozenset(homes.items()))
        if key not in self._again:
            self._again[key] = _in_its_pool(
                self._requests,
                pool,
                self._templates[workspace.template],
                self._flavors[workspace.flavor],
                json.loads(workspace.resources),
                homes,
            )
        request = self._again[key]
        if request is None:
            return None
        verdict = self._verdicts.get(workspace.pk, GOOD_HEALTH)
        return Movable(
            id=str(workspace.pk),
            pool=str(pool),
            placement=placement,
            allocated=allocations,
            request=request,
            milli=sum(grant.milli for grant in placement.nodes[0].devices),
            score=verdict.score,
            reasons=verdict.reasons,
            preemptible=workspace.preemptible,
            loses_work=workspace.loses_work,
            started_s=int(workspace.placed_at.timestamp()) if workspace.placed_at else 0,
            can_move=not workspace.under_notice,
        )


def _in_its_pool(
    requests: PlacementRequests, pool: UUID, template: Template, flavor: Flavor, data: Any, homes: Homes
) -> ResourceRequest | None:
    """Return the request for a new placement in its pool; None if impossible or ambiguous."""
    try:
        placement_request = requests.build(template, flavor, data, homes=homes)
    except ValueError:
        return None
    own = next((option for option in placement_request.pools if option.pool.pk == pool), None)
    if own is None or len(placement_request.variants) != 1:
        return None
    return own.with_requirements(placement_request.variants[0].request, placement_request.software)
