"""Port that decides whether a pool may be deleted."""

from __future__ import annotations

from typing import Protocol

from portal.common.ports import Port
from portal.fleet.inventory.models import Pool


class PoolDeletionPolicy(Protocol):
    """Prevents deletion of pools that other objects depend on."""

    def require_deletable(self, pool: Pool) -> None:
        """Raise `StateConflict` if something depends on the pool, which is locked and empty."""


deletion_policy = Port[PoolDeletionPolicy]("PoolDeletionPolicy")
