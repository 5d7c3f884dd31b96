"""Live hints through Redis. A lost hint loses nothing: listeners read the database."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from functools import lru_cache
from uuid import UUID

import redis
from django.conf import settings

from portal.common.events import hub

log = logging.getLogger(__name__)
POLL_S = 2.0
IDLE_S = 10.0
FEED_CHANNEL = "berth:ev:feed"
"""On which it is told that there is a new entry, whatever it is about."""


def workspace_channel(workspace_id: UUID) -> str:
    return f"berth:ev:ws:{workspace_id}"


def user_channel(user_id: UUID) -> str:
    return f"berth:ev:user:{user_id}"


def check_channel(run_id: UUID) -> str:
    return f"berth:ev:check:{run_id}"


def account_channel(user_id: UUID) -> str:
    """On which it is told that streams of this user have to prove anew that they may go on."""
    return f"berth:ev:account:{user_id}"


@lru_cache(maxsize=1)
def connection() -> redis.Redis:
    """The control plane's connection pool; commands time out fast, callers go on without."""
    return redis.Redis.from_url(
        settings.BERTH_REDIS_URL,
        socket_timeout=2,
        socket_connect_timeout=1,
        health_check_interval=15,
    )


def publish(workspace_id: UUID, owner_id: UUID, kind: str) -> None:
    """Tell whoever watches this workspace, its owner's list or all events that something has changed."""
    try:
        with connection().pipeline(transaction=False) as pipe:
            pipe.publish(FEED_CHANNEL, kind)
            pipe.publish(workspace_channel(workspace_id), kind)
            pipe.publish(user_channel(owner_id), str(workspace_id))
            pipe.execute()
    except redis.RedisError as error:
        log.warning("live hint not sent: %s", error)


def publish_feed() -> None:
    """Tell whoever follows all events that there is a new one."""
    try:
        connection().publish(FEED_CHANNEL, "entry")
    except redis.RedisError as error:
        # No warning: the first entries of a site are written before its Redis runs.
        log.debug("live hint not sent: %s", error)


def publish_to(user_id: UUID, kind: str) -> None:
    """Tell whoever watches this user's channel that there is something new for them."""
    try:
        connection().publish(user_channel(user_id), kind)
    except redis.RedisError as error:
        log.warning("live hint not sent: %s", error)


def publish_to_all(user_ids: Iterable[UUID], kind: str) -> None:
    """Tell whoever watches the channel of one of these users that there is something new for them."""
    try:
        with connection().pipeline(transaction=False) as pipe:
            for user_id in user_ids:
                pipe.publish(user_channel(user_id), kind)
            pipe.execute()
    except redis.RedisError as error:
        log.warning("live hint not sent: %s", error)


def publish_check(run_id: UUID) -> None:
    """Tell whoever watches this GPU check that it has come further."""
    try:
        connection().publish(check_channel(run_id), "check")
    except redis.RedisError as error:
        log.warning("live hint not sent: %s", error)


def build_channel(build_id: UUID) -> str:
    return f"berth:ev:build:{build_id}"


def publish_build(build_id: UUID) -> None:
    """Tell whoever watches this build of an environment that it has come further."""
    try:
        connection().publish(build_channel(build_id), "build")
    except redis.RedisError as error:
        log.warning("live hint not sent: %s", error)


def publish_account(user_id: UUID) -> None:
    """End the event streams of this user: whoever may still look connects anew."""
    try:
        connection().publish(account_channel(user_id), "account")
    except redis.RedisError as error:
        log.warning("live hint not sent: %s", error)


async def hints(channel: str, *, ends_with: str = "", every_s: float = IDLE_S) -> AsyncGenerator[bool, None]:
    """Yield True when something may have changed, False every `every_s` seconds when nothing has.

    Ends at a message on the channel `ends_with`. The first item is True. Without Redis every item is True,
    one each `POLL_S` seconds, so that the caller polls the database. All readers of an event loop share one
    connection. Close it with `aclose`: only then is the channel left at once.
    """
    channels = [channel, ends_with] if ends_with else [channel]
    with hub.current(settings.BERTH_REDIS_URL).subscribe(*channels) as subscription:
        yield True
        while True:
            hinted = await subscription.wait(every_s if subscription.connected else POLL_S)
            if ends_with in subscription.heard:
                return
            yield hinted or not subscription.connected
