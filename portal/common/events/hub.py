"""One Redis subscription for each event loop, shared by all streams that the loop serves.

A hint says only that something may have changed on a channel. Hints that come while a reader is busy are
one hint: a slow reader costs no memory, and reads the database once where it would have read it often.
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
# A connection that is dead without having been closed is found by a ping that stays without an answer.
PING_S = 10.0
SILENT_S = 25.0
COMMAND_S = 5.0
RETRY_MIN_S = 0.25
RETRY_MAX_S = 5.0

log = logging.getLogger(__name__)


class Subscription:
    """One reader's place in the hub. A context manager: it is left at the end of the block."""

    def __init__(self, hub: EventHub, channels: tuple[str, ...]) -> None:
        self.channels = channels
        # Those on which there was a message; a hint alone may also come from a lost connection.
        self.heard: set[str] = set()
        self._hub = hub
        self._hint = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether hints come through; where not, the reader has to look by itself now and then."""
        return self._hub.connected

    async def wait(self, timeout_s: float) -> bool:
        """True at a hint since the last call, False when none comes for `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._hint.wait()
        except TimeoutError:
            return False
        self._hint.clear()
        return True

    def wake(self, channel: str = "") -> None:
        """Note a hint for the reader; with `channel`, a message on it."""
        if channel:
            self.heard.add(channel)
        self._hint.set()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub.leave(self)


class EventHub:
    """The connection of one event loop; only that loop may use it. `current` finds it.

    It is open while somebody is subscribed. A channel is subscribed at Redis once, however many read it.
    """

    def __init__(self, url: str) -> None:
        self.connected = False
        self._url = url
        self._readers: dict[str, set[Subscription]] = {}
        self._channels_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, *channels: str) -> Subscription:
        """A place for a reader of these channels.

        The first reader of a channel also gets a hint once Redis has confirmed it, as what happened before
        that was not heard; so does every reader each time the connection has been lost or is back.
        """
        subscription = Subscription(self, channels)
        for channel in channels:
            self._readers.setdefault(channel, set()).add(subscription)
        self._channels_changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=CLIENT_NAME)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Forget a reader; a channel with its last one, the connection with the last channel."""
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
                    # Whatever it is, readers go on without hints, and it is tried again.
                    if self.connected:
                        delay_s = RETRY_MIN_S
                    self._lost()
                    # One warning for each time that it goes away.
                    level = logging.WARNING if delay_s == RETRY_MIN_S else logging.DEBUG
                    log.log(level, "live hints are away: %s", "; ".join(map(repr, errors.exceptions)))
                    await asyncio.sleep(delay_s * random.uniform(0.75, 1.25))
                    delay_s = min(2 * delay_s, RETRY_MAX_S)
        finally:
            self._lost()
            self._task = None

    async def _serve(self) -> None:
        """One connection, until nobody reads any more or it fails."""
        client = redis.asyncio.Redis.from_url(
            self._url,
            client_name=CLIENT_NAME,
            socket_connect_timeout=1,
            # Trying again is the hub's: readers have to know meanwhile.
            retry=Retry(NoBackoff(), 0),
        )
        async with client, client.pubsub() as pubsub, asyncio.TaskGroup() as group:
            # Not by `socket_timeout`: redis-py would use `wait_for`, in which Python 3.11 may lose the
            # cancellation by which the group ends.
            async with asyncio.timeout(COMMAND_S):
                await pubsub.connect()
            listening = group.create_task(self._listen(pubsub))
            await self._follow(pubsub)
            listening.cancel()

    async def _follow(self, pubsub: PubSub) -> None:
        """Keep the channels at Redis those that are read; returns when none is left."""
        present: set[str] = set()
        while self._readers:
            self._channels_changed.clear()
            wanted = set(self._readers)
            async with asyncio.timeout(COMMAND_S):
                if added := wanted - present:
                    await pubsub.subscribe(*added)
                if removed := present - wanted:
                    await pubsub.unsubscribe(*removed)
            present = wanted
            try:
                async with asyncio.timeout(PING_S):
                    await self._channels_changed.wait()
            except TimeoutError:
                async with asyncio.timeout(COMMAND_S):
                    await pubsub.ping()

    async def _listen(self, pubsub: PubSub) -> None:
        """Hand on what comes. Raises `ConnectionError` when not even a ping is answered."""
        while True:
            message = await pubsub.get_message(timeout=SILENT_S)
            if message is None:
                raise redis.ConnectionError(f"nothing heard for {SILENT_S:.0f} s")
            if message["type"] == "subscribe":
                self.connected = True
            if message["type"] in ("subscribe", "message"):
                channel = message["channel"].decode()
                for subscription in self._readers.get(channel, ()):
                    subscription.wake(channel if message["type"] == "message" else "")

    def _lost(self) -> None:
        self.connected = False
        for readers in self._readers.values():
            for subscription in readers:
                subscription.wake()


_hubs: dict[tuple[asyncio.AbstractEventLoop, str], EventHub] = {}
_hubs_lock = threading.Lock()


def current(url: str) -> EventHub:
    """The running loop's hub for the Redis at `url`."""
    key = (asyncio.get_running_loop(), url)
    with _hubs_lock:
        if key not in _hubs:
            for ended in [other for other in _hubs if other[0].is_closed()]:
                del _hubs[ended]
            _hubs[key] = EventHub(url)
        return _hubs[key]
