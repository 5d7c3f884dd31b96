"""Presenters of the pool pages, with a fixed number of queries for any pool size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.catalog.selectors import templates_for
from portal.common.formatting import format_thousandths
from portal.fleet.inventory import counting, resources
from portal.fleet.inventory.contact import contact_of_pool, in_contact
from portal.fleet.inventory.counting import Count, CountedDevice, Counts, Tally
from portal.fleet.inventory.device_states import LOOKS, DeviceState, StateLook, flag
from portal.fleet.inventory.models import Device, Node, Pool
from portal.fleet.machines.conditions import NodeState, state_of_node
from portal.fleet.machines.selectors import machines_by_node
from portal.people.accounts.models import User
from portal.web.fleet.presenters.holders import HolderLink, holdings
from provisioning.types import (
    HOME_HOLD,
    WHOLE_DEVICE_MILLI,
    HomeHold,
    Isolation,
    LimitedResource,
    LimitEnforcement,
)

SLOTS_SHOWN = 64
WARNINGS_SHOWN = 20

ISOLATION_WORDS: Mapping[str, str | Promise] = {
    Isolation.NONE.value: gettext_lazy("none (plain processes)"),
    Isolation.SANDBOX.value: gettext_lazy("sandbox (bubblewrap)"),
    Isolation.GVISOR.value: gettext_lazy("gVisor in a sandbox"),
    Isolation.CONTAINER.value: gettext_lazy("containers"),
    Isolation.VM.value: gettext_lazy("virtual machines"),
}
LIMIT_WORDS: Mapping[str, str | Promise] = {
    LimitEnforcement.NONE.value: gettext_lazy("not enforced"),
    LimitEnforcement.CGROUP.value: gettext_lazy("control groups"),
    LimitEnforcement.RLIMIT.value: gettext_lazy("process limits"),
}
LIMITED_WORDS: Mapping[str, str | Promise] = {
    LimitedResource.CPU.value: gettext_lazy("CPU"),
    LimitedResource.MEMORY.value: gettext_lazy("memory"),
    LimitedResource.PROCESSES.value: gettext_lazy("processes"),
}
HOLD_WORDS: Mapping[str, str | Promise] = {
    HomeHold.PROJECT_QUOTA.value: gettext_lazy("project quota"),
    HomeHold.MEASURED.value: gettext_lazy("measured"),
}
CAPABILITY_WORDS: Mapping[str, str | Promise] = {
    "whole_gpu": gettext_lazy("whole GPUs"),
    "mig": gettext_lazy("MIG instances"),
    "shared_gpu": gettext_lazy("shared GPUs"),
    "multi_gpu": gettext_lazy("several GPUs per workspace"),
    "multi_node": gettext_lazy("several nodes per workspace"),
    "hot_attach": gettext_lazy("attaching devices while running"),
    "live_migration": gettext_lazy("live migration"),
    "rdma": gettext_lazy("RDMA"),
    "dpu_offload": gettext_lazy("DPU offload"),
    "memory_tiers": gettext_lazy("memory tiers"),
    "snapshots": gettext_lazy("snapshots"),
    "gvisor": gettext_lazy("gVisor"),
}


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """The devices of one model (and MIG profile).

    `slots` is empty if there are too many to draw, or if others use some, which are not known one by one.
    """

    model: str
    count: Count
    slots: tuple[str, ...]
    others: int = 0
    """Units in use by jobs of others, as reported by an engine that places by itself."""

    @property
    def total(self) -> str:
        return format_thousandths(self.count.total)

    @property
    def free(self) -> str:
        return format_thousandths(self._free)

    @property
    def used(self) -> str:
        return format_thousandths(self.count.allocated)

    @property
    def not_free(self) -> int:
        return self.count.total - self._free

    @property
    def _free(self) -> int:
        return max(0, self.count.free - self.others * WHOLE_DEVICE_MILLI)


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """Total and free capacity of a pool. CPU in milli-CPU, memory in MiB."""

    pool: Pool
    nodes: int = 0
    nodes_online: int = 0
    cpu: Count = field(default_factory=Count)
    memory: Count = field(default_factory=Count)
    warnings: int = 0
    accelerator_note: str = ""
    accelerators: tuple[DeviceLine, ...] = ()
    age: str = ""
    """Time since the last contact with a silent pool. Used amounts are then the last known ones,
    and nothing is free.
    """


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device on the pool's page."""

    device: Device
    node: str
    look: StateLook
    holders: tuple[HolderLink, ...]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node on the pool's page; `devices` are the devices that can be allocated."""

    node: Node
    cpu: Count
    memory: Count
    devices: Count
    slots: tuple[str, ...]
    isolation: str | Promise
    limits: str | Promise
    state: NodeState

    @property
    def devices_used(self) -> str:
        return format_thousandths(self.devices.allocated)

    @property
    def devices_free(self) -> str:
        return format_thousandths(self.devices.free)

    @property
    def devices_total(self) -> str:
        return format_thousandths(self.devices.total)


