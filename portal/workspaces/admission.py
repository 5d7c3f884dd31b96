"""The verdict on a request. The form's preview and the creation itself run the same code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db.models import Prefetch, Q, Sum

from portal.catalog.models import Flavor, Template
from portal.inventory.models import Device, Node, Pool, PoolState
from portal.inventory.services import config_of
from provisioning import messages
from provisioning.errors import ProvisioningError
from provisioning.placement.engine import emptied, place
from provisioning.registry import driver_for
from provisioning.types import (
    WHOLE_DEVICE_MILLI,
    AgentSpec,
    AppSpec,
    DeviceState,
    NodeState,
    Placed,
    Placement,
    ResourceRequest,
    WorkspaceRef,
    WorkspaceSpec,
)

OFFLINE = "is offline"
CORDONED = "is cordoned by an operator"
UNREACHABLE = "cannot be reached: its pool does not answer"
PASSING = frozenset({OFFLINE, CORDONED, UNREACHABLE})
"""Why a node takes nothing now though it may later."""


class Outcome(StrEnum):
    """What would happen to the request now."""

    FITS_NOW = "fits_now"
    QUEUED = "queued"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome, a sentence for the user, one next action, and the reason of each node."""

    outcome: Outcome
    message: str
    next_action: str = ""
    reasons: tuple[tuple[str, str], ...] = ()
    pool: Pool | None = None
    placement: Placement | None = field(default=None, repr=False)

    @property
    def possible(self) -> bool:
        return self.outcome is not Outcome.IMPOSSIBLE


def request_of(resources: dict[str, Any]) -> ResourceRequest:
    return messages.load(resources, ResourceRequest)


def candidate_pools(flavor: Flavor) -> list[Pool]:
    """Pools that may take the flavor: its own where it names one, else every real one that is enabled."""
    if flavor.pool_id is not None:
        return list(Pool.objects.filter(pk=flavor.pool_id, enabled=True))
    return list(Pool.objects.filter(enabled=True, simulated=False).order_by("slug"))


def refused_by_driver(pool: Pool, template: Template, request: ResourceRequest) -> str:
    """Why the pool's driver can never run this, or an empty string. No I/O.

    A driver whose client library is missing here says nothing: the node's worker has it, or tells.
    """
    probe = WorkspaceSpec(
        ref=WorkspaceRef(workspace_id=str(UUID(int=0)), generation=1),
        name="probe",
        owner="probe",
        team="probe",
        template=template.slug,
        app=AppSpec(argv=tuple(template.argv), env=template.env, ready_path=template.ready_path),
        resources=request,
        agent=AgentSpec(url="", token=""),
        app_token="",
    )
    try:
        driver_for(config_of(pool)).validate(probe)
    except ProvisioningError as error:
        # One pool whose settings are wrong must not keep requests from the others.
        return error.message
    return ""


def missing_program(template: Template, nodes: Iterable[Node]) -> bool:
    """Whether no node has the template's program. Simulated nodes have every program."""
    return not any(node.programs.get(template.program) for node in nodes)


def snapshot(pool: Pool, template: Template) -> list[NodeState]:
    """The pool's nodes with what is free on each, in two queries however many there are."""
    nodes = pool.nodes.annotate(
        used_cpu=Sum("allocations__cpu_milli", filter=Q(allocations__released_at=None)),
        used_memory=Sum("allocations__memory_mib", filter=Q(allocations__released_at=None)),
        used_disk=Sum("allocations__disk_mib", filter=Q(allocations__released_at=None)),
    ).prefetch_related(
        Prefetch(
            "devices",
            Device.objects.filter(present=True, healthy=True)
            .annotate(used=Sum("allocated__milli", filter=Q(allocated__active=True)))
            .order_by("index"),
        )
    )
    return [_node_state(node, pool, template) for node in nodes.order_by("name")]


