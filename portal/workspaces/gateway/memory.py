"""What Redis has said, kept in the process until Redis says that it is no longer so.

A connection of its own tracks all keys of some prefixes (`CLIENT TRACKING`, broadcasting): whoever changes
one of them, lets it expire or loses it, Redis tells this process, which forgets it. So a request like one
before it needs no round trip, and a right that is taken away is gone with the write that takes it: Redis
sends the word of it together with its answer to the writer, and while such a word lies unread nothing is
answered from memory (`fresh`).

Without that connection nothing is kept, and every request asks Redis.
"""

from __future__ import annotations

import asyncio
import logging
import select
import time
from collections.abc import Callable, Iterable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

CLIENT_NAME = "berth-gateway-memory"
MAX_KEPT = 20_000
# A connection that is dead without having been closed is found by a ping that stays without an answer.
PING_S = 1.0
SILENT_S = 3.0
RETRY_S = 0.25
_INVALIDATED = "__redis__:invalidate"

log = logging.getLogger(__name__)


class Memory:
    """Values by their keys in Redis. All methods belong to the thread of one event loop.

    `start` begins to listen. While Redis does not tell of changes, `get` finds nothing and `keep` keeps
    nothing. `on_change` is called with the keys that have changed, or with None when any may have.
    """

    def __init__(
        self,
        redis: Redis,
        prefixes: Iterable[str],
        *,
        on_change: Callable[[frozenset[str] | None], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._prefixes = tuple(prefixes)
        self._on_change = on_change
        self._clock = clock
        self._kept: dict[str, tuple[float, Any]] = {}
        self._changes = 0
        self._told = asyncio.Event()
        self._unread: select.poll | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def told(self) -> bool:
        """Whether Redis tells of changes now."""
        return self._told.is_set()

    async def wait_told(self) -> None:
        """Until Redis tells of changes."""
        await self._told.wait()

    def start(self) -> None:
        """Listen in the running loop, as long as it runs. A second call changes nothing."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=CLIENT_NAME)

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def fresh(self) -> bool:
        """Whether what is kept is true now: no word of a change has come that was not read.

        It holds until the caller waits for something.
        """
        # What the loop has taken from the socket is read by `_listen` before this goes on; the rest is seen.
        await asyncio.sleep(0)
        return self.told and self._unread is not None and not self._unread.poll(0)

    def get(self, key: str) -> tuple[Any, float] | None:
        """The value under `key` and the seconds that it has left, or None where it is not known."""
        found = self._kept.get(key)
        if found is None:
            return None
        left_s = found[0] - self._clock()
        if left_s <= 0:
            del self._kept[key]
            return None
        return found[1], left_s

    def mark(self) -> int:
        """The present moment, to be taken before Redis is asked for what is kept afterwards."""
        return self._changes

    def keep(self, key: str, value: Any, *, for_s: float, mark: int) -> None:
        """Keep what was read, unless something has changed since `mark`, as it may be from before that."""
        if not self.told or mark != self._changes or for_s <= 0:
            return
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[key] = (self._clock() + for_s, value)

    def _changed(self, keys: frozenset[str] | None) -> None:
        self._changes += 1
        if keys is None:
            self._kept.clear()
        else:
            for key in keys:
                self._kept.pop(key, None)
        self._on_change(keys)

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except (RedisError, OSError, TimeoutError) as error:
                # One warning for each time that it goes away.
                level = logging.WARNING if self.told else logging.DEBUG
                log.log(level, "Redis is asked for each request, as it tells no changes: %r", error)
            finally:
                self._told.clear()
                self._unread = None
                self._changed(None)
            await asyncio.sleep(RETRY_S)

    async def _listen(self) -> None:
        """One connection, until it fails. Raises `RedisError`, `OSError`, `TimeoutError`."""
        pool = self._redis.connection_pool
        connection: Any = pool.connection_class(
            **{
                **pool.connection_kwargs,
                "client_name": CLIENT_NAME,
                "protocol": 2,
                # A connection that came back by itself would no longer track.
                "retry": Retry(NoBackoff(), 0),
                "health_check_interval": 0,
                "socket_timeout": None,
            }
        )
        try:
            async with asyncio.timeout(SILENT_S):
                await connection.connect()
                await connection.send_command("CLIENT", "ID")
                own_id = await connection.read_response()
                prefixes = [part for prefix in self._prefixes for part in ("PREFIX", prefix)]
                await connection.send_command(
                    "CLIENT", "TRACKING", "ON", "REDIRECT", str(own_id), "BCAST", *prefixes
                )
                await connection.read_response()
                await connection.send_command("SUBSCRIBE", _INVALIDATED)
                await connection.read_response()
            self._unread = select.poll()
            self._unread.register(connection._writer.get_extra_info("socket").fileno(), select.POLLIN)
            self._told.set()
            pinging = asyncio.get_running_loop().create_task(self._ping(connection))
            try:
                while True:
                    async with asyncio.timeout(SILENT_S):
                        self._heard(await connection.read_response())
            finally:
                pinging.cancel()
                await asyncio.gather(pinging, return_exceptions=True)
        finally:
            await connection.disconnect(nowait=True)

    @staticmethod
    async def _ping(connection: Any) -> None:
        while True:
            await asyncio.sleep(PING_S)
            await connection.send_command("PING")

    def _heard(self, message: Any) -> None:
        """What came: the answer to a ping, or the word of changed keys."""
        if not isinstance(message, list) or not message:
            raise RedisConnectionError(f"not a message: {message!r}")
        if message[0] != b"message":
            return
        keys = message[2]
        self._changed(None if keys is None else frozenset(key.decode() for key in keys))
