"""Counts each resource: total, in service, allocated and free. Used by pages, REST and metrics.

Amounts are in base units: thousandths of a device (a whole one is 1000), milli-CPU, MiB. Resource names are
those of `inventory.resources`. MIG instances are counted instead of the GPU that they partition.

- *total*: all, in any state;
- *in service*: neither failed, cordoned nor offline, on a node that reports;
- *allocated*: held by workspaces, in any state;
- *free*: in service, not being checked, not waiting for a scrub, and not allocated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import BigIntegerField, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models import Count as CountOf
from django.db.models.functions import Coalesce
from django.utils import timezone

from portal.fleet.inventory import resources
from portal.fleet.inventory.contact import contact_of_node, in_contact
from portal.fleet.inventory.device_states import (
    BUSY,
    KNOWN,
    OUT_OF_SERVICE,
    DeviceState,
    annotate_state,
    flag,
    is_partitioned,
)
from portal.fleet.inventory.maintenance_state import is_active
from portal.fleet.inventory.models import Allocation, Device, Node
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind

SITE = UUID(int=0)
_OF_NODES = (resources.CPU, resources.MEMORY, resources.DISK)


@dataclass(slots=True)
class Count:
    """Amounts of one resource."""

    total: int = 0
    in_service: int = 0
    allocated: int = 0
    free: int = 0

    @property
    def schedulable(self) -> int:
        """Maximum that can be allocated now: free and already allocated."""
        return self.allocated + self.free


Counts = dict[str, Count]


@dataclass(slots=True)
class Tally:
    """Sums of devices and node capacity by resource."""

    counts: Counts = field(default_factory=dict)

    def add(self, resource: str, *, total: int, in_service: int, allocated: int, free: int) -> None:
        count = self.counts.get(resource)
        if count is None:
            count = self.counts[resource] = Count()
        count.total += total
        count.in_service += in_service
        count.allocated += allocated
        count.free += max(0, free)

    def add_device(self, names: Iterable[str], *, allocated: int, in_service: bool, takes_work: bool) -> None:
        """Add a device to the resources `names`. `takes_work`: nothing prevents placement on it."""
        for name in names:
            self.add(
                name,
                total=WHOLE_DEVICE_MILLI,
                in_service=WHOLE_DEVICE_MILLI if in_service else 0,
                allocated=allocated,
                free=WHOLE_DEVICE_MILLI - allocated if takes_work else 0,
            )


@dataclass(frozen=True, slots=True)
class CountedDevice:
    """A device that can be allocated: an unpartitioned GPU or a MIG instance. `allocated` is out of 1000.

    `kept_back`: the unallocated part is not available until a scrub.
    """

    id: UUID
    node: UUID
    pool: UUID
    model: str
    profile: str
    mig_instance: bool
    simulated: bool
    allocated: int
    state: DeviceState
    heard: bool
    kept_back: bool = False
    closed: bool = False

    def add_to(self, tally: Tally, *names: str) -> None:
        """Add the device to its resources, or to those in `names`."""
        in_service = self.heard and self.state not in OUT_OF_SERVICE
        tally.add_device(
            names
            or resources.device_resources(
                self.model, mig_instance=self.mig_instance, profile=self.profile, simulated=self.simulated
            ),
            allocated=self.allocated,
            in_service=in_service,
            takes_work=in_service
            and self.state is not DeviceState.CHECKING
            and not (self.kept_back or self.closed),
        )


def countable_devices(rows: Iterable[Any]) -> list[CountedDevice]:
    """Return the devices (with state, node and pool) that can be allocated."""
    return [
        CountedDevice(
            row.pk,
            row.node_id,
            row.node.pool_id,
            row.model,
            row.mig_profile,
            row.kind == DeviceKind.MIG.value,
            row.node.pool.simulated,
            row.used_milli or 0,
            DeviceState(row.state),
            row.heard,
            row.kept_back,
            row.closed,
        )
        for row in rows
        if not row.partitioned
    ]


def devices(nodes: QuerySet[Node], now: datetime | None = None) -> list[CountedDevice]:
    """Return all devices on these nodes that can be allocated, in order of node and index. One query."""
    queryset = annotate_state(Device.objects.filter(KNOWN, node__in=nodes.order_by()), now or timezone.now())
    rows: Iterable[Any] = queryset.order_by("node__name", "index", "mig_start", "uuid").values_list(
        "partitioned", "pk", "node_id", "node__pool_id", "model", "mig_profile", "kind",
        "node__pool__simulated", "used_milli", "state", "heard", "kept_back", "closed",
    )  # fmt: skip
    return [
        CountedDevice(
            pk,
            node,
            pool,
            model,
            profile,
            kind == DeviceKind.MIG.value,
            simulated,
            used_milli or 0,
            DeviceState(state),
            *rest,
        )
        for partitioned, pk, node, pool, model, profile, kind, simulated, used_milli, state, *rest in rows
        if not partitioned
    ]


@dataclass(frozen=True, slots=True)
class StateCounts:
    """Numbers of devices: in use, idle, free, being checked, in maintenance, out of service."""

    in_use: int = 0
    idle: int = 0
    free: int = 0
    checking: int = 0
    maintenance: int = 0
    out_of_service: int = 0

    @property
    def total(self) -> int:
        return sum(astuple(self))

    def __add__(self, other: StateCounts) -> StateCounts:
        return StateCounts(*(own + its for own, its in zip(astuple(self), astuple(other), strict=True)))


def summarize(states: Mapping[DeviceState, int]) -> StateCounts:
    """Return the groups of states that pages, samples and plots show, from numbers of devices by state."""
    return StateCounts(
        in_use=sum(states.get(state, 0) for state in BUSY),
        idle=states.get(DeviceState.IDLE, 0),
        free=states.get(DeviceState.FREE, 0),
        checking=states.get(DeviceState.CHECKING, 0),
        maintenance=states.get(DeviceState.MAINTENANCE, 0),
        out_of_service=sum(states.get(state, 0) for state in OUT_OF_SERVICE),
    )


def states_by_pool(counted: Iterable[CountedDevice]) -> dict[UUID, Counter[DeviceState]]:
    """Count these devices by pool and state. Omits pools without devices."""
    states: dict[UUID, Counter[DeviceState]] = defaultdict(Counter)
    for device in counted:
        states[device.pool][device.state] += 1
    return states


def enabled_devices(now: datetime | None = None) -> list[CountedDevice]:
    """Return the devices of all enabled pools that can be allocated. One query."""
    return devices(Node.objects.filter(pool__enabled=True, retired=False), now)


def site(now: datetime | None = None) -> Counts:
    """Return the counts of all enabled pools. Simulated resources have separate names. Two queries."""
    return _counts_by(lambda _: SITE, Node.objects.filter(pool__enabled=True), now).get(SITE, {})


def site_totals() -> dict[str, int]:
    """Return the `total` of each resource in `site`, without computing states. Two queries."""
    totals: dict[str, int] = defaultdict(int)
    nodes = Node.objects.filter(pool__enabled=True).order_by()
    sums = nodes.values_list("pool__simulated").annotate(Sum("cpu_milli"), Sum("memory_mib"), Sum("disk_mib"))
    for simulated, *amounts in sums:
        for name, amount in zip(_OF_NODES, amounts, strict=True):
            if amount:
                totals[(resources.SIMULATED if simulated else "") + name] += amount
    kinds = (
        Device.objects.filter(KNOWN, ~is_partitioned(), node__pool__enabled=True)
        .order_by()
        .values_list("model", "mig_profile", "kind", "node__pool__simulated")
        .annotate(CountOf("pk"))
    )
    for model, profile, kind, simulated, number in kinds:
        mig_instance = kind == DeviceKind.MIG.value
        for name in resources.device_resources(
            model, mig_instance=mig_instance, profile=profile, simulated=simulated
        ):
            totals[name] += number * WHOLE_DEVICE_MILLI
    return dict(totals)


def counts_by_pool(
    nodes: QuerySet[Node], now: datetime | None = None, counted: Iterable[CountedDevice] | None = None
) -> dict[UUID, Counts]:
    """Return the counts of these nodes by pool. Omits pools without nodes.

    Two queries, or one if `counted` has the `devices` of these nodes.
    """
    return _counts_by(lambda pool: pool, nodes, now, counted)


def node_counts(node: Any) -> Counts:
    """Return the counts of a node from `selectors.nodes`. Runs no query, because all data is prefetched."""
    tally = Tally()
    allocated = [node.used_cpu_milli or 0, node.used_memory_mib or 0, node.used_disk_mib or 0]
    in_service = contact_of_node(node).heard and not node.cordoned and node.pool.enabled
    amounts = [node.cpu_milli, node.memory_mib, node.disk_mib]
    _add_node(
        tally,
        simulated=node.pool.simulated,
        in_service=in_service,
        closed=node.closed,
        amounts=amounts,
        allocated=allocated,
    )
    for device in countable_devices(node.devices.all()):
        device.add_to(tally)
    return tally.counts


def _add_node(
    tally: Tally,
    *,
    simulated: bool,
    in_service: bool,
    closed: bool,
    amounts: Sequence[int],
    allocated: Sequence[int],
) -> None:
    """Add CPU, memory and disk of a node and the allocated amounts. `closed`: its pool is in maintenance."""
    prefix = resources.SIMULATED if simulated else ""
    for name, total, used in zip(_OF_NODES, amounts, allocated, strict=True):
        if total or used:
            tally.add(
                prefix + name,
                total=total,
                in_service=total if in_service else 0,
                allocated=used,
                free=total - used if in_service and not closed else 0,
            )


def _counts_by(
    place: Callable[[UUID], UUID],
    nodes: QuerySet[Node],
    now: datetime | None,
    counted: Iterable[CountedDevice] | None = None,
) -> dict[UUID, Counts]:
    """Return the counts of these nodes, grouped by `place(pool)`."""
    tallies: dict[UUID, Tally] = defaultdict(Tally)
    now = now or timezone.now()
    for pool, simulated, in_service, closed, amounts, allocated in _nodes(nodes, now):
        _add_node(
            tallies[place(pool)],
            simulated=simulated,
            in_service=in_service,
            closed=closed,
            amounts=amounts,
            allocated=allocated,
        )
    for device in devices(nodes, now) if counted is None else counted:
        device.add_to(tallies[place(device.pool)])
    return {where: tally.counts for where, tally in tallies.items()}


def _nodes(
    nodes: QuerySet[Node], now: datetime
) -> Iterator[tuple[UUID, bool, bool, bool, list[int], list[int]]]:
    """Yield pool, simulated, in service, in maintenance, capacity and allocation of each node.

    Amounts are CPU, memory and disk.
    """
    allocations = Allocation.objects.filter(node=OuterRef("pk"), released_at=None).order_by().values("node")
    sums = [
        Coalesce(
            Subquery(allocations.annotate(sum=Sum(name)).values("sum"), output_field=BigIntegerField()), 0
        )
        for name in ("cpu_milli", "memory_mib", "disk_mib")
    ]
    in_service = in_contact() & Q(cordoned=False, pool__enabled=True)
    rows: Iterable[Any] = (
        nodes.annotate(in_service=flag(in_service), closed=flag(Q(is_active(now))))
        .order_by()
        .values_list(
            "pool_id", "pool__simulated", "in_service", "closed", "cpu_milli", "memory_mib", "disk_mib", *sums
        )
    )
    for pool, simulated, is_in_service, closed, *amounts in rows:
        yield pool, simulated, is_in_service, closed, amounts[:3], amounts[3:]
