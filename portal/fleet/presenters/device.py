"""What the pages of a device and of a node show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.common.formatting import format_cores, format_memory
from portal.events.models import Event
from portal.fleet.presenters import pools
from portal.gpu_checks.presenters import RECOVERY, Block, block, worded
from portal.inventory import counting, resources, selectors, series
from portal.inventory.cordons import name_of
from portal.inventory.counting import Count, Counts
from portal.inventory.device_states import KNOWN, LOOKS, DeviceState, StateLook
from portal.inventory.models import Device, Node, Pool
from portal.workspaces.models import Workspace
from portal.workspaces.policies import visible_to
from provisioning.types import DeviceKind

EVENTS_READ, EVENTS_SHOWN = 100_000, 12
"""Among so many of the newest entries of the whole log is searched; so many are shown."""
SLICES = 8

_FACTS: Mapping[str, str] = {
    "pci_bus_id": "PCI address",
    "pci_switch": "PCI switch",
    "ecc": "ECC",
    "ecc_pending": "ECC after the next reset",
    "power_limit_mw": "Power limit",
    "power_range_mw": "Power range",
    "max_clocks_mhz": "Highest clocks",
    "temperature_limits_c": "Temperature limits",
    "persistence": "Persistence mode",
    "nvlink": "NVLink",
    "remapped_rows": "Remapped rows",
    "remap_pending": "Remapping pending",
    "remap_failed": "Remapping failed",
    "retired_pages": "Retired pages",
    "recovery_action": "The driver asks for",
    "virtual": "Virtual GPU",
    "mig_pending": "MIG after the next reset",
    "sms": "Streaming multiprocessors",
    "memory_slices": "Memory slices",
}
_NOT_LISTED = frozenset({"profiles", "pcie_max_gen", "pcie_max_width"})


@dataclass(frozen=True, slots=True)
class Part:
    """An instance of a split GPU on its memory axis."""

    device: Device
    look: StateLook
    state: DeviceState
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class DevicePage:
    """One device. `recovery` is what brings it back where it is out."""

    device: Device
    name: str
    state: DeviceState
    look: StateLook
    why: str
    recovery: str
    idle_s: int
    holders: tuple[pools.Holder, ...]
    parts: tuple[Part, ...]
    parent: Device | None
    facts: tuple[tuple[str, str], ...]
    events: tuple[Event, ...]
    checks: Block
    may: bool


@dataclass(frozen=True, slots=True)
class NodePage:
    """One node with its devices and what it is made of."""

    node: Node
    devices: tuple[tuple[Device, DeviceState, StateLook, str], ...]
    holders: tuple[pools.Holder, ...]
    facts: tuple[tuple[str, str], ...]
    events: tuple[Event, ...]
    may: bool


def device_page(actor: User, device: Device, now: datetime) -> DevicePage:
    """Everything about one device (of `selectors.devices_with_state`)."""
    state = DeviceState(device.state)  # type: ignore[attr-defined]
    parts = tuple(_parts(device, now))
    rows = pools.device_rows(actor, [device, *(part.device for part in parts)])
    parent = None
    if device.kind == DeviceKind.MIG:
        parent = Device.objects.filter(uuid=device.parent_uuid).first()
    return DevicePage(
        device=device,
        name=name_of(device),
        state=state,
        look=LOOKS[state],
        why=why(device),
        recovery=RECOVERY.get(device.recovery, ""),
        idle_s=series.idle_s(device, now) if state is DeviceState.IDLE else 0,
        holders=tuple(dict.fromkeys(holder for row in rows for holder in row.holders)),
        parts=parts,
        parent=parent,
        facts=tuple(_facts_of(device)),
        events=_events_of(device),
        checks=block(actor, device),
        may=actor.operates,
    )


def why(device: Any) -> str:
    """Why it takes no work now, in one sentence; empty where it does."""
    if not device.present:
        return "Its node does not see it any more."
    if not device.node.online:
        return f"{device.node.name} is offline."
    if device.cordoned:
        return worded(device.cordon_reason) or "An operator has taken it out of placement."
    if not device.healthy:
        return device.health_note or "Its driver reports trouble."
    if device.gpu_out:
        return "The GPU that it is part of is out of use."
    if device.node.cordoned:
        reason = f": {device.node.cordon_reason}" if device.node.cordon_reason else ""
        return f"{device.node.name} is cordoned{reason}."
    if device.checking:
        return "A check or a scrub is on it: it takes work again when that has passed."
    return worded(device.warning)


def _parts(device: Device, now: datetime) -> Iterable[Part]:
    if device.kind == DeviceKind.MIG:
        return
    instances = selectors.devices_with_state(now).filter(
        parent_uuid=device.uuid, node=device.node_id, present=True
    )
    for each in instances.order_by("mig_start"):
        state = DeviceState(each.state)
        size = each.facts.get("memory_slices") or 1
        yield Part(each, LOOKS[state], state, max(0, each.mig_start), max(1, min(int(size), SLICES)))


def _facts_of(device: Device) -> Iterable[tuple[str, str]]:
    yield "Model", device.model
    yield "UUID", device.uuid
    yield "Memory", f"{device.memory_mib:,} MiB"
    if device.mig_profile:
        yield "MIG profile", device.mig_profile
    if device.compute_capability:
        yield "Compute capability", device.compute_capability
    if device.numa >= 0:
        yield "NUMA node", str(device.numa)
    if device.island:
        yield "NVLink island", device.island
    facts = device.facts
    if facts.get("pcie_max_gen"):
        yield "PCIe", f"generation {facts['pcie_max_gen']} × {facts.get('pcie_max_width') or '?'}"
    for name, value in facts.items():
        if name in _NOT_LISTED or value is None or value == {}:
            continue
        yield _FACTS.get(name, name.replace("_", " ").capitalize()), _said(name, value)
    node = device.node
    if node.driver_version:
        cuda = f", CUDA {node.cuda_version}" if node.cuda_version else ""
        yield "Driver", f"{node.driver_version}{cuda}"


def _said(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if name.endswith("_mw"):
        watts = [f"{each / 1000:.0f}" for each in (value if isinstance(value, list) else [value])]
        return f"{'–'.join(watts)} W"
    if isinstance(value, dict):
        unit = " MHz" if name.endswith("_mhz") else " °C" if name.endswith("_c") else ""
        return ", ".join(
            f"{'SM' if key == 'sm' else key.replace('_', ' ')} {_plain(each)}{unit}"
            for key, each in value.items()
            if each is not None
        )
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _plain(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _events(pool: Pool, about: Q) -> tuple[Event, ...]:
    """The newest entries of a pool's log that are about something."""
    newest = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    told = Event.objects.filter(about, pool=pool, pk__gt=newest - EVENTS_READ).order_by("-pk")
    return tuple(told[:EVENTS_SHOWN])


