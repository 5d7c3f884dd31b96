"""Checks the link between two nodes. Each link check consists of two runs.

A link has two ends, so its result never cordons a device or a node. Each end is a run like a check of its
device, which is not allocated meanwhile. Each run has its own deadline, so this module never waits.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from portal.common.actors import SystemActor
from portal.common.errors import NotFound, StateConflict
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.contact import contact_of_node
from portal.fleet.inventory.cordons import display_name
from portal.fleet.inventory.models import AllocatedDevice, Device, Node, PlacementLock
from portal.fleet.machines.models import MachineState
from portal.fleet.machines.selectors import machine_of_node
from portal.gpu_checks import runs
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.kinds.registry import handler_of
from portal.gpu_checks.models import OPEN, CheckCause, CheckKind, GpuCheckRun
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from provisioning import messages
from provisioning.gpu.check.types import Rendezvous
from provisioning.gpu.host import RdmaPort, slowest_port_gb_s
from provisioning.traits import DeviceChecks
from provisioning.types import DeviceKind

RDMA = "rdma"


@transaction.atomic
def request_link_check(*, actor: User | SystemActor, node_id: UUID, with_node_id: UUID) -> GpuCheckRun:
    """Request a check of the link between two nodes, and return the run of the first node.

    Uses an idle GPU of each node. Nothing is placed on either GPU until its run has ended. A repeated request
    returns the open run. Raises `NotAllowed`, `NotFound`, and `StateConflict` with the reason from `refusal`.
    """
    require_operator(actor)
    # Only cycles allocate capacity, under this lock, so neither device can be allocated meanwhile.
    PlacementLock.hold()
    node, other = _node(node_id), _node(with_node_id)
    under_way = GpuCheckRun.objects.filter(
        kind=CheckKind.PAIR, state__in=OPEN, device__node=node, partner__device__node=other
    ).first()
    if under_way is not None:
        return under_way
    if (refused := refusal(node, other)) is not None:
        raise StateConflict(refused, code=ProblemCode.LINK_NOT_CHECKABLE)
    address, first, second = _link_ends(node, other)
    port = _port(address)
    assert port is not None
    devices = {end.pk: _take(end) for end in sorted((node, other), key=lambda end: end.pk)}
    both = [
        runs.make_run(
            actor=actor, device=devices[end.pk], kind=CheckKind.PAIR, cause=CheckCause.OPERATOR,
            subject=f"a check of the link of {display_name(devices[end.pk])} to {far.name}",
        )
        for end, far in ((first, second), (second, first))
    ]  # fmt: skip
    for rank, run in enumerate(both):
        far = both[1 - rank]
        meeting = Rendezvous(
            rank=rank, address=address, port=port, partner=far.device.node.name,
            port_gb_s=min(map(_bandwidth_of, (first, second))),
        )  # fmt: skip
        run.partner, run.plan = far, {"meeting": messages.dump(meeting)}
        run.save(update_fields=["partner", "plan"])
    return both[0] if first == node else both[1]


def refusal(node: Node, other: Node) -> Reason | None:
    """Return why the link between two nodes cannot be checked now, or `None`."""
    if node.pk == other.pk or node.pool_id != other.pool_id:
        return Reason(CheckCode.LINK_NEEDS_TWO_NODES, {"node": node.name})
    if node.pool.traits.device_checks is DeviceChecks.NONE:
        return Reason(CheckCode.LINK_NOT_BY_DRIVER, {"pool": node.pool.name})
    for end in (node, other):
        if (refused := _refusal_of_end(end)) is not None:
            return refused
    address, _, _ = _link_ends(node, other)
    if not address and node.pool.traits.device_checks is DeviceChecks.NODE:
        return Reason(CheckCode.LINK_NO_ADDRESS, {"node": node.name, "other": other.name})
    if _port(address) is None:
        return Reason(CheckCode.LINK_PORTS_IN_USE, {"address": address})
    return None


def _refusal_of_end(node: Node) -> Reason | None:
    if RDMA not in node.provides:
        return Reason(CheckCode.LINK_NO_RDMA, {"node": node.name})
    if not contact_of_node(node).heard:
        return Reason(CheckCode.NODE_NOT_ANSWERING, {"node": node.name})
    open_runs = GpuCheckRun.objects.filter(device__node=node, state__in=OPEN)
    kinds = list(open_runs.values_list("kind", flat=True))
    reserved = any(handler_of(kind).alone_on_node for kind in kinds)
    if reserved or len(kinds) >= runs.AT_ONCE_ON_NODE:
        return Reason(CheckCode.LINK_NODE_BUSY, {"node": node.name})
    if not idle_gpus([node]).exists():
        return Reason(CheckCode.LINK_NO_IDLE_GPU, {"node": node.name})
    return None


def checkable_nodes(node: Node) -> tuple[list[Node], Reason | None]:
    """Return the nodes to which the node's link can be checked now, or the reason why there is no such node.

    The number of queries is constant. Whether a node is busy with other checks is only detected on request.
    """
    rows = Node.objects.filter(pool=node.pool_id, retired=False).exclude(pk=node.pk).order_by("name")
    others = [row for row in rows if RDMA in row.provides]
    if not others:
        return [], Reason(CheckCode.LINK_NO_OTHER_NODE, {"node": node.name})
    idle = set(idle_gpus(others).values_list("node_id", flat=True))
    ready = [row for row in others if contact_of_node(row, node.pool).heard and row.pk in idle]
    refused = _refusal_of_end(node) or (None if ready else refusal(node, others[0]))
    return ([], refused) if refused is not None else (ready, None)


def idle_gpus(nodes: Collection[Node]) -> QuerySet[Device]:
    """Return whole GPUs of these nodes that have passed a check and are free for placement."""
    allocated = AllocatedDevice.objects.filter(active=True, device__node__in=nodes)
    return Device.objects.filter(
        node__in=nodes, kind=DeviceKind.GPU.value, present=True, healthy=True, cordoned=False, checking=False,
        mig_mode=False, unscrubbed=False, passed_at__isnull=False,
    ).exclude(pk__in=allocated.values("device"))  # fmt: skip


def _node(node_id: UUID) -> Node:
    node = Node.objects.select_related("pool").filter(pk=node_id, retired=False).first()
    if node is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_NODE))
    return node


def _take(node: Node) -> Device:
    """Lock and return an idle GPU of the node. Skips locked GPUs."""
    candidates = idle_gpus([node]).select_related("node", "node__pool").order_by("index")
    device = candidates.select_for_update(of=("self",), skip_locked=True).first()
    if device is None:
        raise StateConflict(
            Reason(CheckCode.LINK_NO_IDLE_GPU, {"node": node.name}), code=ProblemCode.LINK_NOT_CHECKABLE
        )
    return device


def _link_ends(node: Node, other: Node) -> tuple[str, Node, Node]:
    """Return the meeting address, the node that listens there, and the node that connects."""
    for first, second in ((node, other), (other, node)):
        if address := address_of(first):
            return address, first, second
    return "", node, other


def address_of(node: Node) -> str:
    """Return the address at which other machines reach a node, or an empty string if unknown."""
    machine = machine_of_node(node.pool, node.name)
    if machine is not None:
        return machine.gateway_host if machine.state == MachineState.ACTIVE else ""
    own = str(node.pool.config.get("node", settings.BERTH_NODE_NAME))
    return str(settings.BERTH_NODES_ADDRESS) if node.name == own else ""


def _port(address: str) -> int | None:
    """Return a port at the address that no open check uses, or `None`. Requires `PlacementLock`."""
    open_runs = GpuCheckRun.objects.filter(kind=CheckKind.PAIR, state__in=OPEN)
    meetings = [plan.get("meeting", {}) for plan in open_runs.values_list("plan", flat=True)]
    taken = {meeting.get("port") for meeting in meetings if meeting.get("address") == address}
    return next((port for port in settings.BERTH_CHECK_PORTS if port not in taken), None)


def _bandwidth_of(node: Node) -> float:
    """Return the bandwidth of the node's slowest active RDMA port in GB/s; 0 if unknown."""
    return slowest_port_gb_s(messages.load(port, RdmaPort) for port in node.facts.get("rdma") or ())
