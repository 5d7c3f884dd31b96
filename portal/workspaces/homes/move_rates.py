"""Measures how fast homes move between a pool's nodes, from the latest moves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from django.utils import timezone

from portal.workspaces.models import HomeMove, HomeMoveState

DEFAULT_MIB_S = 50
"""MiB per second for pools without measurements, as in docs/capacity.md with 2 busy cores."""
OVERHEAD_S = 4
"""Seconds that the move of an empty home takes, for commands and answers."""
MIN_MIB = 256
"""Minimum size of measured moves. Smaller moves show the overhead instead of the rate."""
LATEST = 20
KEPT = timedelta(days=30)


def seconds_of(size_mib: int, mib_s: int) -> int:
    """Return how many seconds a move of this size takes at this rate."""
    return OVERHEAD_S + math.ceil(size_mib / mib_s)


def measured(pools: Collection[UUID]) -> dict[UUID, int]:
    """Return the MiB per second of each pool's latest moves, rounded to two digits.

    Uses up to 20 moves of the last 30 days. Omits pools without a move of at least 256 MiB.
    """
    if not pools:
        return {}
    done = HomeMove.objects.filter(
        pool__in=pools,
        state=HomeMoveState.DONE,
        started_at__isnull=False,
        ended_at__gt=timezone.now() - KEPT,
        bytes_total__gte=MIN_MIB << 20,
    ).order_by("-ended_at")
    sums: defaultdict[UUID, list[tuple[int, float]]] = defaultdict(list)
    for pool, size, began, ended in done.values_list("pool_id", "bytes_total", "started_at", "ended_at"):
        if began is not None and ended is not None and len(sums[pool]) < LATEST:
            sums[pool].append((size >> 20, max(1.0, (ended - began).total_seconds())))
    return {
        pool: _two_digits(sum(size for size, _ in moves) / sum(took for _, took in moves))
        for pool, moves in sums.items()
    }


def _two_digits(rate: float) -> int:
    """Return the rate rounded to two digits, at least 1. Rounding keeps estimates stable."""
    digits = max(0, math.floor(math.log10(rate)) - 1) if rate >= 1 else 0
    return max(1, round(rate / 10**digits) * 10**digits)
