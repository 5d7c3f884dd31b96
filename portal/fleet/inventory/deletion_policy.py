"""Whether a pool may be deleted, asked of those who depend on it."""

from __future__ import annotations

from typing import Protocol

from portal.common.ports import Port
from portal.fleet.inventory.models import Pool


class PoolDeletionPolicy(Protocol):
    """Refuses to delete pools that something depends on."""

    def require_deletable(self, pool: Pool) -> None:
        """Raises `StateConflict` while something depends on the pool, which is locked and empty."""


deletion_policy = Port[PoolDeletionPolicy]("PoolDeletionPolicy")
