"""Presenters of the workspaces on devices, as far as the reader may see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import reverse
from django.utils.translation import gettext as _

from portal.fleet.inventory.device_holders import DeviceHolder, device_holders
from portal.people.accounts.models import User


@dataclass(frozen=True, slots=True)
class HolderLink:
    """A workspace on a device; its name and `url` are set only if it is visible to the user."""

    name: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """An active allocation of a device: `milli` of 1000. `since` is None if the workspace is not visible."""

    holder: HolderLink
    milli: int
    since: datetime | None


def link_of(workspace_id: UUID, workspace: str, owner: str) -> HolderLink:
    """Return the link to a visible workspace, with its name and its owner's username."""
    name = _("%(workspace)s of %(owner)s") % {"workspace": workspace, "owner": owner}
    return HolderLink(name, reverse("workspaces:detail", args=[workspace_id]))


def holdings(actor: User, devices: Sequence[Any]) -> dict[UUID, list[Holding]]:
    """Return the active allocations of these devices by device, with one query."""
    held = device_holders().of_devices(actor, [device.pk for device in devices])
    return {device: [_holding(holder) for holder in holders] for device, holders in held.items()}


def _holding(holder: DeviceHolder) -> Holding:
    link = HolderLink(_("another team"))
    if holder.workspace_id is not None:
        link = link_of(holder.workspace_id, holder.workspace, holder.owner)
    return Holding(link, holder.milli, holder.since)
