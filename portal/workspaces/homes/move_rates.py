"""How fast homes move between the nodes of a pool, from its latest moves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from django.utils import timezone

from portal.workspaces.models import HomeMove, HomeMoveState

DEFAULT_MIB_S = 50
"""MiB per second where nothing was measured yet: about that of docs/capacity.md, on 2 busy cores."""
OVERHEAD_S = 4
"""Seconds of a move of an empty home: its commands and their answers."""
MIN_MIB = 256
"""Size of the moves that are measured. Smaller ones show the overhead instead of the rate."""
LATEST = 20
KEPT = timedelta(days=30)


def seconds_of(size_mib: int, mib_s: int) -> int:
    """Return the expected seconds of a move of this size at this rate."""
    return OVERHEAD_S + math.ceil(size_mib / mib_s)


def measured(pools: Collection[UUID]) -> dict[UUID, int]:
    """Return the MiB per second of the latest moves within each pool, with two digits. Up to 20 of 30 days.

    Pools without a move of at least 256 MiB are missing.
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
    """Return the rate rounded to two digits, at least 1, so that estimates seldom change."""
    digits = max(0, math.floor(math.log10(rate)) - 1) if rate >= 1 else 0
    return max(1, round(rate / 10**digits) * 10**digits)
