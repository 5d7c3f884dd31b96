"""Who holds a device: the implementation of the port of the inventory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from django.db.models import Exists, OuterRef

from portal.fleet.inventory.device_holders import DeviceHolder, DeviceHolders
from portal.fleet.inventory.models import AllocatedDevice
from portal.people.accounts.models import User
from portal.workspaces.models import Workspace
from portal.workspaces.policies import visible_to


class HoldersByAllocation(DeviceHolders):
    """Reads the holders of devices from active allocations."""

    def of_devices(self, actor: User, devices: Collection[UUID]) -> Mapping[UUID, Sequence[DeviceHolder]]:
        holder = visible_to(actor, Workspace.objects.filter(pk=OuterRef("allocation__workspace")))
        items = (
            AllocatedDevice.objects.filter(device__in=devices, active=True)
            .select_related("allocation__workspace__owner")
            .annotate(shown=Exists(holder))
            .order_by("allocation__granted_at", "pk")
        )
        holders: dict[UUID, list[DeviceHolder]] = defaultdict(list)
        for item in items:
            holders[item.device_id].append(_holder(item) if item.shown else DeviceHolder(item.milli))
        return holders


def _holder(item: AllocatedDevice) -> DeviceHolder:
    allocation, workspace = item.allocation, item.allocation.workspace
    owner = workspace.owner.username
    return DeviceHolder(item.milli, workspace.pk, workspace.name, owner, allocation.granted_at)