def _node_state(node: Any, pool: Pool, template: Template) -> NodeState:
    unusable = ""
    if not pool.simulated and not node.programs.get(template.program):
        # Before what may pass: a node that comes back still lacks the program.
        unusable = f"lacks the program {template.program}"
    elif not node.online:
        unusable = OFFLINE
    elif node.cordoned:
        unusable = CORDONED
    elif pool.state == PoolState.UNREACHABLE:
        unusable = UNREACHABLE
    return NodeState(
        name=node.name,
        cpu_milli=node.cpu_milli,
        memory_mib=node.memory_mib,
        disk_mib=node.disk_mib,
        free_cpu_milli=node.cpu_milli - (node.used_cpu or 0),
        free_memory_mib=node.memory_mib - (node.used_memory or 0),
        free_disk_mib=node.disk_mib - (node.used_disk or 0),
        devices=tuple(
            DeviceState(
                uuid=device.uuid,
                model=device.model,
                memory_mib=device.memory_mib,
                free_milli=WHOLE_DEVICE_MILLI - (device.used or 0),
            )
            for device in node.devices.all()
        ),
        unusable=unusable,
    )


def assess(*, template: Template, flavor: Flavor, resources: dict[str, Any] | None = None) -> Verdict:
    """What would happen to this request now. Raises nothing: a refusal is a verdict too."""
    request = request_of(resources or flavor.as_request())
    pools = candidate_pools(flavor)
    if not pools:
        return Verdict(
            Outcome.IMPOSSIBLE,
            "No pool is enabled for this flavor.",
            next_action="Choose another flavor, or ask an operator to enable a pool.",
        )
    reasons: list[tuple[str, str]] = []
    never: list[tuple[str, str]] = []
    ever = False
    for pool in pools:
        refusal = refused_by_driver(pool, template, request)
        if refusal:
            never.append((pool.name, refusal))
            continue
        nodes = snapshot(pool, template)
        decision = place(nodes, request)
        if isinstance(decision, Placed):
            return Verdict(Outcome.FITS_NOW, "Starts now.", pool=pool, placement=decision.placement)
        reasons.extend(decision.reasons)
        at_best = place(_at_best(nodes), request)
        if isinstance(at_best, Placed):
            ever = True
        else:
            never.extend(at_best.reasons)
    if ever:
        return Verdict(
            Outcome.QUEUED,
            _summary("Waits until there is room", reasons),
            next_action="Start it anyway and it queues, or choose a smaller flavor.",
            reasons=tuple(reasons),
        )
    return _impossible(template, pools, never)


def _at_best(nodes: Sequence[NodeState]) -> list[NodeState]:
    """The nodes as if nothing ran on them; offline and cordoned ones may come back."""
    return [emptied(replace(node, unusable="") if node.unusable in PASSING else node) for node in nodes]


def _impossible(template: Template, pools: Sequence[Pool], reasons: Sequence[tuple[str, str]]) -> Verdict:
    if all(pool.state == PoolState.UNKNOWN for pool in pools):
        return Verdict(
            Outcome.IMPOSSIBLE,
            "No node has reported yet.",
            next_action="Wait a few seconds; if this stays, an operator looks at the node workers.",
        )
    if reasons and all(reason == f"lacks the program {template.program}" for _, reason in reasons):
        return Verdict(
            Outcome.IMPOSSIBLE,
            f"{template.name} needs the program {template.program}, which no node has.",
            next_action=template.install_hint or "Choose another template.",
            reasons=tuple(reasons),
        )
    return Verdict(
        Outcome.IMPOSSIBLE,
        _summary("No node is large enough", reasons),
        next_action="Choose a smaller flavor.",
        reasons=tuple(reasons),
    )


def _summary(lead: str, reasons: Sequence[tuple[str, str]]) -> str:
    if not reasons:
        return f"{lead}: there are no nodes."
    node, reason = reasons[0]
    more = f", and {len(reasons) - 1} more nodes" if len(reasons) > 1 else ""
    return (
        f"{lead}: {node} {reason}{more}."
        if reason.startswith(("is ", "has ", "lacks ", "cannot "))
        else (f"{lead}: {node}: {reason}{more}.")
    )
