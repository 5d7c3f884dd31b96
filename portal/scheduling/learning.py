"""Learns the mixes of expected requests, and weights them by the scarcity of free capacity."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction

from portal.fleet.inventory.models import Pool
from portal.scheduling import capacity, request_mix, snapshot_feed
from portal.scheduling.engine.placement.mix import RequestMix, Shape
from portal.scheduling.models import LearntMix

NOTICED_PERCENT = 25
"""Change of a scarcity from which it is written: each change makes every process score again."""


@transaction.atomic
def update_mixes() -> int:
    """Update the mixes. Returns how many changed.

    A mix is learnt again after enough new requests, after a change of the catalog, or if none is stored.
    Scarcity is measured only if there were requests since the last time.
    """
    flavors = request_mix.enabled_flavors()
    rows = {row.pool_id: row for row in LearntMix.objects.select_for_update()}
    changed = 0
    for pool in Pool.objects.order_by("slug"):
        row = rows.get(pool.pk)
        fresh = request_mix.learn(pool, row, flavors)
        newest = request_mix.last_request_at(pool)
        if fresh is None and row is not None and newest == row.looked_until:
            continue
        new = fresh or row
        if new is None:
            continue
        before = request_mix.mix_of(new)
        mix = capacity.load([pool])[pool.pk].weight_by_scarcity(before)
        new.looked_until = newest
        if fresh is not None or _differs_noticeably(before, mix):
            new.shapes = mix.as_json()
            changed += 1
        new.save(force_insert=row is None)
    if changed:
        snapshot_feed.mixes()
    return changed


def _differs_noticeably(before: RequestMix, after: RequestMix) -> bool:
    old: Mapping[Shape, tuple[int, int]] = dict(before.scarcity)
    return any(
        shape not in old
        or any(100 * abs(b - a) > NOTICED_PERCENT * a for a, b in zip(old[shape], new, strict=True))
        for shape, new in after.scarcity
    )
