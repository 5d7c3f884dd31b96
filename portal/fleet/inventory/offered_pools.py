"""Port to the catalog: the pools in which a user's flavors can start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from portal.common.ports import Port
from portal.people.accounts.models import User


@dataclass(frozen=True, slots=True)
class OfferedPools:
    """Pools in which a user's flavors can start: `keys`, and every real pool if `any_real`."""

    keys: frozenset[UUID]
    any_real: bool

    def includes(self, pool: UUID, *, simulated: bool) -> bool:
        """Return whether a flavor of the user can start in the pool."""
        return pool in self.keys or (self.any_real and not simulated)


class PoolOffers(Protocol):
    """Reads the pools that are offered to users."""

    def to_user(self, actor: User) -> OfferedPools:
        """Return the pools that one of the user's teams can use, by their flavors. One query."""


pool_offers = Port[PoolOffers]("PoolOffers")
