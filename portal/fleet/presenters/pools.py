"""What the pages of pools show, gathered in a fixed number of queries however large a pool is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, Sum
from django.urls import reverse

from portal.accounts.models import User
from portal.catalog.models import Template
from portal.inventory.models import AllocatedDevice, Allocation, Device, Node, Pool
from portal.workspaces.models import Workspace
from portal.workspaces.policies import visible_to
from provisioning.types import WHOLE_DEVICE_MILLI, Isolation, LimitEnforcement

SLOTS_SHOWN = 64
WARNINGS_SHOWN = 20

ISOLATION_WORDS = {
    Isolation.NONE.value: "nothing: plain processes",
    Isolation.SANDBOX.value: "a sandbox (bubblewrap)",
    Isolation.CONTAINER.value: "containers",
    Isolation.VM.value: "virtual machines",
}
LIMIT_WORDS = {
    LimitEnforcement.NONE.value: "nothing: not enforced",
    LimitEnforcement.CGROUP.value: "control groups",
    LimitEnforcement.RLIMIT.value: "process limits",
}
CAPABILITY_WORDS = {
    "whole_gpu": "whole GPUs",
    "mig": "MIG instances",
    "shared_gpu": "shared GPUs",
    "multi_gpu": "several GPUs at once",
    "multi_node": "several nodes at once",
    "hot_attach": "attaching devices while running",
    "live_migration": "live migration",
    "rdma": "RDMA",
    "dpu_offload": "DPU offload",
    "memory_tiers": "memory tiers",
    "snapshots": "snapshots",
}


@dataclass(frozen=True, slots=True)
class ModelLine:
    """How many accelerators of one model there are; `slots` is empty where there are too many to draw."""

    model: str
    total: int
    free: int
    slots: tuple[str, ...]

    @property
    def taken(self) -> int:
        return self.total - self.free


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """What a pool's usable nodes have and what is held of it. CPU in milli-CPU, memory in MiB."""

    pool: Pool
    nodes: int = 0
    nodes_online: int = 0
    cpu_milli: int = 0
    used_cpu_milli: int = 0
    memory_mib: int = 0
    used_memory_mib: int = 0
    warnings: int = 0
    accelerator_note: str = ""
    accelerators: tuple[ModelLine, ...] = ()

    @property
    def free_cpu_milli(self) -> int:
        return max(self.cpu_milli - self.used_cpu_milli, 0)

    @property
    def free_memory_mib(self) -> int:
        return max(self.memory_mib - self.used_memory_mib, 0)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a device; `url` and the workspace's name only where the reader may see it."""

    name: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device of the pool's page."""

    device: Device
    node: str
    taken_milli: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of the pool's page."""

    node: Node
    free_cpu_milli: int
    free_memory_mib: int
    slots: tuple[str, ...]
    isolation: str
    limits: str

    @property
    def devices_free(self) -> int:
        return sum(1 for slot in self.slots if not slot)


@dataclass(frozen=True, slots=True)
class WarningGroup:
    """One warning, and the nodes that report it."""

    text: str
    where: str


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """A template's program, and on how many nodes it is installed."""

    name: str
    nodes: int
    where: str
    hint: str = ""


@dataclass(slots=True)
class _Models:
    slots: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def slot_of(device: Device, taken_milli: int) -> str:
    """How a device is drawn: `bad`, `taken`, `part`, or nothing for a free one."""
    if not device.present or not device.healthy:
        return "bad"
    if taken_milli >= WHOLE_DEVICE_MILLI:
        return "taken"
    return "part" if taken_milli else ""


