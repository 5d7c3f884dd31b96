"""Synchronises the Redis users of machines with their rows.

Redis loses its users on a restart; `sync` restores them. Deleting a user closes its connections.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import redis
from django.conf import settings
from django.utils import timezone

from portal.fleet.machines import redis_rules
from portal.fleet.machines.models import Machine, MachineState
from provisioning import node_users

TIMEOUT_S = 3.0
MAX_TRIES = 5
PAUSED_PREFIX = "berth:paused:"

log = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def connection() -> redis.Redis:
    """Return the Redis client of the control plane."""
    return redis.Redis.from_url(
        settings.BERTH_REDIS_URL, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=None
    )


def sync(names: Iterable[str] | None = None) -> bool:
    """Write the Redis users of these machines, or of all, according to their rows.

    Returns False if Redis is unavailable; `control.sync_machines` retries.
    """
    sorted_names = None if names is None else sorted(names)
    try:
        before: dict[str, tuple[str, ...]] | None = None
        for _try in range(MAX_TRIES):
            # Check again after writing, because a row may have changed concurrently.
            now = _digests(sorted_names)
            if now == before:
                return True
            _apply(now, before or {})
            before = now
    except (redis.RedisError, OSError) as error:
        log.warning("could not update Redis users, will retry: %s", error)
        return False
    return True


def refuse(client: redis.Redis, name: str) -> None:
    """Refuse the node, and close its connections. Works while Redis is full. Raises `RedisError`."""
    client.execute_command("ACL", "SETUSER", node_users.user_of(name), "off")
    client.execute_command("CLIENT", "KILL", "USER", node_users.user_of(name))


def set_refusal_period(client: redis.Redis, name: str, *, for_s: int) -> None:
    """Set how long `resume` does not admit the node. Raises `RedisError`."""
    client.set(PAUSED_PREFIX + name, 1, ex=for_s)


def resume(client: redis.Redis, name: str) -> bool:
    """Admit the node again unless it is too early, and return whether it may connect. Raises `RedisError`."""
    if client.exists(PAUSED_PREFIX + name):
        return False
    if name in node_users.names(client):
        # The machine may have been revoked meanwhile, so do not create its user again.
        client.execute_command("ACL", "SETUSER", node_users.user_of(name), "on")
    return True


def refused_nodes(client: redis.Redis) -> set[str]:
    """Return the nodes whose Redis user is disabled. Raises `RedisError`."""
    rules: Any = client.acl_list()
    lines = [line.decode() if isinstance(line, bytes) else line for line in rules]
    users = (line.split(" ", 3) for line in lines)
    return {
        user.removeprefix(node_users.PREFIX)
        for _user, user, state, *_ in users
        if user.startswith(node_users.PREFIX) and state == "off"
    }


def end_connections(name: str) -> None:
    """Close the machine's connections, so that it reconnects with the current password."""
    try:
        connection().execute_command("CLIENT", "KILL", "USER", redis_rules.user_of(name))
    except (redis.RedisError, OSError) as error:
        log.warning("could not close Redis connections of %s: %s", name, error)


def _digests(names: list[str] | None) -> dict[str, tuple[str, ...]]:
    """Return the valid password digests by machine; empty for machines that have left or are revoked."""
    rows = Machine.objects.all() if names is None else Machine.objects.filter(name__in=names)
    now = timezone.now()
    digests: dict[str, tuple[str, ...]] = dict.fromkeys(names or (), ())
    for name, state, digest, former, until in rows.values_list(
        "name", "state", "password_digest", "former_password_digest", "former_until"
    ):
        if state != MachineState.ACTIVE:
            digests[name] = ()
        else:
            digests[name] = (digest, former) if former and until and until > now else (digest,)
    return digests


def _apply(target: dict[str, tuple[str, ...]], before: dict[str, tuple[str, ...]]) -> None:
    changed = {name: digests for name, digests in target.items() if before.get(name) != digests}
    surplus = [name for name in before if name not in target]
    if not changed and not surplus:
        return
    off = refused_nodes(connection())
    pipeline: Any = connection().pipeline(transaction=False)
    for name, digests in changed.items():
        if digests:
            pipeline.execute_command(
                *("ACL", "SETUSER", redis_rules.user_of(name), *redis_rules.rules(name, digests)),
                *(("off",) if name in off else ()),
            )
        else:
            _delete(pipeline, name)
    for name in surplus:
        _delete(pipeline, name)
    pipeline.execute()


def _delete(pipeline: Any, name: str) -> None:
    pipeline.execute_command("ACL", "DELUSER", redis_rules.user_of(name))
    pipeline.unlink(*redis_rules.keys_of(name))
