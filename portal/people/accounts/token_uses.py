"""Records when tokens were last used, to the minute, and from which address.

Requests must not wait for database writes. Uses are recorded in Redis, at most once per minute for each
token, address and process, and written to the database by the control worker some seconds later. If Redis
loses a use, the next one replaces it.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import redis
from django.db import transaction

from portal.common import request_context
from portal.common.events import live
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.people.accounts.limits import network_of
from portal.people.accounts.models import ApiToken
from portal.people.accounts.sessions import audit_targets

RESOLUTION = timedelta(minutes=1)
MAX_NETWORKS = 20
"""Networks kept for a token. With more, it is used from anywhere, and new networks are not reported."""
_KEY = "berth:acc:token-uses"
_MAX_KEPT = 4096

log = logging.getLogger(__name__)
_last_recorded: dict[UUID, tuple[datetime, str]] = {}


def note(token: ApiToken, now: datetime) -> None:
    """Record a use of `token`, unless one from the same address was recorded within the last minute."""
    address = request_context.current().address
    last = _last_recorded.get(token.pk)
    if last is None and token.last_used_at is not None:
        last = token.last_used_at, token.last_used_from or ""
    if last is not None and now - last[0] <= RESOLUTION and last[1] == address:
        return
    if len(_last_recorded) >= _MAX_KEPT:
        _last_recorded.clear()
    _last_recorded[token.pk] = now, address
    try:
        live.connection().hset(_KEY, str(token.pk), f"{now.isoformat()} {address}")
    except (redis.RedisError, OSError) as error:
        log.warning("could not record token use: %s", error)


def store() -> int:
    """Write recorded uses to the database. Returns the number of tokens; 0 if Redis is unavailable.

    The first use from a new network is a security event for the owner.
    """
    try:
        uses: Any = live.connection().hgetall(_KEY)
    except redis.RedisError as error:
        log.warning("could not read token uses: %s", error)
        return 0
    if not uses:
        return 0
    with transaction.atomic():
        tokens = ApiToken.objects.select_for_update(of=("self",)).select_related("owner").order_by("pk")
        changed = []
        for pk, token in tokens.in_bulk([UUID(name.decode()) for name in uses]).items():
            at, _, address = uses[str(pk).encode()].decode().partition(" ")
            if _apply(token, datetime.fromisoformat(at), address):
                changed.append(token)
        ApiToken.objects.bulk_update(changed, ["last_used_at", "last_used_from", "networks"])
    try:
        live.connection().hdel(_KEY, *uses)
    except redis.RedisError as error:
        # The next run writes these uses again, without effect.
        log.warning("could not remove token uses: %s", error)
    return len(uses)


def _apply(token: ApiToken, at: datetime, address: str) -> bool:
    """Set the last use of a token. Returns False if the token already has a later one."""
    if token.last_used_at is not None and token.last_used_at >= at:
        return False
    token.last_used_at, token.last_used_from = at, address or None
    network = network_of(address)
    if address and network not in token.networks and len(token.networks) < MAX_NETWORKS:
        if token.networks:
            _record_new_network(token, address)
        token.networks = [*token.networks, network]
    return True


def _record_new_network(token: ApiToken, address: str) -> None:
    request_context.begin(address=address, user_agent="", request_id="")
    request_context.note_token(token.prefix)
    try:
        events.record(
            actor=token.owner,
            kind=AuditKind.TOKEN_NEW_NETWORK,
            message=f"used the token “{token.name}” from another network for the first time",
            targets=audit_targets(token.owner),
            data={"token": str(token.pk), "network": network_of(address)},
        )
    finally:
        request_context.end()
