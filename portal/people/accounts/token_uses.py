"""Time of last use of tokens, to the minute.

Requests must not wait for database writes. Uses are recorded in Redis, at most once per minute for each token
and process, and written to the database by the control worker some seconds later. Uses lost with Redis are
recorded again at the next use.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import redis
from django.db import transaction
from django.db.models import Q

from portal.common.events import live
from portal.people.accounts.models import ApiToken

RESOLUTION = timedelta(minutes=1)
_KEY = "berth:acc:token-uses"
_MAX_KEPT = 4096

log = logging.getLogger(__name__)
_noted: dict[UUID, datetime] = {}


def note(token: ApiToken, now: datetime) -> None:
    """Record a use of `token`, unless one was recorded within the last minute."""
    last_use = max((at for at in (_noted.get(token.pk), token.last_used_at) if at), default=None)
    if last_use is not None and now - last_use <= RESOLUTION:
        return
    if len(_noted) >= _MAX_KEPT:
        _noted.clear()
    _noted[token.pk] = now
    try:
        live.connection().hset(_KEY, str(token.pk), now.isoformat())
    except (redis.RedisError, OSError) as error:
        log.warning("could not record token use: %s", error)


def store() -> int:
    """Write recorded uses to the database. Returns the number of tokens; 0 if Redis is unavailable."""
    try:
        uses: Any = live.connection().hgetall(_KEY)
    except redis.RedisError as error:
        log.warning("could not read token uses: %s", error)
        return 0
    if not uses:
        return 0
    with transaction.atomic():
        for name, value in uses.items():
            at = datetime.fromisoformat(value.decode())
            older = Q(last_used_at=None) | Q(last_used_at__lt=at)
            ApiToken.objects.filter(older, pk=UUID(name.decode())).update(last_used_at=at)
    try:
        live.connection().hdel(_KEY, *uses)
    except redis.RedisError as error:
        # They are written again, without effect.
        log.warning("could not remove token uses: %s", error)
    return len(uses)
