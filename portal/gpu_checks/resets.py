"""Resets of GPUs requested by operators, and the check that follows.

A reset is a run like a check, but must be the only run on its node, because nothing may use the driver's
library. A reset that has begun is never sent again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from portal.common import etags
from portal.common.actors import SYSTEM, SystemActor
from portal.common.errors import PortalError, StateConflict
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.fleet.inventory.contact import contact_of_node
from portal.fleet.inventory.cordons import cordon_device, display_name, locked_device
from portal.fleet.inventory.models import Allocation, CordonCause, Device, Node, PlacementLock
from portal.gpu_checks import selectors
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.kinds.proofs import PROOFS, proof_for_cordon, proof_of
from portal.gpu_checks.models import OPEN, CheckCause, CheckKind, GpuCheckRun, RunState
from portal.gpu_checks.runs import make_run
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from portal.workspaces.models import Workspace
from provisioning.types import DeviceKind

log = logging.getLogger(__name__)

ADVICE = ("reset", "drain_and_reset")


@dataclass(frozen=True, slots=True)
class ExpectedDeviceState:
    """The device state on which the form for a reset is based. The form is invalid after a change."""

    version_state: tuple[object, ...]


def displayed_state(device: Device) -> ExpectedDeviceState:
    return ExpectedDeviceState(
        (device.pk, device.cordoned, device.cordon_reason, device.cordon_cause, device.recovery)
    )


@transaction.atomic
def request_reset(
    *, actor: User | SystemActor, device_id: UUID, expected: frozenset[str] = etags.ANY
) -> GpuCheckRun:
    """Request a reset of a GPU by its node. A check follows and lifts the cordon if it passes.

    A repeated request returns the open run. Raises `NotAllowed`, `NotFound`, `PreconditionFailed`, and
    `StateConflict` with the reason from `refusal`.
    """
    require_operator(actor)
    PlacementLock.hold()
    device = locked_device(device_id)
    under_way = device.checks.filter(state__in=OPEN, kind=CheckKind.RESET).first()
    if under_way is not None:
        return under_way
    etags.require_expected(expected, displayed_state(device), name=display_name(device))
    refused = refusal(device)
    if refused is not None:
        raise StateConflict(refused, code=_PROBLEMS.get(refused.code, ProblemCode.CONFLICT))
    if not device.cordoned:
        cordon_device(
            actor=actor,
            device_id=device.pk,
            reason=message_of(Reason(CheckCode.RESET_ASKED)),
            cause=CordonCause.CHECK,
            recovery="reset",
        )
        device.refresh_from_db()
    return make_run(actor=actor, device=device, kind=CheckKind.RESET, cause=CheckCause.OPERATOR)


_PROBLEMS: dict[Any, ProblemCode] = {
    CheckCode.CHECK_UNDER_WAY: ProblemCode.CHECK_UNDER_WAY,
    CheckCode.DEVICE_IN_USE: ProblemCode.DEVICE_IN_USE,
}


def refusal(device: Device) -> Reason | None:
    """Return why a GPU cannot be reset now, or `None`."""
    name = display_name(device)
    if device.kind == DeviceKind.MIG:
        return Reason(CheckCode.RESET_OF_INSTANCE, {"device": name})
    if device.mig_mode:
        return Reason(CheckCode.RESET_LOSES_INSTANCES, {"device": name})
    if not device.present:
        return Reason(CheckCode.DEVICE_GONE, {"device": name})
    if not contact_of_node(device.node).heard:
        return Reason(CheckCode.NODE_NOT_ANSWERING, {"node": device.node.name})
    under_way = selectors.open_run_on(device)
    if under_way is not None:
        return Reason(CheckCode.CHECK_UNDER_WAY, {"kind": under_way.kind, "device": name})
    if device.allocated.filter(active=True).exists():
        return Reason(CheckCode.DEVICE_IN_USE, {"kind": CheckKind.RESET.value, "device": name})
    if not can_be_requested(device):
        return Reason(CheckCode.RESET_NOT_ADVISED, {"device": name})
    return None


def can_be_requested(device: Device) -> bool:
    """Return whether a reset may be requested: the device is cordoned, or its last check advises it."""
    if device.kind == DeviceKind.MIG:
        return False
    if device.cordoned or device.recovery in ADVICE:
        return True
    checks = device.checks.filter(state=RunState.DONE, kind__in=PROOFS)
    return checks.order_by("-created_at").values_list("recovery", flat=True).first() in ADVICE


def siblings(device: Device) -> QuerySet[Device]:
    """Return the GPUs linked with the device. Some machines can only reset such GPUs together."""
    if not device.island:
        return Device.objects.none()
    rows = Device.objects.filter(node=device.node_id, island=device.island, present=True)
    return rows.exclude(Q(pk=device.pk) | Q(kind=DeviceKind.MIG.value)).order_by("index")


def workspaces_on(node: Node) -> QuerySet[Workspace]:
    """Return the workspaces that a reboot of the node would end."""
    allocations = Allocation.objects.filter(node=node, released_at=None)
    return (
        Workspace.objects.filter(pk__in=allocations.values("workspace"))
        .select_related("owner")
        .order_by("name")
    )


def holders_of(device: Device) -> QuerySet[Workspace]:
    grants = device.allocated.filter(active=True)
    workspaces = Workspace.objects.filter(pk__in=grants.values("allocation__workspace"))
    return workspaces.select_related("owner").order_by("name")


def check_again(device_id: UUID) -> None:
    """Check a GPU after its reset, or scrub it if a scrub had cordoned it.

    Called after the run's transaction.
    """
    device = Device.objects.filter(pk=device_id).first()
    if device is None:
        return
    lifting = proof_for_cordon(device.cordon_cause) if device.cordoned else None
    proof = lifting or proof_of(CheckKind.CHECK)
    try:
        proof.request(actor=SYSTEM, device_id=device_id, level=proof.recheck_level, cause=CheckCause.RECHECK)
    except PortalError as error:
        log.info("skipped check of %s after its reset: %s", device.uuid, error.message)
