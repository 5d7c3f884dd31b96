"""Reads the total and free capacity of pools into the form of the placement engine.

Needs eight queries including the pools, regardless of the number of nodes, one more with MIG and two more
with homes on nodes. Rows are read as tuples, since there may be 10,000 devices in an interactive request.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from uuid import UUID

from django.db.models import Q, Sum
from django.utils import timezone

from portal.common.reasons.reason import Reason
from portal.fleet.inventory import maintenance_state, resources
from portal.fleet.inventory.contact import contact_of_node, contact_of_pool
from portal.fleet.inventory.counting import Tally
from portal.fleet.inventory.held_environments import NEED
from portal.fleet.inventory.maintenance_state import ActiveMaintenance, MaintenancePlan
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, Node, Pool
from portal.scheduling import request_mix, software_requirements
from portal.scheduling.engine.codes import MAY_PASS, SILENT, PlacementCode
from portal.scheduling.engine.placement import filters
from portal.scheduling.engine.placement.engine import DEFAULT_MIX, Cluster, RequestMix, emptied
from portal.scheduling.engine.placement.mig import layout_of
from portal.scheduling.engine.placement.mig_layouts import Geometry, reported_geometry
from portal.scheduling.engine.placement.room import devices_with_room
from portal.scheduling.engine.placement.types import (
    HOME_LABEL,
    HOME_LABELS,
    Candidate,
    DeviceCapacity,
    ModelPreference,
    NodeCapacity,
    NodeReason,
    NodeSoftware,
    SoftwareRequirements,
    TemplateRequest,
    Version,
)
from portal.workspaces.homes import load as home_load
from portal.workspaces.homes import move_rates
from portal.workspaces.homes import places as home_places
from portal.workspaces.models.homes import NEW_HOME_CPU_MILLI, NEW_HOME_GPU_MILLI
from provisioning.gpu.shares import part_mib
from provisioning.share_messages import PROVIDES_SHARES
from provisioning.types import (
    WHOLE_DEVICE_MILLI,
    DeviceGrant,
    DeviceKind,
    NodePlacement,
    Placement,
    ResourceRequest,
)

MAX_FILTERED_BY_KEY = 200
DEVICE_COLUMNS = (
    "node_id", "pk", "uuid", "model", "memory_mib", "kind", "parent_uuid", "mig_mode", "mig_profile",
    "mig_start", "island", "numa", "healthy", "health_note", "cordoned", "cordon_reason", "checking",
    "unscrubbed", "warning", "layout_fixed_until", "compute_capability",
)  # fmt: skip
MIG_MODE = DEVICE_COLUMNS.index("mig_mode")


RESOLVED_BY_LAYOUT = (PlacementCode.MIG_PROFILE_MISSING, PlacementCode.MIG_INSTANCES_SHORT)
"""Codes that another MIG layout may resolve, if `repartition` is among their params."""
Reasons = tuple[NodeReason, ...]


@dataclass(frozen=True, slots=True)
class FitCount:
    """Number of nodes where a share of a request fits, and of their devices with room for it."""

    nodes: int
    devices: int = 0


@dataclass(slots=True)
class PoolNodes:
    """A pool, its nodes at one moment and the expected requests. Builds clusters lazily.

    `home_mib_s` is how fast homes move between its nodes, 0 if not measured. With `maintenance`, its nodes
    take no work.
    """

    pool: Pool
    nodes: tuple[NodeCapacity, ...]
    mix: RequestMix = DEFAULT_MIX
    home_mib_s: int = 0
    maintenance: ActiveMaintenance | None = None
    _cluster: Cluster | None = field(default=None, repr=False)
    _ever: dict[ResourceRequest, bool] = field(default_factory=dict, repr=False)
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
        """Whether each node keeps homes of its own."""
        return home_places.has_separate_homes(self.pool)

    def find(self, request: ResourceRequest, *, new_home: bool = False) -> Placement | None:
        """Return where the request goes now, with another MIG layout if the pool allows that.

        `new_home`: its user has no home in this pool yet.
        """
        return self.cluster.find(
            request, repartition=self.pool.repartitions, new_home=new_home and self.has_separate_homes
        )

    def best(
        self, request: ResourceRequest, preference: ModelPreference | None = None, *, new_home: bool = False
    ) -> Candidate | None:
        """Return the same placement with its rank among pools. `preference` compares the request's models."""
        return self.cluster.best(
            request,
            repartition=self.pool.repartitions,
            preference=preference,
            new_home=new_home and self.has_separate_homes,
        )

    def count_new_home(self, placement: Placement, sign: int = 1) -> None:
        """Count a new home on the node of the placement, or remove it with a `sign` of -1."""
        (part,) = placement.nodes
        self.cluster.take_home(part.node, sign * NEW_HOME_GPU_MILLI, sign * NEW_HOME_CPU_MILLI)

    def is_free(self, placement: Placement, request: ResourceRequest) -> bool:
        """Return whether exactly this placement, on one node and without another MIG layout, is free."""
        (part,) = placement.nodes
        try:
            node = self.cluster.node(part.node)
        except KeyError:
            return False
        named = {grant.uuid for grant in part.devices}
        named |= {device.parent_uuid for device in node.devices if device.uuid in named}
        devices = tuple(device for device in node.devices if device.uuid in named)
        return filters.reason(replace(node, devices=devices), request) is None

    def set_mix(self, mix: RequestMix) -> None:
        """Replace the mix for later decisions."""
        self.mix = mix
        if self._cluster is not None:
            self._cluster.set_mix(mix)

    def weight_by_scarcity(self, mix: RequestMix) -> RequestMix:
        """Return the mix, weighted by the current scarcity in this pool."""
        return self.cluster.weight_by_scarcity(mix)

    def could_ever_fit(self, request: ResourceRequest) -> bool:
        """Return whether the request would fit if the pool were empty and everything in service."""
        result = self._ever.get(request)
        if result is None:
            fitting = sum(1 for _ in islice(self.fitting_nodes(request), request.nodes))
            result = self._ever[request] = fitting == request.nodes
        return result

    def fitting_nodes(self, request: ResourceRequest) -> Iterator[str]:
        """Yield the names of nodes that could take a share of it if empty and in service."""
        return (node.name for node in self.nodes if self._fits(_as_if_available(node), request))

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
        """Return where a share of the request fits now, and where it would on an empty pool."""
        return (
            self._count_fits_on(self.cluster.snapshot(), request),
            self._count_fits_on((_as_if_available(node) for node in self.nodes), request),
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
        pairs = ((node.name, filters.reason(_as_if_available(node), request)) for node in self.nodes)
        return tuple((name, reason) for name, reason in pairs if reason is not None)

    def reasons(self, request: ResourceRequest) -> Reasons:
        """Return per node why it does not take the request now. Cached."""
        reasons = self._reasons.get(request)
        if reasons is None:
            reasons = self._reasons[request] = self.cluster.explain(request).reasons
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
        self._silent = self._closed_in_use = None
        if self._cluster is not None:
            self._cluster.update(node)
        self.invalidate_reasons()

    def with_requirements(self, request: ResourceRequest, software: SoftwareRequirements) -> ResourceRequest:
        """Return the request with this pool's requirements for its software. Simulated nodes meet all."""
        if self.pool.simulated:
            return without_environments(request)
        accelerators = request.accelerators
        needs = request.needs
        if accelerators.count and accelerators.share_milli < WHOLE_DEVICE_MILLI:
            # Without enforcement, every process on a real GPU can use all of its memory.
            needs = (*needs, PROVIDES_SHARES)
        least = software.min_compute_capability
        if least is not None and not accelerators.model:
            # Restrict the request to capable models; without any, no node provides them.
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
        """Return the models of this pool that have the compute capability."""
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


def load(pools: Iterable[Pool] | None = None, plan: MaintenancePlan | None = None) -> dict[UUID, PoolNodes]:
    """Return all pools (or the given ones) by primary key. Disabled pools count only what is in use.

    `plan` has the maintenance of pools; without it, it is read.
    """
    plan = plan or maintenance_state.plan(timezone.now())
    chosen = list(Pool.objects.filter(deleted_at=None).order_by("slug") if pools is None else pools)
    by_key = {pool.pk: pool for pool in chosen}
    nodes: dict[UUID, list[NodeCapacity]] = {pool.pk: [] for pool in chosen}
    for pool, node in _read(by_key, Q(pool__in=list(by_key)), _closed(plan, by_key)):
        nodes[pool].append(node)
    mixes, rates = request_mix.mixes_by_pool(chosen), home_rates(chosen)
    return {
        pool.pk: PoolNodes(
            pool, tuple(nodes[pool.pk]), mixes[pool.pk], rates.get(pool.pk, 0), plan.of(pool.pk)
        )
        for pool in chosen
    }


def _closed(plan: MaintenancePlan, pools: Iterable[UUID]) -> frozenset[UUID]:
    """Return the pools that are in maintenance."""
    return frozenset(pool for pool in pools if plan.of(pool) is not None)


def home_rates(pools: Iterable[Pool]) -> dict[UUID, int]:
    """Return the MiB per second of moves of homes, for pools where that was measured."""
    return move_rates.measured([pool.pk for pool in pools if home_places.has_separate_homes(pool)])


def refresh_mixes(pools: Mapping[UUID, PoolNodes]) -> None:
    """Load the latest learnt mixes into the pools."""
    for key, mix in request_mix.mixes_by_pool([pool.pool for pool in pools.values()]).items():
        pools[key].set_mix(mix)


def refresh(pools: Mapping[UUID, PoolNodes], nodes: Iterable[UUID]) -> bool:
    """Reload some nodes and update existing clusters.

    Returns True if any of them is partly unusable: then `total_capacity` may have changed.
    """
    by_key = {key: pool.pool for key, pool in pools.items()}
    out = False
    closed = frozenset(key for key, pool in pools.items() if pool.maintenance is not None)
    for pool, node in _read(by_key, Q(pk__in=list(nodes), pool__in=list(by_key)), closed):
        pools[pool].replace(node)
        out |= node.unusable is not None or any(device.unusable for device in node.devices)
    return out


def pool_of_node(pool: Pool, name: str) -> PoolNodes:
    """Return a pool with only the named node in its current state, or without nodes if it does not exist."""
    plan = maintenance_state.plan(timezone.now())
    rows = _read({pool.pk: pool}, Q(pool=pool, name=name), _closed(plan, [pool.pk]))
    return PoolNodes(pool, tuple(node for _, node in rows), maintenance=plan.of(pool.pk))


def _read(
    pools: Mapping[UUID, Pool], which: Q, closed: Collection[UUID] = ()
) -> Iterator[tuple[UUID, NodeCapacity]]:
    """Yield the nodes selected by `which` in order of name, each with its pool's key.

    Pools in `closed` are in maintenance.
    """
    nodes = list(Node.objects.filter(which).order_by("name").defer("warnings", "accelerator_note", "facts"))
    # Filter by key only for few nodes: a list of thousands is slower than reading all.
    named = {node.pk for node in nodes} if len(nodes) <= MAX_FILTERED_BY_KEY else None
    of_nodes = Q(node__in=named) if named is not None else Q(node__pool__in=list(pools))
    used = {
        node: (cpu, memory, disk)
        for node, cpu, memory, disk in Allocation.objects.filter(of_nodes, released_at=None)
        .values_list("node_id")
        .annotate(Sum("cpu_milli"), Sum("memory_mib"), Sum("disk_mib"))
    }
    shares = AllocatedDevice.objects.filter(active=True)
    if named is not None:
        shares = shares.filter(device__node__in=named)
    taken: defaultdict[UUID, list[tuple[int, int]]] = defaultdict(list)
    for device, milli, memory in shares.values_list("device_id", "milli", "memory_mib"):
        taken[device].append((milli, memory))
    devices: dict[UUID, list[DeviceCapacity]] = {}
    capabilities: dict[UUID, set[tuple[str, str]]] = {}
    # Among equal devices of a node, the first is taken.
    rows = Device.objects.filter(of_nodes, present=True).order_by("index", "uuid")
    layouts: dict[str, Geometry | None] = {}
    device_rows = list(rows.values_list(*DEVICE_COLUMNS))
    if any(row[MIG_MODE] for row in device_rows):
        # Facts are long, and only those of GPUs in MIG mode matter to placement.
        told_by = rows.filter(mig_mode=True, facts__has_key="profiles")
        layouts = {
            uuid: reported_geometry(profiles)
            for uuid, profiles in told_by.values_list("uuid", "facts__profiles")
        }
    for row in device_rows:
        devices.setdefault(row[0], []).append(_device(row, taken.get(row[1], ()), layouts.get(row[2])))
        capabilities.setdefault(row[0], set()).add((row[3], row[-1]))
    homes = home_load.by_node(of_nodes) if any(map(home_places.has_separate_homes, pools.values())) else {}
    for node in nodes:
        software = software_requirements.node_software(
            node.cuda_version,
            frozenset(name for name, path in node.programs.items() if path),
            frozenset(capabilities.get(node.pk, ())),
        )
        taken_of = used.get(node.pk, (0, 0, 0))
        state = _node(
            node,
            pools[node.pool_id],
            devices.get(node.pk, ()),
            taken_of,
            software,
            closed=node.pool_id in closed,
        )
        if node.pk in homes and home_places.has_separate_homes(pools[node.pool_id]):
            state = replace(state, home_gpu_milli=homes[node.pk][0], home_cpu_milli=homes[node.pk][1])
        yield node.pool_id, state


def _device(row: Sequence[Any], taken: Sequence[tuple[int, int]], layout: Geometry | None) -> DeviceCapacity:
    _, _, uuid, model, memory_mib, kind, parent, mig_mode, profile, start, island, numa, *health = row
    healthy, note, cordoned, reason, checking, unscrubbed, warning, fixed_until, _ = health
    unusable: Reason | None = None
    if cordoned:
        unusable = Reason(PlacementCode.DEVICE_CORDONED, {"note": reason})
    elif not healthy:
        unusable = Reason(PlacementCode.DEVICE_UNHEALTHY, {"note": note})
    elif checking:
        unusable = Reason(PlacementCode.DEVICE_CHECKING)
    elif unscrubbed and not mig_mode:
        unusable = Reason(PlacementCode.DEVICE_UNSCRUBBED)
    return DeviceCapacity(
        uuid=uuid,
        model=model,
        memory_mib=memory_mib,
        free_milli=WHOLE_DEVICE_MILLI - sum(milli for milli, _ in taken),
        free_memory_mib=max(0, memory_mib - sum(_held_mib(memory_mib, *share) for share in taken)),
        kind=DeviceKind(kind),
        parent_uuid=parent,
        mig_mode=mig_mode,
        mig_profile=profile,
        mig_start=start,
        island=island,
        numa=numa,
        unusable=unusable,
        warned=bool(warning),
        layout=layout,
        fixed=fixed_until is not None and fixed_until > timezone.now(),
    )


def _held_mib(device_mib: int, milli: int, memory_mib: int) -> int:
    """Return the device memory in MiB that a grant takes. 0 for a whole device, which is not shared."""
    return 0 if milli >= WHOLE_DEVICE_MILLI else part_mib(device_mib, milli, memory_mib)


def _node(
    node: Node,
    pool: Pool,
    devices: Sequence[DeviceCapacity],
    used: tuple[int, int, int],
    software: NodeSoftware,
    *,
    closed: bool = False,
) -> NodeCapacity:
    code: PlacementCode | None = None
    if not pool.takes_work:
        code = PlacementCode.POOL_DISABLED
    elif node.retired:
        code = PlacementCode.NODE_RETIRED
    elif closed:
        code = PlacementCode.IN_MAINTENANCE
    elif not contact_of_pool(pool).heard:
        code = PlacementCode.POOL_UNREACHABLE
    elif not contact_of_node(node, pool).heard:
        code = PlacementCode.NODE_OFFLINE
    elif node.cordoned:
        code = PlacementCode.NODE_CORDONED
    # An unusable GPU makes its instances unusable.
    bad = {
        device.uuid: device.unusable
        for device in devices
        if device.unusable and device.kind is not DeviceKind.MIG
    }
    if bad:
        devices = [
            replace(device, unusable=Reason(PlacementCode.PARENT_UNUSABLE, bad[device.parent_uuid].as_json()))
            if device.parent_uuid in bad and not device.unusable
            else device
            for device in devices
        ]
    return NodeCapacity(
        name=node.name,
        cpu_milli=node.cpu_milli,
        memory_mib=node.memory_mib,
        disk_mib=node.disk_mib,
        free_cpu_milli=node.cpu_milli - used[0],
        free_memory_mib=node.memory_mib - used[1],
        free_disk_mib=node.disk_mib - used[2],
        devices=tuple(devices),
        unusable=Reason(code) if code is not None else None,
        labels=_labels(node, pool),
        provides=tuple(node.provides),
        software=software,
        rack=node.rack,
        block=node.block,
    )


def _labels(node: Node, pool: Pool) -> tuple[tuple[str, str], ...]:
    """Return the node's labels except home labels, plus its own where the pool keeps homes on nodes."""
    labels = [(name, value) for name, value in node.labels.items() if name not in HOME_LABELS]
    own = [(HOME_LABEL, node.name)] if home_places.has_separate_homes(pool) else []
    return tuple(sorted([*labels, *own]))


def total_capacity(pools: Iterable[PoolNodes]) -> dict[str, int]:
    """Return the usable accelerators: those in service, and the used part of others.

    Same count as `inventory.counting`, based on a snapshot instead of the database.
    """
    tally = Tally()
    possible: Counter[str] = Counter()
    for pool in pools:
        simulated = pool.pool.simulated
        if pool.pool.repartitions:
            for profile, more in _creatable_instances(pool.nodes).items():
                possible[resources.mig(profile, simulated=simulated)] += more * WHOLE_DEVICE_MILLI
        for node in pool.nodes:
            split = {device.parent_uuid for device in node.devices if device.kind is DeviceKind.MIG}
            for device in node.devices:
                if device.uuid not in split:
                    takes_work = not (node.unusable or device.unusable)
                    tally.add_device(
                        resources.device_resources(
                            device.model,
                            mig_instance=device.kind is DeviceKind.MIG,
                            profile=device.mig_profile,
                            simulated=simulated,
                        ),
                        allocated=WHOLE_DEVICE_MILLI - device.free_milli,
                        in_service=takes_work,
                        takes_work=takes_work,
                    )
    for name, count in tally.counts.items():
        possible[name] += count.schedulable
    return {name: amount for name, amount in possible.items() if amount}


def _creatable_instances(nodes: Iterable[NodeCapacity]) -> Counter[str]:
    """Return how many more MIG instances of each profile could exist, profile by profile."""
    more: Counter[str] = Counter()
    for node in nodes:
        if node.unusable or not any(device.mig_mode for device in node.devices):
            continue
        existing = Counter(
            (device.parent_uuid, device.mig_profile) for device in node.devices if not device.unusable
        )
        for gpu in node.devices:
            layout = layout_of(gpu) if gpu.mig_mode and not gpu.unusable else None
            for profile in layout.profiles if layout else ():
                more[profile.name] += max(0, profile.most - existing[gpu.uuid, profile.name])
    return more


def allocations_by_workspace(
    workspaces: Collection[UUID],
) -> dict[str, list[tuple[UUID, Placement, ResourceRequest]]]:
    """Return the allocations of running workspaces by id: pool, placement and request on each node."""
    devices = AllocatedDevice.objects.filter(active=True)
    allocations = Allocation.objects.filter(released_at=None)
    if len(workspaces) <= MAX_FILTERED_BY_KEY:
        # Filter by key only for few workspaces: a list of thousands is slower than reading all.
        devices = devices.filter(allocation__workspace__in=workspaces)
        allocations = allocations.filter(workspace__in=workspaces)
    grants: dict[int, list[DeviceGrant]] = {}
    for allocation, uuid, of_mib, milli, memory in devices.values_list(
        "allocation_id", "device__uuid", "device__memory_mib", "milli", "memory_mib"
    ):
        grant = DeviceGrant(uuid, milli, _held_mib(of_mib, milli, memory))
        grants.setdefault(allocation, []).append(grant)
    wanted = set(workspaces)
    placements: dict[str, list[tuple[UUID, Placement, ResourceRequest]]] = {}
    for pk, workspace, pool, node, cpu, memory, disk in allocations.values_list(
        "pk", "workspace_id", "node__pool_id", "node__name", "cpu_milli", "memory_mib", "disk_mib"
    ):
        if workspace in wanted:
            place = Placement((NodePlacement(node, tuple(grants.get(pk, ()))),))
            request = ResourceRequest(cpu_milli=cpu, memory_mib=memory, disk_mib=disk)
            placements.setdefault(str(workspace), []).append((pool, place, request))
    return placements
