"""What holds for the work of a pool: whether it is moved, and whether without an operator."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.conf import settings

from portal.fleet.inventory.models import Pool, RebalancingPolicy


def policy_of(pool: Pool) -> RebalancingPolicy:
    """The pool's own word, else the site's; never `SITE`."""
    own = RebalancingPolicy(pool.rebalancing)
    if own is not RebalancingPolicy.SITE:
        return own
    return RebalancingPolicy.AUTOMATIC if settings.BERTH_MOVE_AUTOMATICALLY else RebalancingPolicy.PROPOSE


def policies() -> dict[UUID, RebalancingPolicy]:
    """What holds in each pool that is there."""
    return {pool.pk: policy_of(pool) for pool in Pool.objects.filter(deleted_at=None)}


def names_where(policy: RebalancingPolicy) -> list[str]:
    """Names of the pools in which that holds."""
    return [pool.name for pool in Pool.objects.filter(deleted_at=None) if policy_of(pool) is policy]


def is_off(pools: Iterable[UUID]) -> bool:
    """Whether nothing is moved in one of these pools."""
    found = Pool.objects.filter(pk__in=set(pools))
    return any(policy_of(pool) is RebalancingPolicy.OFF for pool in found)
