"""Port that decides whether a machine may be removed."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from portal.common.ports import Port


class MachineRemovalPolicy(Protocol):
    """Prevents removal of machines whose data would be lost."""

    def require_removable(self, pool_id: UUID, name: str) -> None:
        """Raise `StateConflict` if the machine `name` of the pool has data that would be lost."""


removal_policy = Port[MachineRemovalPolicy]("MachineRemovalPolicy")
