"""Cordons of devices. Cordons of nodes are in `services.set_cordon`.

The cause determines how a cordon is lifted: by a passing check, by a clean scrub, or only by an operator.
Operators can lift any cordon.
"""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from portal.common.actors import SystemActor
from portal.common.domain_events import emit
from portal.common.errors import NotFound
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.domain_events import CapacityFreed, DeviceUncordoned, NodesChanged
from portal.fleet.inventory.models import CordonCause, Device
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator

WEIGHT = {"": 0, CordonCause.SCRUB: 1, CordonCause.CHECK: 2, CordonCause.OPERATOR: 3}
"""A cordon replaces one of lower weight, never one of higher weight."""


def locked_device(device_id: UUID) -> Device:
    """Return the device under a row lock. Requires a transaction. Raises `NotFound`."""
    device = (
        Device.objects.select_for_update(of=("self",))
        .select_related("node", "node__pool")
        .filter(pk=device_id)
        .first()
    )
    if device is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_DEVICE))
    return device


@transaction.atomic
def cordon_device(
    *,
    actor: User | SystemActor,
    device_id: UUID,
    reason: str,
    cause: CordonCause = CordonCause.OPERATOR,
    recovery: str = "",
) -> Device:
    """Cordon a device. Running workspaces continue. Idempotent: notifies only once.

    `recovery` is the action that returns the device to service (`provisioning.gpu.check.Action`). Raises
    `NotFound` and `NotAllowed`.
    """
    require_operator(actor)
    device = locked_device(device_id)
    reason = strip_nul(reason)[:1000]
    if WEIGHT[cause] < WEIGHT[device.cordon_cause if device.cordoned else ""]:
        # A cordon of higher weight stays, but record the recovery action anyway.
        if recovery and device.recovery != recovery:
            device.recovery = recovery
            device.save(update_fields=["recovery"])
        return device
    if cause == CordonCause.OPERATOR:
        # Findings of a check stay valid.
        recovery = recovery or device.recovery
    target = (True, reason, cause, recovery)
    if (device.cordoned, device.cordon_reason, device.cordon_cause, device.recovery) == target:
        return device
    device.cordoned, device.cordon_reason, device.cordon_cause, device.recovery = target
    device.save(update_fields=["cordoned", "cordon_reason", "cordon_cause", "recovery"])
    emit(NodesChanged((device.node_id,)))
    events.record(
        actor=actor,
        kind=AuditKind.DEVICE_CORDONED,
        pool=device.node.pool,
        message=f"cordoned {display_name(device)}" + (f": {reason}" if reason else ""),
        targets=[Target(TargetKind.DEVICE, device.uuid)],
        data={"device": device.uuid, "cause": str(cause), "recovery": recovery},
    )
    if cause != CordonCause.OPERATOR:
        notify_operators(
            device,
            "device.cordoned",
            _("%(device)s is out of service") % {"device": display_name(device)},
            reason,
            recovery,
        )
    return device


@transaction.atomic
def lift_cordon(*, actor: User | SystemActor, device_id: UUID, reason: str = "") -> Device:
    """Lift a cordon, regardless of its cause. Idempotent. Raises `NotFound` and `NotAllowed`."""
    require_operator(actor)
    device = locked_device(device_id)
    if not device.cordoned:
        return device
    cause = device.cordon_cause
    device.cordoned, device.cordon_reason, device.cordon_cause, device.recovery = False, "", "", ""
    if cause == CordonCause.SCRUB:
        # The scrub was clean, or an operator accepts the risk.
        device.unscrubbed = False
    device.save(update_fields=["cordoned", "cordon_reason", "cordon_cause", "recovery", "unscrubbed"])
    emit(NodesChanged((device.node_id,)))
    events.record(
        actor=actor,
        kind=AuditKind.DEVICE_UNCORDONED,
        pool=device.node.pool,
        message=f"uncordoned {display_name(device)}" + (f": {strip_nul(reason)}" if reason else ""),
        targets=[Target(TargetKind.DEVICE, device.uuid)],
        data={"device": device.uuid, "cause": cause},
    )
    if cause in (CordonCause.CHECK, CordonCause.SCRUB):
        notify_operators(
            device,
            "device.uncordoned",
            _("%(device)s is back in service") % {"device": display_name(device)},
            reason,
        )
    emit(DeviceUncordoned(device.pk))
    emit(CapacityFreed())
    return device


def display_name(device: Device) -> str:
    """Return the display name: `GPU 3 of gpu-01`, or `instance 1g.10gb of GPU 3 of gpu-01`."""
    kind = f"instance {device.mig_profile} of GPU" if device.mig_profile else "GPU"
    return f"{kind} {device.index} of {device.node.name}"


def url_of(device: Device) -> str:
    """Return the path of the device's page."""
    return f"/gpus/devices/{device.pk}/"


def notify_operators(device: Device, kind: str, title: str, body: str, recovery: str = "") -> None:
    """Notify all operators about a device. Simulated devices are marked as such."""
    operators = User.objects.filter(Q(is_operator=True) | Q(is_superuser=True), is_active=True)
    if device.node.pool.simulated:
        title = _("Simulated: %(title)s") % {"title": title}
    if recovery and recovery != "none":
        hint = _("To return it to service: %(action)s.") % {"action": recovery.replace("_", " ")}
        body = f"{body} {hint}"
    events.notify(operators, kind, title, body.strip(), url_of(device))
