"""The requests that each pool expects: learnt from recent requests, stored, and read with the pools.

A pool's mix contains the last requests that might have gone there, regardless of their outcome, and the
catalog's flavors while there are few requests. Only `portal.scheduling.learning` writes the mix. Previews and
cycles of all processes read the same row, so they decide alike.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from portal.catalog.models import Flavor
from portal.fleet.inventory.models import Pool
from portal.scheduling.engine.placement.mix import WINDOW, RequestMix, is_learning_due
from portal.scheduling.models import LearntMix
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.types import ResourceRequest

log = logging.getLogger(__name__)


def mixes_by_pool(pools: Iterable[Pool]) -> dict[UUID, RequestMix]:
    """Return each pool's mix by primary key: the learnt one, else that of the catalog. At most 2 queries."""
    pools = list(pools)
    learnt = {row.pool_id: row for row in LearntMix.objects.filter(pool__in=pools)}
    mixes = {key: mix_of(row) for key, row in learnt.items()}
    if len(mixes) < len(pools):
        flavors = enabled_flavors()
        for pool in pools:
            if pool.pk not in mixes:
                mixes[pool.pk] = RequestMix.learnt((), offered_requests(pool, flavors))
    return mixes


def enabled_flavors() -> list[Flavor]:
    """Return the enabled flavors."""
    return list(Flavor.objects.filter(enabled=True).select_related("pool").order_by("slug"))


def learn(pool: Pool, row: LearntMix | None, flavors: Iterable[Flavor]) -> LearntMix | None:
    """Return the pool's current mix, unsaved; None if too little has changed.

    The catalog has weight while the window is not full, and may have changed.
    """
    if row is not None and row.requests >= WINDOW and not _has_enough_new(pool, row):
        return None
    fresh = _learnt(pool, offered_requests(pool, flavors))
    if row is None or _has_enough_new(pool, row):
        return fresh
    same_past = (fresh.requests, fresh.learnt_until) == (row.requests, row.learnt_until)
    return fresh if same_past and mix_of(fresh).shapes != mix_of(row).shapes else None


def mix_of(row: LearntMix) -> RequestMix:
    """Parse the stored mix."""
    return RequestMix.from_json(row.shapes)


def offered_requests(pool: Pool, flavors: Iterable[Flavor]) -> list[ResourceRequest]:
    """Return the requests of flavors that may go to the pool."""
    return [
        messages.load(flavor.as_request(), ResourceRequest)
        for flavor in flavors
        if (flavor.pool_id == pool.pk if flavor.pool_id is not None else not pool.simulated)
    ]


def last_request_at(pool: Pool) -> datetime | None:
    """Return the time of the latest request that might have gone to the pool."""
    return _past_requests(pool).order_by("-requested_at").values_list("requested_at", flat=True).first()


def _past_requests(pool: Pool) -> Any:
    """Return the workspaces that might have gone to the pool."""
    condition = Q(flavor__pool=pool) if pool.simulated else Q(flavor__pool=pool) | Q(flavor__pool=None)
    return Workspace.objects.filter(condition)


def _has_enough_new(pool: Pool, row: LearntMix) -> bool:
    since = _past_requests(pool)
    if row.learnt_until is not None:
        since = since.filter(requested_at__gt=row.learnt_until)
    return is_learning_due(row.requests, len(since.values_list("pk")[:WINDOW]))


def _learnt(pool: Pool, offered: list[ResourceRequest]) -> LearntMix:
    """Return the pool's current mix, unsaved."""
    rows = list(
        _past_requests(pool).order_by("-requested_at").values_list("requested_at", "resources")[:WINDOW]
    )
    requests_by_key: dict[str, ResourceRequest | None] = {}
    recent = [
        request for _, data in reversed(rows) if (request := _request(data, requests_by_key)) is not None
    ]
    mix = RequestMix.learnt(recent, offered)
    until = rows[0][0] if rows else None
    return LearntMix(pool=pool, shapes=mix.as_json(), requests=len(rows), learnt_until=until)


def _request(
    data: Mapping[str, Any], requests_by_key: dict[str, ResourceRequest | None]
) -> ResourceRequest | None:
    """Parse the stored form, or return None if it is invalid. Caches equal forms."""
    key = json.dumps(data, sort_keys=True)
    if key not in requests_by_key:
        try:
            requests_by_key[key] = messages.load(data, ResourceRequest)
        except ValueError:
            log.warning("ignored unreadable request in the request mix: %s", key)
            requests_by_key[key] = None
    return requests_by_key[key]
