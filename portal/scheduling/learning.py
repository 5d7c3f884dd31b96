"""Writes the mixes of requests that pools expect: learns them again, and weighs them by what is left free."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction

from portal.fleet.inventory.models import Pool
from portal.scheduling import capacity, request_mix, snapshot_feed
from portal.scheduling.engine.placement.mix import RequestMix, Shape
from portal.scheduling.models import LearntMix

NOTICED_PERCENT = 25
"""A scarcity is written anew once it has changed by so much: each change has every process score anew."""


@transaction.atomic
def update() -> int:
    """Bring the mixes up to date; returns how many changed.

    One is learnt again for which there are enough new requests, or another catalog, or that has not been kept
    yet. Where nothing has been asked of a pool since the last look, nothing is weighed.
    """
    flavors = request_mix.offered()
    kept = {row.pool_id: row for row in LearntMix.objects.select_for_update()}
    changed = 0
    for pool in Pool.objects.order_by("slug"):
        row = kept.get(pool.pk)
        fresh = request_mix.learn(pool, row, flavors)
        asked = request_mix.last_asked(pool)
        if fresh is None and row is not None and asked == row.looked_until:
            continue
        new = fresh or row
        if new is None:
            continue
        before = request_mix.mix_of(new)
        mix = capacity.load([pool])[pool.pk].weigh(before)
        new.looked_until = asked
        if fresh is not None or _noticeable(before, mix):
            new.shapes = mix.as_json()
            changed += 1
        new.save(force_insert=row is None)
    if changed:
        snapshot_feed.mixes()
    return changed


def _noticeable(before: RequestMix, after: RequestMix) -> bool:
    old: Mapping[Shape, tuple[int, int]] = dict(before.scarcity)
    return any(
        shape not in old
        or any(100 * abs(b - a) > NOTICED_PERCENT * a for a, b in zip(old[shape], new, strict=True))
        for shape, new in after.scarcity
    )
