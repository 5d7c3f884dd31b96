"""Whether a machine may be removed without saying what is lost, asked of those who keep data there."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from portal.common.ports import Port


class MachineRemovalPolicy(Protocol):
    """Refuses to remove machines with data that would be lost."""

    def require_removable(self, pool_id: UUID, name: str) -> None:
        """Raises `StateConflict` while the machine `name` of the pool has data that would be lost."""


removal_policy = Port[MachineRemovalPolicy]("MachineRemovalPolicy")
