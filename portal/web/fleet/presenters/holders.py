"""Presenters of who holds a device, as far as the reader may see it."""

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
    """The holder of a device; workspace name and `url` only if visible to the user."""

    name: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """An active allocation of a device: `milli` of 1000. `since` is None if the holder is not visible."""

    holder: HolderLink
    milli: int
    since: datetime | None


def link_of(workspace_id: UUID, workspace: str, owner: str) -> HolderLink:
    """Return a visible workspace, by its name and the username of its owner, as a holder."""
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
