"""Values read from Redis, cached in this process until Redis reports a change.

A separate connection tracks all keys of some prefixes (`CLIENT TRACKING` in broadcasting mode). Redis
notifies it when a key is changed, expires or is evicted, and this process drops the value. Repeated requests
therefore need no round trip. A revoked right takes effect with the write that revokes it: Redis sends the
notification before it answers the writer, and this process answers nothing from memory while a notification
is unread (`is_fresh`).

Without that connection nothing is cached, and every request reads from Redis.
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
# A ping without an answer detects a dead connection that was never closed.
PING_S = 1.0
SILENT_S = 3.0
RETRY_S = 0.25
_INVALIDATED = "__redis__:invalidate"

log = logging.getLogger(__name__)


class Memory:
    """Cache of values by their Redis keys. Not thread-safe: use it from one event loop.

    `start` begins to listen. While Redis does not report changes, `get` returns `None` and `store` does
    nothing. `on_change` is called with the changed keys, or with `None` if any key may have changed.
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
    def is_tracking(self) -> bool:
        """Whether Redis reports changes now."""
        return self._told.is_set()

    async def wait_until_tracking(self) -> None:
        """Wait until Redis reports changes."""
        await self._told.wait()

    def start(self) -> None:
        """Listen in the running loop for as long as it runs. Idempotent."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=CLIENT_NAME)

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def is_fresh(self) -> bool:
        """Return whether the cached values are current, because no change notification is unread.

        The result is valid until the caller awaits.
        """
        # This lets `_listen` process what the loop has already read; `poll` detects the rest.
        await asyncio.sleep(0)
        return self.is_tracking and self._unread is not None and not self._unread.poll(0)

    def get(self, key: str) -> tuple[Any, float] | None:
        """Return the value under `key` and its remaining seconds, or `None`."""
        entry = self._kept.get(key)
        if entry is None:
            return None
        left_s = entry[0] - self._clock()
        if left_s <= 0:
            del self._kept[key]
            return None
        return entry[1], left_s

    def mark(self) -> int:
        """Return a marker for `store`. Call it before reading from Redis."""
        return self._changes

    def store(self, key: str, value: Any, *, for_s: float, mark: int) -> None:
        """Cache a value, unless something changed since `mark`, as the value may then be stale."""
        if not self.is_tracking or mark != self._changes or for_s <= 0:
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
                # One warning per lost connection.
                level = logging.WARNING if self.is_tracking else logging.DEBUG
                log.log(level, "Redis is asked for each request, as it tells no changes: %r", error)
            finally:
                self._told.clear()
                self._unread = None
                self._changed(None)
            await asyncio.sleep(RETRY_S)

    async def _listen(self) -> None:
        """Listen on one connection until it fails. Raises `RedisError`, `OSError`, `TimeoutError`."""
        pool = self._redis.connection_pool
        connection: Any = pool.connection_class(
            **{
                **pool.connection_kwargs,
                "client_name": CLIENT_NAME,
                "protocol": 2,
                # A connection that reconnects by itself would no longer track.
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
                        self._handle_message(await connection.read_response())
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

    def _handle_message(self, message: Any) -> None:
        """Handle a message: the answer to a ping, or a notification of changed keys."""
        if not isinstance(message, list) or not message:
            raise RedisConnectionError(f"not a message: {message!r}")
        if message[0] != b"message":
            return
        keys = message[2]
        self._changed(None if keys is None else frozenset(key.decode() for key in keys))
