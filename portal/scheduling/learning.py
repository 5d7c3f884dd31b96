"""Learns the mixes of expected requests, and weights them by how scarce free capacity is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from portal.catalog.models import Flavor
from portal.fleet.inventory.models import Pool
from portal.scheduling import capacity, request_mix, snapshot_feed
from portal.scheduling.engine.placement.mix import RequestMix, Shape
from portal.scheduling.models import LearntMix
from portal.scheduling.pool_nodes import weight_by_scarcity

NOTICED_PERCENT = 25
"""Minimum change of a scarcity that is written, because each change makes every process score nodes again."""


@dataclass(slots=True)
class _Update:
    """The current mix of a pool.

    - `stored`: the database has a row for it.
    - `fresh`: it was learnt again, so it is stored.
    - `due`: its scarcity has to be measured.
    """

    pool: Pool
    row: LearntMix
    stored: bool
    fresh: bool
    due: bool
    newest: datetime | None


@transaction.atomic
def update_mixes() -> int:
    """Update the mixes. Returns how many changed.

    A mix is learnt again after enough new requests, after a change of the catalog, or if none is stored.
    Scarcity is measured only if there were requests since the last measurement. Real pools share requests, so
    their scarcity is measured together.
    """
    flavors = request_mix.enabled_flavors()
    rows = {row.pool_id: row for row in LearntMix.objects.select_for_update()}
    updates = [_update_of(pool, rows.get(pool.pk), flavors) for pool in Pool.objects.order_by("slug")]
    groups = [[update] for update in updates if update.pool.simulated]
    groups.append([update for update in updates if not update.pool.simulated])
    changed = sum(_weight(group) for group in groups)
    if changed:
        snapshot_feed.mixes()
    return changed


def _update_of(pool: Pool, row: LearntMix | None, flavors: Iterable[Flavor]) -> _Update:
    fresh = request_mix.learn(pool, row, flavors)
    newest = request_mix.last_request_at(pool)
    current = fresh or row
    assert current is not None  # `learn` returns a mix if there is no row
    due = fresh is not None or current.looked_until != newest
    return _Update(pool, current, row is not None, fresh is not None, due, newest)


def _weight(group: Sequence[_Update]) -> int:
    """Weight the mixes of pools that share requests by scarcity, and store them. Returns how many changed."""
    if not any(update.due for update in group):
        return 0
    pools = capacity.load(update.pool for update in group)
    before = [request_mix.mix_of(update.row) for update in group]
    after = weight_by_scarcity(
        (pools[update.pool.pk], mix) for update, mix in zip(group, before, strict=True)
    )
    changed = 0
    for update, old, new in zip(group, before, after, strict=True):
        row, differs = update.row, update.fresh or _differs_noticeably(old, new)
        row.looked_until = update.newest
        if differs:
            row.shapes = new.as_json()
            changed += 1
        if differs or update.due:
            row.save(force_insert=not update.stored)
    return changed


def _differs_noticeably(before: RequestMix, after: RequestMix) -> bool:
    old: Mapping[Shape, tuple[int, int]] = dict(before.scarcity)
    return any(
        shape not in old
        or any(100 * abs(b - a) > NOTICED_PERCENT * a for a, b in zip(old[shape], new, strict=True))
        for shape, new in after.scarcity
    )
