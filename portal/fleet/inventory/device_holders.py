"""Port to the workspaces: finds the workspaces on devices, as far as the reader may see them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from portal.common.ports import Port
from portal.people.accounts.models import User


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    """An active allocation of a device: `milli` of 1000.

    Readers without access to the workspace get only `milli`.
    """

    milli: int
    workspace_id: UUID | None = None
    workspace: str = ""
    owner: str = ""
    since: datetime | None = None


class DeviceHolders(Protocol):
    """Reads the active allocations of devices."""

    def of_devices(self, actor: User, devices: Collection[UUID]) -> Mapping[UUID, Sequence[DeviceHolder]]:
        """Return the active allocations of these devices by device, oldest first.

        Free devices are omitted. One query.
        """


device_holders = Port[DeviceHolders]("DeviceHolders")
