"""Presenter of the page of a node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.events.models import Event, TargetKind
from portal.common.formatting import format_cores, format_memory, format_number, format_thousandths
from portal.common.reasons.wording import sentence_of
from portal.fleet.inventory import counting, missing_gpus, resources, selectors
from portal.fleet.inventory.counting import Count, Counts
from portal.fleet.inventory.device_states import KNOWN
from portal.fleet.inventory.missing_gpus import MissingGpu
from portal.fleet.inventory.models import Device, Node
from portal.fleet.machines.conditions import NodeState, notes_of, state_of_node
from portal.fleet.machines.policies import may_see
from portal.fleet.machines.selectors import machines_by_node
from portal.gpu_checks import joint, pairs
from portal.people.accounts.models import User
from portal.web.fleet.presenters import pools
from portal.web.fleet.presenters.gpu_details import GpuDetails, details_of
from portal.web.fleet.presenters.history import newest_events
from portal.web.fleet.presenters.holders import HolderLink, link_of
from portal.workspaces.homes import evacuations
from portal.workspaces.homes.evacuation_presenters import homes_text
from portal.workspaces.homes.places import has_separate_homes
from portal.workspaces.models import Workspace
from portal.workspaces.policies import visible_to
from provisioning.types import HEADROOM, PRESSURE, DeviceKind


@dataclass(frozen=True, slots=True)
class NodePage:
    """A node with its devices and facts.

    `homes` describes its home folders if the user may see them; `homes_go_to` is the target of an
    evacuation.
    """

    node: Node
    state: NodeState
    notes: tuple[str, ...]
    gpus: tuple[GpuDetails, ...]
    holders: tuple[HolderLink, ...]
    facts: tuple[tuple[str, str], ...]
    events: tuple[Event, ...]
    homes: str
    homes_go_to: str
    link: LinkForm | None
    joint: JointForm | None
    may: bool


@dataclass(frozen=True, slots=True)
class LinkForm:
    """The nodes to which the link can be checked now; `refused` explains why there are none."""

    nodes: tuple[Node, ...]
    refused: str


@dataclass(frozen=True, slots=True)
class JointForm:
    """A check of all GPUs at once: their number, or why the check is not possible now."""

    gpus: int
    refused: str


def node_page(actor: User, node: Node, now: datetime) -> NodePage:
    """Return the data of a node's page."""
    devices = list(
        selectors.devices_with_state(now).filter(KNOWN, node=node).order_by("index", "mig_start", "uuid")
    )
    workspaces = Workspace.objects.filter(allocations__node=node, allocations__released_at=None).distinct()
    visible = set(visible_to(actor, workspaces).values_list("pk", flat=True))
    holders = []
    hidden = 0
    for workspace in workspaces.select_related("owner").order_by("name"):
        if workspace.pk in visible:
            holders.append(link_of(workspace.pk, workspace.name, workspace.owner.username))
        else:
            hidden += 1
    if hidden:
        holders.append(
            HolderLink(
                ngettext("%(count)s of another team", "%(count)s of other teams", hidden) % {"count": hidden}
            )
        )
    only = Node.objects.filter(pk=node.pk)
    counts = counting.counts_by_pool(only, now, counting.countable_devices(devices)).get(node.pool_id, {})
    machine = machines_by_node(node.pool, [node.name]).get(node.name)
    homes, homes_go_to = _homes(actor, node)
    missing_texts = [_missing_text(gpu) for gpu in missing_gpus.missing_gpus_of(node, devices)]
    return NodePage(
        node=node,
        state=state_of_node(node, machine, now),
        notes=(*missing_texts, *(notes_of(machine, now) if machine else ())),
        gpus=details_of(actor, devices, now),
        holders=tuple(holders),
        facts=tuple(_facts_of_node(node, counts)),
        events=newest_events(node.pool, TargetKind.NODE, node.name),
        homes=homes,
        homes_go_to=homes_go_to,
        link=_link(actor, node),
        joint=_joint(actor, node, devices),
        may=actor.operates,
    )


def _link(actor: User, node: Node) -> LinkForm | None:
    """Return the form for link checks, for operators on nodes with RDMA, else `None`."""
    if not actor.operates or pairs.RDMA not in node.provides:
        return None
    others, refused = pairs.checkable_nodes(node)
    return LinkForm(tuple(others), "" if refused is None else sentence_of(refused))


def _joint(actor: User, node: Node, devices: Iterable[Device]) -> JointForm | None:
    """Return the form for a check of all GPUs at once, for operators on multi-GPU nodes, else `None`."""
    gpus = [device for device in devices if device.kind == DeviceKind.GPU and not device.mig_mode]
    if not actor.operates or len(gpus) < joint.MIN_GPUS:
        return None
    refused = joint.refusal(node)
    return JointForm(joint.participants(node).count(), "" if refused is None else sentence_of(refused))


