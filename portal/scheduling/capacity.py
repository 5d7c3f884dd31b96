"""Reads the total and free capacity of pools for the placement engine.

Uses 8 queries including the pools, regardless of the number of nodes, one more with MIG, and two more with
homes on nodes. Reads rows as tuples, because an interactive request may have to read 10,000 devices.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, Sum
from django.utils import timezone

from portal.common.reasons.reason import Reason
from portal.fleet.inventory import maintenance_state, resources
from portal.fleet.inventory.contact import contact_of_node, contact_of_pool
from portal.fleet.inventory.counting import Tally
from portal.fleet.inventory.maintenance_state import MaintenancePlan
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, Node, Pool
from portal.scheduling import request_mix, software_requirements
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.mig import layout_of
from portal.scheduling.engine.placement.mig_layouts import Geometry, reported_geometry
from portal.scheduling.engine.placement.types import (
    HOME_LABEL,
    HOME_LABELS,
    DeviceCapacity,
    NodeCapacity,
    NodeSoftware,
)
from portal.scheduling.pool_nodes import PoolNodes
from portal.workspaces.homes import load as home_load
from portal.workspaces.homes import move_rates
from portal.workspaces.homes import places as home_places
from provisioning.gpu.shares import part_mib
from provisioning.traits import Placing
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


def load(pools: Iterable[Pool] | None = None, plan: MaintenancePlan | None = None) -> dict[UUID, PoolNodes]:
    """Return these pools, by default all, by primary key. Of disabled pools, only used capacity counts.

    `plan` is the maintenance plan; by default, it is read.
    """
    plan = plan or maintenance_state.plan(timezone.now())
    chosen = list(Pool.objects.filter(deleted_at=None).order_by("slug") if pools is None else pools)
    by_key = {pool.pk: pool for pool in chosen}
    nodes: dict[UUID, list[NodeCapacity]] = {pool.pk: [] for pool in chosen}
    for pool, node in _read(by_key, Q(pool__in=list(by_key)), _closed(plan, by_key)):
        nodes[pool].append(node)
    waiting = waiting_at_engines(chosen)
    mixes, rates = request_mix.mixes_by_pool(chosen), home_rates(chosen)
    return {
        pool.pk: PoolNodes(
            pool,
            tuple(nodes[pool.pk]),
            mixes[pool.pk],
            rates.get(pool.pk, 0),
            plan.of(pool.pk),
            waiting.get(pool.pk),
        )
        for pool in chosen
    }


def waiting_at_engines(pools: Iterable[Pool]) -> dict[UUID, int]:
    """Return the number of workspaces that wait at their engine, by pool, where the engine places them."""
    placing = [pool.pk for pool in pools if pool.traits.placing is Placing.ENGINE]
    if not placing:
        return {}
    rows = Allocation.objects.filter(node__pool__in=placing, released_at=None, granted_at__isnull=True)
    counts = rows.order_by().values_list("node__pool").annotate(Count("workspace", distinct=True))
    return dict.fromkeys(placing, 0) | dict(counts)


def _closed(plan: MaintenancePlan, pools: Iterable[UUID]) -> frozenset[UUID]:
    """Return the pools that are in maintenance."""
    return frozenset(pool for pool in pools if plan.of(pool) is not None)


def home_rates(pools: Iterable[Pool]) -> dict[UUID, int]:
    """Return the speed of home moves in MiB per second, for pools where it was measured."""
    return move_rates.measured([pool.pk for pool in pools if home_places.has_separate_homes(pool)])


def refresh_mixes(pools: Mapping[UUID, PoolNodes]) -> None:
    """Load the latest learnt mixes into the pools."""
    for key, mix in request_mix.mixes_by_pool([pool.pool for pool in pools.values()]).items():
        pools[key].set_mix(mix)


def refresh(pools: Mapping[UUID, PoolNodes], nodes: Iterable[UUID]) -> bool:
    """Reload some nodes and update existing clusters.

    Returns True if any of the nodes is partly unusable, because `total_capacity` may have changed then.
    """
    by_key = {key: pool.pool for key, pool in pools.items()}
    out = False
    closed = frozenset(key for key, pool in pools.items() if pool.maintenance is not None)
    for pool, node in _read(by_key, Q(pk__in=list(nodes), pool__in=list(by_key)), closed):
        pools[pool].replace(node)
        out |= node.unusable is not None or any(device.unusable for device in node.devices)
    for key, waiting in waiting_at_engines(by_key.values()).items():
        if waiting != pools[key].handed_over:
            pools[key].handed_over = waiting
            pools[key].invalidate_reasons()
    return out


def pool_of_node(pool: Pool, name: str) -> PoolNodes:
    """Return a pool with only the named node in its current state, or no nodes if the node does not exist."""
    plan = maintenance_state.plan(timezone.now())
    rows = _read({pool.pk: pool}, Q(pool=pool, name=name), _closed(plan, [pool.pk]))
    return PoolNodes(pool, tuple(node for _, node in rows), maintenance=plan.of(pool.pk))


def _read(
    pools: Mapping[UUID, Pool], selection: Q, closed: Collection[UUID] = ()
) -> Iterator[tuple[UUID, NodeCapacity]]:
    """Yield the selected nodes in order of name, each with its pool's key.

    Pools in `closed` are in maintenance.
    """
    nodes = list(
        Node.objects.filter(selection).order_by("name").defer("warnings", "accelerator_note", "facts")
    )
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
    # Among equal devices of a node, the first one is allocated.
    rows = Device.objects.filter(of_nodes, present=True).order_by("index", "uuid")
    layouts: dict[str, Geometry | None] = {}
    device_rows = list(rows.values_list(*DEVICE_COLUMNS))
    if any(row[MIG_MODE] for row in device_rows):
        # Facts are long, and placement needs only those of GPUs in MIG mode.
        reporting = rows.filter(mig_mode=True, facts__has_key="profiles")
        layouts = {
            uuid: reported_geometry(profiles)
            for uuid, profiles in reporting.values_list("uuid", "facts__profiles")
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
    """Return the device memory in MiB that an allocation takes; 0 for a whole device, which is not shared."""
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
    """Return the node's labels, with its own home label only if the pool keeps homes on nodes."""
    labels = [(name, value) for name, value in node.labels.items() if name not in HOME_LABELS]
    own = [(HOME_LABEL, node.name)] if home_places.has_separate_homes(pool) else []
    return tuple(sorted([*labels, *own]))


def total_capacity(pools: Iterable[PoolNodes]) -> dict[str, int]:
    """Count the usable accelerators: those in service, and the used part of others.

    Counts like `inventory.counting`, but from a snapshot instead of the database.
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
    """Return how many more MIG instances of each profile could be created, for one profile at a time."""
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
