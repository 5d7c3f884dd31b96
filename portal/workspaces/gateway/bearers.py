"""Finds the users of bearer tokens, and caches the results from the portal's database.

A positive result is cached for `CACHED_S` after the lookup began, unless accounts change earlier. Concurrent
requests with one token share one lookup.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable

from portal.workspaces.gateway.memory import Memory

AuthorizeBearer = Callable[[str, str], Awaitable[str | None]]

CACHED_S = 1.0
PAUSE_S = 1.0
"""A lookup within this many seconds after the cached result expired marks the token as busy."""
_MAX_KEPT = 4096


class BearerTokens:
    """Token cache of one process. Not thread-safe: use it from one event loop.

    `ask(token, external_name)` returns the user id of a token that may enter workspaces, or `None`. `memory`
    knows whether a notification about changed accounts may be unread; its change handler calls `forget`.
    """

    def __init__(self, ask: AuthorizeBearer, memory: Memory) -> None:
        self._ask = ask
        self._memory = memory
        self._cached: dict[bytes, tuple[float, str, bool]] = {}
        self._lookups: dict[bytes, tuple[float, asyncio.Task[str | None]]] = {}

    def forget(self) -> None:
        """Drop all results and pending lookups, because accounts have changed."""
        self._cached.clear()
        self._lookups.clear()

    def cached(self, token: str, external_name: str) -> tuple[str, float, bool] | None:
        """Return user, remaining seconds, and whether the token is in continuous use; `None` if not cached.

        The result is valid only while memory is fresh.
        """
        until, user, busy = self._cached.get(_key(external_name, token), (0.0, "", False))
        left_s = until - time.monotonic()
        return (user, left_s, busy) if left_s > 0 else None

    async def user(self, token: str, external_name: str) -> str | None:
        """Return the user of a token, or `None`. Raises the errors of `ask`."""
        if await self._memory.is_fresh():
            entry = self.cached(token, external_name)
            if entry is not None:
                return entry[0]
            began, lookup = self._lookups.get(_key(external_name, token), (0.0, None))
            if lookup is not None and time.monotonic() - began < CACHED_S:
                return await asyncio.shield(lookup)
        return await self.refresh(token, external_name)

    async def refresh(self, token: str, external_name: str) -> str | None:
        """Look up the token again, even if a result is cached. Raises the same errors as `ask`."""
        key, began = _key(external_name, token), time.monotonic()
        lookup = asyncio.get_running_loop().create_task(
            self._fetch_and_cache(key, began, token, external_name)
        )
        self._lookups[key] = (began, lookup)
        try:
            # Other requests may wait for the same lookup after this one was cancelled.
            return await asyncio.shield(lookup)
        except asyncio.CancelledError:
            lookup.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise

    async def _fetch_and_cache(self, key: bytes, began: float, token: str, external_name: str) -> str | None:
        task = asyncio.current_task()
        try:
            user = await self._ask(token, external_name)
            # Do not cache the result if accounts have changed meanwhile, or a later lookup is pending.
            if self._lookups.get(key, (0.0, None))[1] is task:
                self._keep(key, began, user)
            return user
        finally:
            if self._lookups.get(key, (0.0, None))[1] is task:
                del self._lookups[key]

    def _keep(self, key: bytes, began: float, user: str | None) -> None:
        before = self._cached.pop(key, None)
        if user is None:
            return
        if len(self._cached) >= _MAX_KEPT:
            self._cached.clear()
        busy = before is not None and began - before[0] < PAUSE_S
        self._cached[key] = (began + CACHED_S, user, busy)


def _key(external_name: str, token: str) -> bytes:
    return hashlib.sha256(f"{external_name} {token}".encode()).digest()
