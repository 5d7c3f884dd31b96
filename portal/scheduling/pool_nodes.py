"""A pool with its nodes at one time, which checks whether requests fit now, could ever fit, and why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from django.conf import settings

from portal.common.reasons.reason import Reason
from portal.fleet.inventory.held_environments import NEED
from portal.fleet.inventory.maintenance_state import ActiveMaintenance
from portal.fleet.inventory.models import Pool
from portal.scheduling.engine.codes import MAY_PASS, SILENT, PlacementCode
from portal.scheduling.engine.placement import cluster, filters
from portal.scheduling.engine.placement.engine import DEFAULT_MIX, Cluster, RequestMix, emptied
from portal.scheduling.engine.placement.room import devices_with_room
from portal.scheduling.engine.placement.types import (
    HOME_LABEL,
    Candidate,
    ModelPreference,
    NodeCapacity,
    NodeReason,
    Placed,
    SoftwareRequirements,
    TemplateRequest,
    Version,
)
from portal.workspaces.homes import places as home_places
from portal.workspaces.models.homes import NEW_HOME_CPU_MILLI, NEW_HOME_GPU_MILLI
from provisioning.share_messages import PROVIDES_SHARES
from provisioning.traits import SoftwareSource
from provisioning.types import WHOLE_DEVICE_MILLI, Placement, ResourceRequest

RESOLVED_BY_LAYOUT = (PlacementCode.MIG_PROFILE_MISSING, PlacementCode.MIG_INSTANCES_SHORT)
"""Codes that another MIG layout may resolve, if `repartition` is among their params."""
Reasons = tuple[NodeReason, ...]


@dataclass(frozen=True, slots=True)
class FitCount:
    """Number of nodes where a share of a request fits, and of devices with room for such a share."""

    nodes: int
    devices: int = 0


@dataclass(slots=True)
class PoolNodes:
    """A pool with its nodes at one time and its expected requests. Builds clusters lazily.

    `home_mib_s` is how fast homes move between its nodes, 0 if not measured. With `maintenance`, its nodes
    take no work. `handed_over` is the number of workspaces that wait at an engine which places by itself;
    None where the portal places them.
    """

    pool: Pool
    nodes: tuple[NodeCapacity, ...]
    mix: RequestMix = DEFAULT_MIX
    home_mib_s: int = 0
    maintenance: ActiveMaintenance | None = None
    handed_over: int | None = None
    _cluster: Cluster | None = field(default=None, repr=False)
    _ever: dict[ResourceRequest, bool] = field(default_factory=dict, repr=False)
    _available: dict[str, NodeCapacity] | None = field(default=None, repr=False)
    _silent: frozenset[str] | None = field(default=None, repr=False)
    _closed_in_use: bool | None = field(default=None, repr=False)
    _reasons: dict[ResourceRequest, Reasons] = field(default_factory=dict, repr=False)
    _models: dict[Version, set[str]] = field(default_factory=dict, repr=False)
    _sizes: dict[str, int] | None = field(default=None, repr=False)

    @property
    def cluster(self) -> Cluster:
        """The cluster of the nodes in their current state."""
        if self._cluster is None:
            self._cluster = Cluster(self.nodes, policy=self.pool.placement_policy, mix=self.mix)
        return self._cluster

    @property
    def has_separate_homes(self) -> bool:
        """Whether each node keeps separate homes."""
        return home_places.has_separate_homes(self.pool)

    def find(self, request: ResourceRequest, *, new_home: bool = False) -> Placement | None:
        """Return where the request would go now, with another MIG layout if the pool allows that.

        `new_home`: the user has no home in this pool yet.
        """
        if self.is_window_full:
            return None
        return self.cluster.find(
            request, repartition=self.pool.repartitions, new_home=new_home and self.has_separate_homes
        )

    def best(
        self, request: ResourceRequest, preference: ModelPreference | None = None, *, new_home: bool = False
    ) -> Candidate | None:
        """Return the same placement with its rank among pools. `preference` compares the request's models."""
        if self.is_window_full:
            return None
        return self.cluster.best(
            request,
            repartition=self.pool.repartitions,
            preference=preference,
            new_home=new_home and self.has_separate_homes,
        )

    @property
    def is_window_full(self) -> bool:
        """Whether no further workspace is handed over to its engine, because enough of them wait there."""
        return self.handed_over is not None and self.handed_over >= settings.BERTH_ENGINE_WINDOW

    def count_handed_over(self, change: int) -> None:
        """Count a workspace that is handed over to the pool's engine, or one less."""
        if self.handed_over is not None:
            self.handed_over += change

    def free_at_engine(self, placement: Placement) -> tuple[str, int, int]:
        """Return the model of a placement, and its free and total units as the pool's engine reported them.

        Counts the placement itself as free, and units of workspaces that wait there as in use. The model is
        empty for a placement without devices.
        """
        own = {grant.uuid for part in placement.nodes for grant in part.devices}
        devices = [device for node in self.cluster.snapshot() for device in node.devices]
        model = next((device.model for device in devices if device.uuid in own), "")
        alike = [device for device in devices if device.model == model]
        free = sum(device.uuid in own or device.free_milli == WHOLE_DEVICE_MILLI for device in alike)
        return model, max(0, free - self.pool.used_by_others.get(model, 0)), len(alike)

    def count_new_home(self, placement: Placement, sign: int = 1) -> None:
        """Count a new home on the node of the placement, or remove it with a `sign` of -1."""
        (part,) = placement.nodes
        self.cluster.take_home(part.node, sign * NEW_HOME_GPU_MILLI, sign * NEW_HOME_CPU_MILLI)

    def is_free(self, placement: Placement, request: ResourceRequest) -> bool:
        """Return whether exactly this placement is free, on one node and without changing a MIG layout."""
        (part,) = placement.nodes
        try:
            node = self.cluster.node(part.node)
        except KeyError:
            return False
        named = {grant.uuid for grant in part.devices}
        named |= {device.parent_uuid for device in node.devices if device.uuid in named}
        devices = tuple(device for device in node.devices if device.uuid in named)
        return filters.reason(replace(node, devices=devices), request) is None

    def find_on(self, name: str, request: ResourceRequest) -> Placement | Reason:
        """Return where the request would go on this node now, or why it does not fit. Keeps MIG layouts.

        Raises KeyError if the pool has no such node.
        """
        node = self.cluster.node(name)
        outcome = Cluster((node,), policy=self.pool.placement_policy, mix=self.mix).decide(request)
        return outcome.placement if isinstance(outcome, Placed) else outcome.reasons[0][1]

    def find_except(self, name: str, request: ResourceRequest) -> Placement | None:
        """Return where the request would go now on any other node. Keeps MIG layouts.

        Raises KeyError if the pool has no such node.
        """
        node = self.cluster.node(name)
        self.cluster.update(replace(node, unusable=Reason(PlacementCode.NODE_CORDONED)))
        try:
            return self.cluster.find(request)
        finally:
            self.cluster.update(node)

    def set_mix(self, mix: RequestMix) -> None:
        """Replace the mix for later decisions."""
        self.mix = mix
        if self._cluster is not None:
            self._cluster.set_mix(mix)

    def could_ever_fit(self, request: ResourceRequest) -> bool:
        """Return whether the request would fit if the pool were empty and everything in service."""
        result = self._ever.get(request)
        if result is None:
            fitting = sum(1 for _ in islice(self.fitting_nodes(request), request.nodes))
            result = self._ever[request] = fitting == request.nodes
        return result

    def fitting_nodes(self, request: ResourceRequest) -> Iterator[str]:
        """Yield the names of nodes that could take a share of it if empty and in service."""
        nodes: Iterable[NodeCapacity] = self._nodes_if_available.values()
        if home := next((value for name, value in request.labels if name == HOME_LABEL), ""):
            # Only the node of this name has the label.
            nodes = [self._nodes_if_available[home]] if home in self._nodes_if_available else []
        return (node.name for node in nodes if self._fits(node, request))

    @property
    def _nodes_if_available(self) -> dict[str, NodeCapacity]:
        """The nodes by name as if they were empty and in service. Cached."""
        if self._available is None:
            self._available = {node.name: _as_if_available(node) for node in self.nodes}
        return self._available

    def could_fit_on_reporting(self, request: ResourceRequest) -> bool:
        """Return whether the request would fit if the nodes that report were empty and in service."""
        reporting = (name for name in self.fitting_nodes(request) if name not in self.silent_nodes)
        return sum(1 for _ in islice(reporting, request.nodes)) == request.nodes

    @property
    def silent_nodes(self) -> frozenset[str]:
        """The nodes that do not report."""
        if self._silent is None:
            self._silent = frozenset(
                node.name for node in self.nodes if node.unusable is not None and node.unusable.code in SILENT
            )
        return self._silent

    @property
    def closed_nodes_in_use(self) -> bool:
        """Whether nodes that take no new work count in the capacity, because work runs there."""
        if self._closed_in_use is None:
            self._closed_in_use = any(
                node.unusable is not None
                and any(device.free_milli < WHOLE_DEVICE_MILLI for device in node.devices)
                for node in self.nodes
            )
        return self._closed_in_use

    def _fits(self, node: NodeCapacity, request: ResourceRequest) -> bool:
        reason = filters.reason(node, request)
        if reason is None:
            return True
        return self.pool.repartitions and reason.code in RESOLVED_BY_LAYOUT and "repartition" in reason.params

    def count_fits(self, request: ResourceRequest) -> tuple[FitCount, FitCount]:
        """Count where a share of the request fits now, and where it would fit in an empty pool."""
        return (
            self._count_fits_on(self.cluster.snapshot(), request),
            self._count_fits_on(self._nodes_if_available.values(), request),
        )

    def _count_fits_on(self, nodes: Iterable[NodeCapacity], request: ResourceRequest) -> FitCount:
        fitting = [node for node in nodes if self._fits(node, request)]
        accelerators = request.accelerators
        if not accelerators.count:
            return FitCount(len(fitting))
        changes = self.pool.repartitions
        return FitCount(
            len(fitting), sum(devices_with_room(node, accelerators, repartition=changes) for node in fitting)
        )

    def reasons_if_empty(self, request: ResourceRequest) -> Reasons:
        """Return per node why it could never take the request."""
        pairs = ((name, filters.reason(node, request)) for name, node in self._nodes_if_available.items())
        return tuple((name, reason) for name, reason in pairs if reason is not None)

    def reasons(self, request: ResourceRequest) -> Reasons:
        """Return why each node does not take the request now. Cached."""
        reasons = self._reasons.get(request)
        if reasons is None:
            reasons = self.cluster.explain(request).reasons
            if not reasons and self.is_window_full:
                full = Reason(PlacementCode.ENGINE_QUEUE_FULL, {"waiting": self.handed_over})
                reasons = tuple((node.name, full) for node in self.nodes)
            self._reasons[request] = reasons
        return reasons

    @property
    def device_sizes(self) -> Mapping[str, int]:
        """Return the memory in MiB of the largest device of each model."""
        if self._sizes is None:
            self._sizes = {}
            for node in self.nodes:
                for device in node.devices:
                    self._sizes[device.model] = max(self._sizes.get(device.model, 0), device.memory_mib)
        return self._sizes

    def invalidate_reasons(self) -> None:
        """Invalidate cached reasons after a change in the cluster."""
        self._reasons.clear()

    def replace(self, node: NodeCapacity) -> None:
        """Replace the state of one node."""
        place = next(place for place, current in enumerate(self.nodes) if current.name == node.name)
        before = self.nodes[place]
        self.nodes = (*self.nodes[:place], node, *self.nodes[place + 1 :])
        if _sizes_of(before) != _sizes_of(node):
            self._sizes = None
        self._models.clear()
        if self._available is not None and (now := _as_if_available(node)) != self._available[node.name]:
            self._available[node.name] = now
            self._ever.clear()
        if before.unusable is not None or node.unusable is not None:
            self._silent = self._closed_in_use = None
        if self._cluster is not None:
            self._cluster.update(node)
        self.invalidate_reasons()

    @property
    def runs_any_software(self) -> bool:
        """Whether a workspace may use any program and environment, because nothing really runs."""
        return self.pool.traits.software is SoftwareSource.NONE

    def with_requirements(self, request: ResourceRequest, software: SoftwareRequirements) -> ResourceRequest:
        """Return the request with this pool's requirements for its software; none if nothing really runs."""
        if self.runs_any_software:
            return without_environments(request)
        accelerators = request.accelerators
        needs = request.needs
        if accelerators.count and accelerators.share_milli < WHOLE_DEVICE_MILLI:
            # Without enforcement, every process on a real GPU can use all of its memory.
            needs = (*needs, PROVIDES_SHARES)
        least = software.min_compute_capability
        if least is not None and not accelerators.model:
            # Restrict the request to capable models. Without such models, require something that no node
            # provides.
            can = self._models_with_capability(least)
            if models := tuple(sorted(can & set(accelerators.models) if accelerators.models else can)):
                accelerators = replace(accelerators, models=models)
            else:
                software = replace(software, models=accelerators.models[:1])
        return TemplateRequest(
            cpu_milli=request.cpu_milli,
            memory_mib=request.memory_mib,
            disk_mib=request.disk_mib,
            nodes=request.nodes,
            accelerators=accelerators,
            labels=request.labels,
            needs=needs,
            software=software,
        )

    def _models_with_capability(self, least: Version) -> set[str]:
        """Return the models of this pool with at least this compute capability."""
        models = self._models.get(least)
        if models is None:
            models = self._models[least] = {
                model
                for node in self.nodes
                for model, version in node.software.compute_capabilities
                if version >= least
            }
        return models


def _sizes_of(node: NodeCapacity) -> set[tuple[str, int]]:
    return {(device.model, device.memory_mib) for device in node.devices}


def without_environments(request: ResourceRequest) -> ResourceRequest:
    """Return the request without its environment needs: environments are copied to nodes on demand."""
    needs = tuple(need for need in request.needs if not need.startswith(NEED))
    return request if needs == request.needs else replace(request, needs=needs)


def _as_if_available(node: NodeCapacity) -> NodeCapacity:
    back = node.unusable is not None and node.unusable.code in MAY_PASS
    node = emptied(replace(node, unusable=None) if back else node)
    devices = tuple(replace(device, unusable=None, fixed=False) for device in node.devices)
    return replace(node, devices=devices)


def weight_by_scarcity(mixes: Iterable[tuple[PoolNodes, RequestMix]]) -> list[RequestMix]:
    """Return the mix of each pool, weighted by the current scarcity over all pools that expect a shape."""
    return cluster.weight_by_scarcity([(pool.cluster, mix) for pool, mix in mixes])
