"""Presenters of who holds a device, as far as the reader may see it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import reverse
from django.utils.translation import gettext as _

from portal.fleet.inventory.models import AllocatedDevice
from portal.people.accounts.models import User
from portal.workspaces.models import Workspace
from portal.workspaces.policies import visible_to


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    """The holder of a device; workspace name and `url` only if visible to the user."""

    name: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """An active allocation of a device: `milli` of 1000. `since` is None if the holder is not visible."""

    holder: DeviceHolder
    milli: int
    since: datetime | None


def holder_of(workspace: Workspace) -> DeviceHolder:
    """Return a visible workspace, with its owner loaded, as a holder."""
    name = _("%(workspace)s of %(owner)s") % {"workspace": workspace.name, "owner": workspace.owner.username}
    return DeviceHolder(name, reverse("workspaces:detail", args=[workspace.pk]))


def holdings(actor: User, devices: Sequence[Any]) -> dict[UUID, list[Holding]]:
    """Return the active allocations of these devices by device, with two queries."""
    items = list(
        AllocatedDevice.objects.filter(device__in=devices, active=True)
        .select_related("allocation__workspace__owner")
        .order_by("allocation__granted_at", "pk")
    )
    # Only the holders: a site can have thousands of other workspaces.
    candidates = Workspace.objects.filter(pk__in={item.allocation.workspace_id for item in items})
    visible = set(visible_to(actor, candidates).values_list("pk", flat=True) if items else ())
    found: dict[UUID, list[Holding]] = defaultdict(list)
    for item in items:
        workspace = item.allocation.workspace
        if workspace.pk in visible:
            holding = Holding(holder_of(workspace), item.milli, item.allocation.granted_at)
        else:
            holding = Holding(DeviceHolder(_("another team")), item.milli, None)
        found[item.device_id].append(holding)
    return found
