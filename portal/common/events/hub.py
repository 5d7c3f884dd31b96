"""One Redis subscription per event loop, shared by all its streams.

A hint only says that something may have changed on a channel. The hub merges hints to a busy reader, so a
slow reader uses no memory and queries the database once for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from types import TracebackType

import redis.asyncio
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

CLIENT_NAME = "berth-events"
# A ping without an answer detects a connection that is dead but not closed.
PING_S = 10.0
SILENT_S = 25.0
COMMAND_S = 5.0
RETRY_MIN_S = 0.25
RETRY_MAX_S = 5.0

log = logging.getLogger(__name__)


class Subscription:
    """One reader's subscription. A context manager that unsubscribes at the end of the block."""

    def __init__(self, hub: EventHub, channels: tuple[str, ...]) -> None:
        self.channels = channels
        self._changed_channels: set[str] = set()
        self._hub = hub
        self._hint = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether hints arrive. Otherwise, the reader has to poll."""
        return self._hub.connected

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a hint since the last call. Returns False after `timeout_s` seconds without a hint."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._hint.wait()
        except TimeoutError:
            return False
        self._hint.clear()
        return True

    def wake(self, channel: str = "") -> None:
        """Wake the reader for a message on `channel`, or, if empty, for messages that it may have missed."""
        self._changed_channels.add(channel)
        self._hint.set()

    def take_channels(self) -> set[str]:
        """Return the channels with a message since the last call.

        An empty name means that messages of any channel may have been missed.
        """
        channels, self._changed_channels = self._changed_channels, set()
        return channels

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub.unsubscribe(self)


class EventHub:
    """The Redis connection of one event loop; only that loop may use it. See `current`.

    Connected while there are subscriptions. Each channel is subscribed once, for all its readers.
    """

    def __init__(self, url: str) -> None:
        self.connected = False
        self._url = url
        self._readers: dict[str, set[Subscription]] = {}
        self._channels_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, *channels: str) -> Subscription:
        """Return a subscription to these channels.

        The first reader of a channel gets a hint once Redis has confirmed the subscription, because earlier
        messages were missed. All readers get one whenever the connection is lost or restored.
        """
        subscription = Subscription(self, channels)
        for channel in channels:
            self._readers.setdefault(channel, set()).add(subscription)
        self._channels_changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=CLIENT_NAME)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a reader. Unsubscribes channels without readers and disconnects after the last one."""
        for channel in subscription.channels:
            readers = self._readers.get(channel, set())
            readers.discard(subscription)
            if not readers and self._readers.pop(channel, None) is not None:
                self._channels_changed.set()

    async def _run(self) -> None:
        delay_s = RETRY_MIN_S
        try:
            while self._readers:
                try:
                    await self._serve()
                except* Exception as errors:
                    # Readers continue without hints while the hub reconnects.
                    if self.connected:
                        delay_s = RETRY_MIN_S
                    self._on_connection_lost()
                    # One warning per outage.
                    level = logging.WARNING if delay_s == RETRY_MIN_S else logging.DEBUG
                    log.log(level, "live hints are unavailable: %s", "; ".join(map(repr, errors.exceptions)))
                    await asyncio.sleep(delay_s * random.uniform(0.75, 1.25))
                    delay_s = min(2 * delay_s, RETRY_MAX_S)
        finally:
            self._on_connection_lost()
            self._task = None

    async def _serve(self) -> None:
        """Serve one connection until no readers are left or it fails."""
        client = redis.asyncio.Redis.from_url(
            self._url,
            client_name=CLIENT_NAME,
            socket_connect_timeout=1,
            # The hub retries itself, because readers have to know about the outage.
            retry=Retry(NoBackoff(), 0),
        )
        async with client, client.pubsub() as pubsub, asyncio.TaskGroup() as group:
            # Not `socket_timeout`: redis-py would use `wait_for`, which can lose the group's cancellation on
            # Python 3.11.
            async with asyncio.timeout(COMMAND_S):
                await pubsub.connect()
            listening = group.create_task(self._listen(pubsub))
            await self._follow(pubsub)
            listening.cancel()

    async def _follow(self, pubsub: PubSub) -> None:
        """Keep the Redis subscriptions equal to the channels with readers. Returns without any readers."""
        present: set[str] = set()
        while self._readers:
            self._channels_changed.clear()
            readers = set(self._readers)
            async with asyncio.timeout(COMMAND_S):
                if added := readers - present:
                    await pubsub.subscribe(*added)
                if removed := present - readers:
                    await pubsub.unsubscribe(*removed)
            present = readers
            try:
                async with asyncio.timeout(PING_S):
                    await self._channels_changed.wait()
            except TimeoutError:
                async with asyncio.timeout(COMMAND_S):
                    await pubsub.ping()

    async def _listen(self, pubsub: PubSub) -> None:
        """Dispatch messages to readers. Raises `ConnectionError` when a ping stays unanswered."""
        while True:
            message = await pubsub.get_message(timeout=SILENT_S)
            if message is None:
                raise redis.ConnectionError(f"no message for {SILENT_S:.0f} s")
            if message["type"] == "subscribe":
                self.connected = True
            if message["type"] in ("subscribe", "message"):
                channel = message["channel"].decode()
                for subscription in self._readers.get(channel, ()):
                    subscription.wake(channel if message["type"] == "message" else "")

    def _on_connection_lost(self) -> None:
        self.connected = False
        for readers in self._readers.values():
            for subscription in readers:
                subscription.wake()


_hubs: dict[tuple[asyncio.AbstractEventLoop, str], EventHub] = {}
_hubs_lock = threading.Lock()


def current(url: str) -> EventHub:
    """Return the running loop's hub for the Redis at `url`."""
    key = (asyncio.get_running_loop(), url)
    with _hubs_lock:
        if key not in _hubs:
            for ended in [other for other in _hubs if other[0].is_closed()]:
                del _hubs[ended]
            _hubs[key] = EventHub(url)
        return _hubs[key]