@dataclass(frozen=True, slots=True)
class WarningGroup:
    """A warning with the nodes that report the warning."""

    text: str
    where: str


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """A template's program, and the number of nodes that have the program."""

    name: str
    nodes: int
    where: str
    hint: str = ""


_SLOTS: Mapping[DeviceState, str] = {
    DeviceState.FREE: "",
    DeviceState.SHARED: "part",
    DeviceState.ALLOCATED: "taken",
    DeviceState.IDLE: "taken",
    DeviceState.CHECKING: "taken",
}


def slot_of(state: DeviceState) -> str:
    """Return the CSS class of a device: `taken`, `part`, empty if free, else the tone of its state."""
    return _SLOTS[state] if state in _SLOTS else LOOKS[state].tone


def capacities(pools: Iterable[Pool]) -> list[PoolCapacity]:
    """Return the capacity of all pools with three queries, simulated pools last."""
    pools = sorted(pools, key=lambda pool: (pool.simulated, pool.slug))
    nodes = Node.objects.filter(pool__in=[pool.pk for pool in pools], retired=False)
    devices: dict[UUID, list[CountedDevice]] = defaultdict(list)
    counted = counting.devices(nodes)
    for device in counted:
        devices[device.pool].append(device)
    counts = counting.counts_by_pool(nodes, counted=counted)
    facts: dict[UUID, list[tuple[bool, int, str]]] = defaultdict(list)
    for pool_id, online, warnings, note in nodes.annotate(heard=flag(in_contact())).values_list(
        "pool", "heard", "warnings", "accelerator_note"
    ):
        facts[pool_id].append((online, len(warnings), note))
    return [_capacity(pool, counts.get(pool.pk, {}), devices[pool.pk], facts[pool.pk]) for pool in pools]


def _capacity(
    pool: Pool, counts: Counts, devices: Sequence[CountedDevice], nodes: Sequence[tuple[bool, int, str]]
) -> PoolCapacity:
    prefix = resources.SIMULATED if pool.simulated else ""
    return PoolCapacity(
        pool=pool,
        nodes=len(nodes),
        nodes_online=sum(online for online, _warnings, _note in nodes),
        cpu=counts.get(prefix + resources.CPU, Count()),
        memory=counts.get(prefix + resources.MEMORY, Count()),
        warnings=sum(warnings for _online, warnings, _note in nodes),
        accelerator_note=next((note for _online, _warnings, note in nodes if note), ""),
        accelerators=tuple(_lines(devices, pool.used_by_others)),
        age=contact_of_pool(pool).age_text(timezone.now()),
    )


def _lines(devices: Iterable[CountedDevice], used_by_others: Mapping[str, int]) -> Iterable[DeviceLine]:
    groups: dict[str, list[CountedDevice]] = defaultdict(list)
    for device in devices:
        show_profile = device.mig_instance and device.profile and device.profile not in device.model
        groups[f"{device.model} · {device.profile}" if show_profile else device.model].append(device)
    for model, group in sorted(groups.items()):
        slots = tuple(slot_of(device.state) for device in group)
        others = used_by_others.get(model, 0)
        shown = slots if len(slots) <= SLOTS_SHOWN and not others else ()
        yield DeviceLine(model, total_count(group), shown, others)


