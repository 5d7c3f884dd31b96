"""Checks all GPUs of a node at once: whether power and cooling suffice, and results stay correct.

The run belongs to the first GPU. The other GPUs are its peers, which are reserved until it has ended.
"""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from portal.common.actors import SystemActor
from portal.common.errors import NotFound, StateConflict
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.contact import contact_of_node
from portal.fleet.inventory.models import AllocatedDevice, Device, Node, PlacementLock
from portal.gpu_checks import runs
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.models import OPEN, CheckCause, CheckKind, GpuCheckRun
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from provisioning.traits import DeviceChecks
from provisioning.types import DeviceKind

MIN_GPUS = 2


@transaction.atomic
def request_joint_check(*, actor: User | SystemActor, node_id: UUID) -> GpuCheckRun:
    """Request a check of all GPUs of an idle node at once, and return its run.

    Nothing is placed on these GPUs until the run has ended. The node may be cordoned. Cordoned, failed and
    partitioned GPUs do not take part. A repeated request returns the open run. Raises `NotAllowed`,
    `NotFound`, and `StateConflict` with the reason from `refusal`.
    """
    require_operator(actor)
    # Only cycles allocate capacity, under this lock, so no GPU of the node can be allocated meanwhile.
    PlacementLock.hold()
    node = Node.objects.select_related("pool").filter(pk=node_id, retired=False).first()
    if node is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_NODE))
    under_way = GpuCheckRun.objects.filter(kind=CheckKind.JOINT, state__in=OPEN, device__node=node).first()
    if under_way is not None:
        return under_way
    if (refused := refusal(node)) is not None:
        raise StateConflict(refused, code=ProblemCode.NODE_NOT_CHECKABLE)
    # All writers of several devices lock them in this order.
    locked = list(participants(node).select_for_update(of=("self",)).order_by("pk"))
    if len(locked) < MIN_GPUS:
        raise StateConflict(_too_few(node), code=ProblemCode.NODE_NOT_CHECKABLE)
    first, *others = sorted(locked, key=lambda device: device.index)
    return runs.make_run(
        actor=actor, device=first, kind=CheckKind.JOINT, cause=CheckCause.OPERATOR, its_peers=others,
        subject=f"a joint check of {len(locked)} GPUs of {node.name}",
    )  # fmt: skip


def refusal(node: Node) -> Reason | None:
    """Return why the GPUs of a node cannot be checked at once now, or `None`."""
    if node.pool.traits.device_checks is DeviceChecks.NONE:
        return Reason(CheckCode.JOINT_NOT_BY_DRIVER, {"pool": node.pool.name})
    if not contact_of_node(node).heard:
        return Reason(CheckCode.NODE_NOT_ANSWERING, {"node": node.name})
    if AllocatedDevice.objects.filter(active=True, device__node=node).exists():
        return Reason(CheckCode.JOINT_NODE_IN_USE, {"node": node.name})
    if GpuCheckRun.objects.filter(device__node=node, state__in=OPEN).exists():
        return Reason(CheckCode.JOINT_NODE_BUSY, {"node": node.name})
    if participants(node).count() < MIN_GPUS:
        return _too_few(node)
    return None


def participants(node: Node) -> QuerySet[Device]:
    """Return the whole GPUs of a node that can take part."""
    return Device.objects.select_related("node", "node__pool").filter(
        node=node, kind=DeviceKind.GPU.value, present=True, healthy=True, cordoned=False, checking=False,
        mig_mode=False, unscrubbed=False,
    )  # fmt: skip


def _too_few(node: Node) -> Reason:
    return Reason(CheckCode.JOINT_TOO_FEW, {"node": node.name})
