"""Implements the inventory's port that finds the workspaces on devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet

from portal.fleet.inventory.device_holders import DeviceHolder, DeviceHolders
from portal.fleet.inventory.models import AllocatedDevice
from portal.people.accounts.models import User
from portal.workspaces.models import Workspace
from portal.workspaces.policies import visible_to


class HoldersByAllocation(DeviceHolders):
    """Finds the workspaces on devices from active allocations."""

    def of_devices(self, actor: User, devices: Collection[UUID]) -> Mapping[UUID, Sequence[DeviceHolder]]:
        holder = visible_to(actor, Workspace.objects.filter(pk=OuterRef("allocation__workspace")))
        items = _active(devices).annotate(shown=Exists(holder))
        holders: dict[UUID, list[DeviceHolder]] = defaultdict(list)
        for item in items:
            holders[item.device_id].append(_holder(item) if item.shown else DeviceHolder(item.milli))
        return holders


def workspaces_of_devices(devices: Collection[UUID]) -> dict[UUID, tuple[Workspace, ...]]:
    """Return the workspaces with active allocations of these devices, with owner and team, oldest first.

    Does not check permissions. Uses one query.
    """
    holders: dict[UUID, list[Workspace]] = defaultdict(list)
    for item in _active(devices).select_related("allocation__workspace__team"):
        holders[item.device_id].append(item.allocation.workspace)
    return {device: tuple(workspaces) for device, workspaces in holders.items()}


def _active(devices: Collection[UUID]) -> QuerySet[AllocatedDevice]:
    items = AllocatedDevice.objects.filter(device__in=devices, active=True)
    return items.select_related("allocation__workspace__owner").order_by("pk")


def _holder(item: AllocatedDevice) -> DeviceHolder:
    allocation, workspace = item.allocation, item.allocation.workspace
    owner = workspace.owner.username
    return DeviceHolder(item.milli, workspace.pk, workspace.name, owner, allocation.granted_at)
