"""Handles device errors that a node's watcher sees between checks: cordons devices and notifies users.

Workspaces on such a device keep running if they can. A passing check lifts the cordon, as after a failed
check. An XID caused by an application never cordons a device (`provisioning.gpu.check.consequences`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext

from portal.common.actors import SYSTEM
from portal.common.events import services as events
from portal.common.events.models import Notification
from portal.fleet.inventory.cordons import cordon_device, display_name
from portal.fleet.inventory.models import AllocatedDevice, CordonCause, Device
from portal.gpu_checks.lost_devices import ENDS
from portal.workspaces.models import Workspace
from provisioning.check_messages import DeviceErrors
from provisioning.gpu.check.consequences import Consequence, of_xid
from provisioning.gpu.check.types import Action
from provisioning.types import DeviceKind

log = logging.getLogger(__name__)
NOTICE = "workspace.device_error"


def apply(report: DeviceErrors) -> int:
    """Cordon the node's affected devices, and return the number of valid errors. Idempotent.

    Logs and ignores errors about unknown devices.
    """
    gpus = {
        _slot(str(device.facts.get("pci_bus_id") or "")): device
        for device in Device.objects.filter(_device_filter(report), kind=DeviceKind.GPU.value, present=True)
        .select_related("node", "node__pool")
        .order_by("pk")
    }
    node = report.node.encode("unicode_escape").decode()
    counted = 0
    for error in report.errors:
        consequence = of_xid(error.xid, error.line)
        device = gpus.get(_slot(error.slot))
        if consequence is None or device is None:
            where = error.slot.encode("unicode_escape").decode()
            log.warning("ignored XID %d at %s of node %s", error.xid, where, node)
            continue
        _act(device, consequence)
        counted += 1
    return counted


def _device_filter(report: DeviceErrors) -> Q:
    pool = Q(node__pool__slug=report.pool) if report.pool else Q()
    return pool & Q(node__name=report.node, node__pool__deleted_at=None)


def _slot(bus: str) -> str:
    """Return the bus address without the function: `0000:3b:00.0` → `0000:3b:00`."""
    return bus.lower().partition(".")[0]


@transaction.atomic
def _act(device: Device, consequence: Consequence) -> None:
    """Cordon the device and notify the owners of its workspaces.

    Does not show the kernel's log line, which may name a user's program.
    """
    if not _is_out_for(device, consequence):
        cordon_device(
            actor=SYSTEM,
            device_id=device.pk,
            reason=consequence.text,
            cause=CordonCause.CHECK,
            recovery=consequence.action.value,
        )
    _notify(device, consequence, _holders(device))


def _is_out_for(device: Device, consequence: Consequence) -> bool:
    """Return whether the current recovery already covers this error. Errors may come in bursts."""
    actions = tuple(Action)
    return (
        device.cordoned
        and device.recovery in actions
        and actions.index(Action(device.recovery)) >= actions.index(consequence.action)
    )


def _holders(device: Device) -> QuerySet[Workspace]:
    """Return the workspaces with the GPU, a share of it or an instance on it."""
    condition = Q(device=device) | Q(device__parent_uuid=device.uuid, device__node=device.node_id)
    grants = AllocatedDevice.objects.filter(condition, active=True)
    workspaces = Workspace.objects.filter(state__in=ENDS, pk__in=grants.values("allocation__workspace"))
    return workspaces.select_related("owner").order_by("pk")


def _notify(device: Device, consequence: Consequence, workspaces: Iterable[Workspace]) -> None:
    """Notify each owner once per start, because errors may continue for hours."""
    for workspace in workspaces:
        url = f"/workspaces/{workspace.pk}/"
        notifications = Notification.objects.filter(user=workspace.owner_id, kind=NOTICE, url=url)
        if workspace.placed_at is not None:
            notifications = notifications.filter(at__gte=workspace.placed_at)
        if notifications.exists():
            continue
        title = gettext("%(device)s, used by %(workspace)s, reported an error") % {
            "device": display_name(device),
            "workspace": workspace.name,
        }
        events.notify(
            [workspace.owner],
            kind=NOTICE,
            title=gettext("Simulated: %(title)s") % {"title": title} if workspace.simulated else title,
            body=gettext("%(what)s Save your work and restart the workspace to get another device.")
            % {"what": consequence.text},
            url=url,
        )