def capacities(pools: Iterable[Pool]) -> list[PoolCapacity]:
    """The capacity of each pool, in four queries for all of them; simulated ones last."""
    pools = sorted(pools, key=lambda pool: (pool.simulated, pool.slug))
    ids = [pool.pk for pool in pools]
    usable = Q(online=True, cordoned=False)
    totals: dict[UUID, Any] = {
        row["pool"]: row
        for row in Node.objects.filter(pool__in=ids)
        .order_by()
        .values("pool")
        .annotate(
            count=Count("pk"),
            online_count=Count("pk", filter=Q(online=True)),
            cpu=Sum("cpu_milli", filter=usable),
            memory=Sum("memory_mib", filter=usable),
        )
    }
    used: dict[UUID, Any] = {
        row["node__pool"]: row
        for row in Allocation.objects.filter(node__pool__in=ids, released_at=None)
        .order_by()
        .values("node__pool")
        .annotate(cpu=Sum("cpu_milli"), memory=Sum("memory_mib"))
    }
    notes: dict[UUID, tuple[int, str]] = {}
    for pool_id, warnings, note in Node.objects.filter(pool__in=ids).values_list(
        "pool", "warnings", "accelerator_note"
    ):
        count, first = notes.get(pool_id, (0, ""))
        notes[pool_id] = (count + len(warnings), first or note)
    by_pool: dict[UUID, _Models] = defaultdict(_Models)
    for device in (
        Device.objects.filter(node__pool__in=ids, present=True)
        .select_related("node")
        .annotate(taken=Sum("allocated__milli", filter=Q(allocated__active=True)))
        .order_by("node__name", "index")
    ):
        slot = slot_of(device, device.taken or 0) if device.node.online else "bad"
        by_pool[device.node.pool_id].slots[device.model].append(slot)
    return [
        PoolCapacity(
            pool=pool,
            nodes=totals.get(pool.pk, {}).get("count", 0),
            nodes_online=totals.get(pool.pk, {}).get("online_count", 0),
            cpu_milli=totals.get(pool.pk, {}).get("cpu") or 0,
            used_cpu_milli=used.get(pool.pk, {}).get("cpu") or 0,
            memory_mib=totals.get(pool.pk, {}).get("memory") or 0,
            used_memory_mib=used.get(pool.pk, {}).get("memory") or 0,
            warnings=notes.get(pool.pk, (0, ""))[0],
            accelerator_note=notes.get(pool.pk, (0, ""))[1],
            accelerators=tuple(
                ModelLine(
                    model=model,
                    total=len(slots),
                    free=slots.count(""),
                    slots=tuple(slots) if len(slots) <= SLOTS_SHOWN else (),
                )
                for model, slots in sorted(by_pool[pool.pk].slots.items())
            ),
        )
        for pool in pools
    ]


def node_rows(nodes: Sequence[Any]) -> tuple[list[NodeRow], list[Device]]:
    """Rows for these nodes (of `selectors.nodes`), and their devices, with `used_milli`."""
    rows: list[NodeRow] = []
    devices: list[Device] = []
    for node in nodes:
        own = list(node.devices.all())
        devices.extend(own)
        real = not node.pool.simulated
        rows.append(
            NodeRow(
                node=node,
                free_cpu_milli=max(node.cpu_milli - (node.used_cpu_milli or 0), 0),
                free_memory_mib=max(node.memory_mib - (node.used_memory_mib or 0), 0),
                slots=tuple(slot_of(device, device.used_milli or 0) for device in own),
                isolation=ISOLATION_WORDS.get(node.isolation, node.isolation) if real else "simulated",
                limits=LIMIT_WORDS.get(node.limits, node.limits) if real else "simulated",
            )
        )
    return rows, devices


def device_rows(actor: User, devices: Sequence[Any]) -> list[DeviceRow]:
    """Rows for these devices; a holder is named only to those who may see the workspace."""
    holders: dict[UUID, list[Holder]] = defaultdict(list)
    visible = set(visible_to(actor, Workspace.objects.live()).values_list("pk", flat=True) if devices else ())
    for item in AllocatedDevice.objects.filter(device__in=devices, active=True).select_related(
        "allocation__workspace__owner"
    ):
        workspace = item.allocation.workspace
        if workspace.pk in visible:
            url = reverse("workspaces:detail", args=[workspace.pk])
            holder = Holder(f"{workspace.name} of {workspace.owner.username}", url)
        else:
            holder = Holder("another team")
        holders[item.device_id].append(holder)
    return [
        DeviceRow(
            device=device,
            node=device.node.name,
            taken_milli=device.used_milli or 0,
            holders=tuple(holders.get(device.pk, ())),
        )
        for device in devices
    ]


def warnings_of(pool: Pool) -> list[WarningGroup]:
    """The warnings of all nodes, each once with where it holds, the most frequent first."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for name, warnings in pool.nodes.values_list("name", "warnings"):
        for text in warnings:
            nodes[text].append(name)
    groups = sorted(nodes.items(), key=lambda item: (-len(item[1]), item[0]))[:WARNINGS_SHOWN]
    return [
        WarningGroup(
            text, f"On {names[0]}." if len(names) == 1 else f"On {names[0]} and {len(names) - 1} more."
        )
        for text, names in groups
    ]


def programs_of(pool: Pool) -> list[ProgramRow]:
    """Each template's program and where it is installed. A simulated pool has every program."""
    templates = list(Template.objects.filter(enabled=True).order_by("position", "name"))
    if pool.simulated:
        return [ProgramRow(item.name, 1, "simulated") for item in templates]
    installed = [programs for (programs,) in pool.nodes.values_list("programs")]
    rows = []
    for item in templates:
        count = sum(1 for programs in installed if programs.get(item.program))
        where = "on every node" if count == len(installed) else f"on {count} of {len(installed)} nodes"
        rows.append(
            ProgramRow(item.name, count, where if len(installed) > 1 else "installed", item.install_hint)
        )
    return rows