def total_count(devices: Iterable[CountedDevice]) -> Count:
    """Return the total amounts of these devices, in thousandths of a device."""
    tally = Tally()
    for device in devices:
        device.add_to(tally, "")
    return tally.counts.get("", Count())


def node_rows(pool: Pool, nodes: Sequence[Any], now: datetime) -> tuple[list[NodeRow], list[Device]]:
    """Return rows for these nodes of the pool (from `selectors.nodes`), and their devices; one query."""
    machines = machines_by_node(pool, [node.name for node in nodes])
    rows: list[NodeRow] = []
    devices: list[Device] = []
    for node in nodes:
        its_devices = counting.countable_devices(node.devices.all())
        devices.extend(node.devices.all())
        real = not node.pool.simulated
        own, prefix = counting.node_counts(node), "" if real else resources.SIMULATED
        simulated = _("simulated")
        rows.append(
            NodeRow(
                node=node,
                cpu=own.get(prefix + resources.CPU, Count()),
                memory=own.get(prefix + resources.MEMORY, Count()),
                devices=total_count(its_devices),
                slots=tuple(slot_of(device.state) for device in its_devices),
                isolation=ISOLATION_WORDS.get(node.isolation, node.isolation) if real else simulated,
                limits=limits_of(node),
                state=state_of_node(node, machines.get(node.name), now),
            )
        )
    return rows, devices


def limits_of(node: Node) -> str | Promise:
    """Return how a node limits its workspaces, and the limited resources."""
    if node.pool.simulated:
        return _("simulated")
    names = ", ".join(
        str(LIMITED_WORDS.get(resource, resource))
        for resource in node.limited
        if resource != LimitedResource.DISK.value
    )
    limits_text = LIMIT_WORDS.get(node.limits, node.limits)
    text = _("%(how)s: %(held)s") % {"how": limits_text, "held": names} if names else limits_text
    if LimitedResource.DISK.value not in node.limited:
        return text
    hold = node.facts.get(HOME_HOLD, HomeHold.MEASURED.value)
    return _("%(limits)s; home folder: %(hold)s") % {"limits": text, "hold": HOLD_WORDS.get(hold, hold)}


def device_rows(actor: User, devices: Sequence[Any]) -> list[DeviceRow]:
    """Return rows for these devices (with state). Workspaces are named only if visible to the user."""
    held = holdings(actor, devices)
    return [
        DeviceRow(
            device=device,
            node=device.node.name,
            look=LOOKS[DeviceState(device.state)],
            holders=tuple(holding.holder for holding in held.get(device.pk, ())),
        )
        for device in devices
    ]


def warnings_of(pool: Pool) -> list[WarningGroup]:
    """Return the distinct warnings of all nodes with their nodes, most frequent first."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for name, warnings in pool.nodes.values_list("name", "warnings"):
        for text in warnings:
            nodes[text].append(name)
    groups = sorted(nodes.items(), key=lambda item: (-len(item[1]), item[0]))[:WARNINGS_SHOWN]
    return [
        WarningGroup(
            text,
            _("On %(node)s.") % {"node": names[0]}
            if len(names) == 1
            else _("On %(node)s and %(count)s more.") % {"node": names[0], "count": len(names) - 1},
        )
        for text, names in groups
    ]


def programs_of(actor: User, pool: Pool) -> list[ProgramRow]:
    """Return the program of each template that the actor may use, and its number of nodes.

    A simulated pool has every program.
    """
    templates = list(templates_for(actor).filter(enabled=True).order_by("position", "name"))
    if pool.simulated:
        return [ProgramRow(item.name, 1, _("simulated")) for item in templates]
    installed = [programs for (programs,) in pool.nodes.values_list("programs")]
    rows = []
    for item in templates:
        count = sum(1 for programs in installed if programs.get(item.program))
        where = _("on every node")
        if count != len(installed):
            where = _("on %(count)s of %(total)s nodes") % {"count": count, "total": len(installed)}
        rows.append(
            ProgramRow(item.name, count, where if len(installed) > 1 else _("installed"), item.install_hint)
        )
    return rows
