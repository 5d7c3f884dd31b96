"""Live hints through Redis. Losing a hint loses no data: listeners read the database."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from enum import IntFlag
from functools import lru_cache
from uuid import UUID

import redis
from django.conf import settings

from portal.common.events import hub

log = logging.getLogger(__name__)
POLL_S = 2.0
IDLE_S = 10.0
FEED_CHANNEL = "berth:ev:feed"
"""Channel for a hint about every new entry."""
MEASURED_CHANNEL = "berth:ev:measured"
"""Channel for a hint after each observation of all running workspaces."""


class Hint(IntFlag):
    """A hint at changes: on a stream's channel, or new measurements of running workspaces."""

    CHANGED = 1
    MEASURED = 2


NO_HINT = Hint(0)


def workspace_channel(workspace_id: UUID) -> str:
    return f"berth:ev:ws:{workspace_id}"


def user_channel(user_id: UUID) -> str:
    return f"berth:ev:user:{user_id}"


def check_channel(run_id: UUID) -> str:
    return f"berth:ev:check:{run_id}"


def account_channel(user_id: UUID) -> str:
    """Return the channel that ends this user's streams, so that they re-authenticate."""
    return f"berth:ev:account:{user_id}"


@lru_cache(maxsize=1)
def connection() -> redis.Redis:
    """Return the control plane's connection pool. Commands time out fast; callers continue without Redis."""
    return redis.Redis.from_url(
        settings.BERTH_REDIS_URL,
        socket_timeout=2,
        socket_connect_timeout=1,
        health_check_interval=15,
    )


def publish(workspace_id: UUID, owner_id: UUID, kind: str) -> None:
    """Notify watchers of this workspace, of its owner's list and of the feed."""
    try:
        with connection().pipeline(transaction=False) as pipe:
            pipe.publish(FEED_CHANNEL, kind)
            pipe.publish(workspace_channel(workspace_id), kind)
            pipe.publish(user_channel(owner_id), str(workspace_id))
            pipe.execute()
    except redis.RedisError as error:
        log.warning("could not send live hint: %s", error)


def publish_feed() -> None:
    """Notify watchers of the feed about a new entry."""
    try:
        connection().publish(FEED_CHANNEL, "entry")
    except redis.RedisError as error:
        # No warning: a new site writes its first entries before Redis runs.
        log.debug("could not send live hint: %s", error)


def publish_measured() -> None:
    """Notify open pages of new measurements, with one message for all running workspaces."""
    try:
        connection().publish(MEASURED_CHANNEL, "measured")
    except redis.RedisError as error:
        log.warning("could not send live hint: %s", error)


def publish_to(user_id: UUID, kind: str) -> None:
    """Notify watchers of this user's channel."""
    try:
        connection().publish(user_channel(user_id), kind)
    except redis.RedisError as error:
        log.warning("could not send live hint: %s", error)


def publish_to_all(user_ids: Iterable[UUID], kind: str) -> None:
    """Notify watchers of these users' channels."""
    try:
        with connection().pipeline(transaction=False) as pipe:
            for user_id in user_ids:
                pipe.publish(user_channel(user_id), kind)
            pipe.execute()
    except redis.RedisError as error:
        log.warning("could not send live hint: %s", error)


def publish_check(run_id: UUID) -> None:
    """Notify watchers of this GPU check."""
    try:
        connection().publish(check_channel(run_id), "check")
    except redis.RedisError as error:
        log.warning("could not send live hint: %s", error)


def build_channel(build_id: UUID) -> str:
    return f"berth:ev:build:{build_id}"


def publish_build(build_id: UUID) -> None:
    """Notify watchers of this environment build."""
    try:
        connection().publish(build_channel(build_id), "build")
    except redis.RedisError as error:
        log.warning("could not send live hint: %s", error)


def publish_account(user_id: UUID) -> None:
    """End this user's event streams. Clients that may still read reconnect."""
    try:
        connection().publish(account_channel(user_id), "account")
    except redis.RedisError as error:
        log.warning("could not send live hint: %s", error)


async def hints(
    channel: str, *, ends_with: str = "", measured: bool = False, every_s: float = IDLE_S
) -> AsyncGenerator[Hint, None]:
    """Yield `CHANGED` when something may have changed, and `NO_HINT` after `every_s` seconds without it.

    Ends at a message on the channel `ends_with`. With `measured`, also yields `MEASURED`. The first item is
    `CHANGED`. Without Redis, every item is `CHANGED`, one every `POLL_S` seconds, so that the caller polls
    the database. All readers of an event loop share one connection. Call `aclose` to unsubscribe immediately.
    """
    channels = [channel, *([ends_with] if ends_with else ()), *([MEASURED_CHANNEL] if measured else ())]
    with hub.current(settings.BERTH_REDIS_URL).subscribe(*channels) as subscription:
        yield Hint.CHANGED
        while True:
            await subscription.wait(every_s if subscription.connected else POLL_S)
            changed_channels = subscription.take_channels()
            if ends_with and ends_with in changed_channels:
                return
            hint = Hint.MEASURED if MEASURED_CHANNEL in changed_channels else NO_HINT
            if changed_channels - {MEASURED_CHANNEL} or not subscription.connected:
                hint |= Hint.CHANGED
            yield hint