def _events_of(device: Device) -> tuple[Event, ...]:
    """What happened to it lately; an entry about several devices names them all."""
    named = Q(data__device=device.uuid) | Q(data__devices__icontains=f'"{device.uuid}"')
    return _events(device.node.pool, named & Q(kind__startswith="device."))


def node_page(actor: User, node: Node, now: datetime) -> NodePage:
    """Everything about one node."""
    devices = list(
        selectors.devices_with_state(now).filter(KNOWN, node=node).order_by("index", "mig_start", "uuid")
    )
    here = Workspace.objects.filter(allocations__node=node, allocations__released_at=None).distinct()
    visible = set(visible_to(actor, here).values_list("pk", flat=True))
    holders = []
    hidden = 0
    for workspace in here.select_related("owner").order_by("name"):
        if workspace.pk in visible:
            name = f"{workspace.name} of {workspace.owner.username}"
            holders.append(pools.Holder(name, reverse("workspaces:detail", args=[workspace.pk])))
        else:
            hidden += 1
    if hidden:
        holders.append(pools.Holder(f"{hidden} of other teams"))
    only = Node.objects.filter(pk=node.pk)
    counts = counting.by_pool(only, now, counting.counted(devices)).get(node.pool_id, {})
    rows = []
    for device in devices:
        state = DeviceState(device.state)
        rows.append((device, state, LOOKS[state], why(device)))
    return NodePage(
        node=node,
        devices=tuple(rows),
        holders=tuple(holders),
        facts=tuple(_facts_of_node(node, counts)),
        events=_events(node.pool, Q(data__node=node.name)),
        may=actor.operates,
    )


def _facts_of_node(node: Node, counts: Counts) -> Iterable[tuple[str, str]]:
    prefix = resources.SIMULATED if node.pool.simulated else ""
    cpu = counts.get(prefix + resources.CPU, Count())
    memory = counts.get(prefix + resources.MEMORY, Count())
    free = _("%(free)s free of %(total)s")
    yield _("Cores"), free % {"free": format_cores(cpu.free), "total": format_cores(cpu.total)}
    yield _("Memory"), free % {"free": format_memory(memory.free), "total": format_memory(memory.total)}
    facts = node.facts
    processor = facts.get("cpu") or {}
    if processor.get("model"):
        yield _("Processor"), str(processor["model"])
    if processor.get("features"):
        names = (str(name).upper().replace("_", " ") for name in processor["features"])
        yield "Instructions", ", ".join(name.replace("AVX512", "AVX-512") for name in names)
    for each in facts.get("numa") or ():
        kind = "" if each.get("kind") in (None, "", "dram") else f" ({str(each['kind']).upper()})"
        words = f"{(each.get('memory_mib') or 0) / 1024:,.0f} GiB{kind}"
        if each.get("cpus"):
            words += f", CPUs {each['cpus']}"
        yield f"NUMA node {each.get('number', '?')}", words
    for each in facts.get("rdma") or ():
        state = "up" if each.get("active") else each.get("state") or "down"
        rate = f", {each['rate_mbit_s'] // 1000} Gbit/s" if each.get("rate_mbit_s") else ""
        yield "RDMA", f"{each.get('device')} port {each.get('port')}: {state}, {each.get('link_layer')}{rate}"
    for each in facts.get("dpus") or ():
        yield "DPU", f"{each.get('name')} at {each.get('pci_slot')}"
    if node.driver_version:
        yield "NVIDIA driver", node.driver_version
    if node.cuda_version:
        yield "CUDA up to", node.cuda_version
    if node.provides:
        yield "Provides", ", ".join(node.provides)
    if node.rack or node.block:
        yield "Stands in", ", ".join(filter(None, (node.rack, node.block)))
    for key, value in sorted(node.labels.items()):
        yield key, str(value)
