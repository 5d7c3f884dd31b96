"""Rebalancing policies of pools: off, propose or automatic."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.conf import settings

from portal.fleet.inventory.models import Pool, RebalancingPolicy
from provisioning.traits import Placing


def policy_of(pool: Pool) -> RebalancingPolicy:
    """Return the pool's own policy, or else the site's; never `SITE`. Off where the engine places."""
    if pool.traits.placing is Placing.ENGINE:
        return RebalancingPolicy.OFF
    own = RebalancingPolicy(pool.rebalancing)
    if own is not RebalancingPolicy.SITE:
        return own
    return RebalancingPolicy.AUTOMATIC if settings.BERTH_MOVE_AUTOMATICALLY else RebalancingPolicy.PROPOSE


def policies() -> dict[UUID, RebalancingPolicy]:
    """Return the policy of each pool."""
    return {pool.pk: policy_of(pool) for pool in Pool.objects.filter(deleted_at=None)}


def names_of_pools_with(policy: RebalancingPolicy) -> list[str]:
    """Return the names of pools with this policy."""
    return [pool.name for pool in Pool.objects.filter(deleted_at=None) if policy_of(pool) is policy]


def is_disabled_in_any(pools: Iterable[UUID]) -> bool:
    """Return whether rebalancing is off in any of these pools."""
    rows = Pool.objects.filter(pk__in=set(pools))
    return any(policy_of(pool) is RebalancingPolicy.OFF for pool in rows)