def _missing_text(gpu: MissingGpu) -> str:
    values = {"bus": gpu.pci_bus_id, "model": gpu.model, "todo": gpu.next_action}
    if gpu.model:
        return _("The %(model)s at %(bus)s is missing. %(todo)s") % values
    return _("The GPU at %(bus)s is missing. %(todo)s") % values


def _homes(actor: User, node: Node) -> tuple[str, str]:
    if not (may_see(actor) and has_separate_homes(node.pool)):
        return "", ""
    homes, last = evacuations.homes_on_node(actor, node), evacuations.latest_evacuation(actor, node)
    going = last.target_name if last is not None and last.is_open else ""
    return (homes_text(homes), going) if homes.homes or going else ("", "")


def _pressure_text(value: Any) -> str:
    """Return the pressure that a node reports as text, without missing values."""
    names = {"cpu": _("CPU"), "memory": _("memory"), "io": _("disks")}
    numbers = value if isinstance(value, dict) else {}
    return ", ".join(
        _("%(name)s %(percent)s %%") % {"name": name, "percent": format_number(value)}
        for key, name in names.items()
        if isinstance(value := numbers.get(key), int | float)
    )


def _headroom_text(value: Any) -> str:
    """Return the recent headroom that a node reports as text; empty if missing."""
    names = {"cpu_idle": _("CPU"), "memory_left": _("memory")}
    numbers = value if isinstance(value, dict) else {}
    return ", ".join(
        _("%(name)s %(percent)s %%") % {"name": name, "percent": format_number(value, 1)}
        for key, name in names.items()
        if isinstance(value := numbers.get(key), int | float)
    )


def _facts_of_node(node: Node, counts: Counts) -> Iterable[tuple[str, str]]:
    prefix = resources.SIMULATED if node.pool.simulated else ""
    cpu = counts.get(prefix + resources.CPU, Count())
    memory = counts.get(prefix + resources.MEMORY, Count())
    free = _("%(free)s free of %(total)s")
    yield _("Cores"), free % {"free": format_thousandths(cpu.free), "total": format_cores(cpu.total)}
    yield _("Memory"), free % {"free": format_memory(memory.free), "total": format_memory(memory.total)}
    yield _("Limits of workspaces"), str(pools.limits_of(node))
    facts = node.facts
    if waited := _pressure_text(facts.get(PRESSURE)):
        yield _("Pressure, last minute"), waited
    if left := _headroom_text(facts.get(HEADROOM)):
        yield _("Free, last 5 minutes"), left
    processor = facts.get("cpu") or {}
    if processor.get("model"):
        yield _("Processor"), str(processor["model"])
    if processor.get("features"):
        names = (str(name).upper().replace("_", " ") for name in processor["features"])
        yield _("Instructions"), ", ".join(name.replace("AVX512", "AVX-512") for name in names)
    for numa_node in facts.get("numa") or ():
        kind = "" if numa_node.get("kind") in (None, "", "dram") else f" ({str(numa_node['kind']).upper()})"
        text = f"{format_memory(numa_node.get('memory_mib') or 0)}{kind}"
        if numa_node.get("cpus"):
            text += _(", CPUs %(cpus)s") % {"cpus": numa_node["cpus"]}
        yield _("NUMA node %(number)s") % {"number": numa_node.get("number", "?")}, text
    for numa_node in facts.get("rdma") or ():
        state = _("up") if numa_node.get("active") else numa_node.get("state") or _("down")
        rate = (
            f", {format_number(numa_node['rate_mbit_s'] // 1000)} Gbit/s"
            if numa_node.get("rate_mbit_s")
            else ""
        )
        port = _("%(device)s port %(port)s") % {
            "device": numa_node.get("device"),
            "port": numa_node.get("port"),
        }
        yield _("RDMA"), f"{port}: {state}, {numa_node.get('link_layer')}{rate}"
    for numa_node in facts.get("dpus") or ():
        yield (
            _("DPU"),
            _("%(name)s at %(slot)s") % {"name": numa_node.get("name"), "slot": numa_node.get("pci_slot")},
        )
    if node.driver_version:
        yield _("NVIDIA driver"), node.driver_version
    if node.cuda_version:
        yield _("CUDA up to"), node.cuda_version
    if node.provides:
        yield _("Provides"), ", ".join(node.provides)
    if node.rack:
        yield _("Rack"), node.rack
    if node.block:
        yield _("Block"), node.block
    for key, value in sorted(node.labels.items()):
        yield key, str(value)
