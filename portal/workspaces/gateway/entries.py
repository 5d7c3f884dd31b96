"""Records once per `PERIOD_S` who enters a workspace with which token.

Programs send their token with each request, so entries that are already recorded have to be detected: in
memory for `REMEMBERED_S`, else in Redis, which all processes share. An entry is recorded before its first
request is admitted. If a process is killed while it records, its claim expires, and the next request is
recorded instead. While Redis is full, each process records all entries that it does not remember.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from portal.workspaces.gateway.request import ClientRequest

PERIOD_S = 3600
REMEMBERED_S = 60.0
CLAIM_S = 30
STORE_TIMEOUT_S = 2.0
KEY_PREFIX = "berth:gw:entry:"
_MAX_REMEMBERED = 4096
_CLAIMED, _RECORDED = b"claimed", b"recorded"


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of a program into a workspace. `token` is the secret; the other fields come from its request."""

    token: str = field(repr=False)
    external_name: str
    address: str
    user_agent: str
    request_id: str


RecordEntry = Callable[[Entry], Awaitable[bool]]


class RecentEntries:
    """Recently recorded entries.

    `record` writes an entry; it returns `False` if the token may no longer enter.
    """

    def __init__(self, redis: Redis, record: RecordEntry) -> None:
        self._redis = redis
        self._record = record
        self._remembered: dict[bytes, float] = {}
        # Entries that this process recorded without a claim in Redis.
        self._recording: set[bytes] = set()

    async def note(self, token: str, name: str, client: ClientRequest) -> bool:
        """Record that `client` enters the workspace `name` with `token`, unless it is already recorded.

        Each client address is a separate entry. Returns `False` if the token may no longer enter. Raises
        `RedisError`, `OSError`, `TimeoutError` and the errors of `record`; the client may not enter then.
        """
        if self.remembers(token, name, client):
            return True
        digest = _digest(token, name, client)
        key = KEY_PREFIX + digest.hex()
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                # `None`: this process has the claim.
                previous: Any = await self._redis.set(key, _CLAIMED, nx=True, get=True, ex=CLAIM_S)
        except OutOfMemoryError:
            return await self._note_without_claim(digest, key, token, name, client)
        if previous is None and not await self._recorded(digest, key, token, name, client):
            return False
        if previous != _CLAIMED:
            self._remember(digest, REMEMBERED_S)
        return True

    def remembers(self, token: str, name: str, client: ClientRequest) -> bool:
        """Return whether this entry is known to be recorded, without a Redis call."""
        return time.monotonic() < self._remembered.get(_digest(token, name, client), 0.0)

    def _remember(self, digest: bytes, for_s: float) -> None:
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[digest] = max(self._remembered.get(digest, 0.0), time.monotonic() + for_s)

    async def _recorded(self, digest: bytes, key: str, token: str, name: str, client: ClientRequest) -> bool:
        """Record the entry under the claim `key`. Returns `False` if the token may no longer enter."""
        done = False
        try:
            done = await self._record(_entry(token, name, client))
        finally:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                try:
                    await (self._redis.set(key, _RECORDED, ex=PERIOD_S) if done else self._redis.delete(key))
                except OutOfMemoryError:
                    self._remember(digest, PERIOD_S)
        return done

    async def _note_without_claim(
        self, digest: bytes, key: str, token: str, name: str, client: ClientRequest
    ) -> bool:
        """Record an entry while Redis is full, once per `PERIOD_S` in this process.

        Redis still has the entries recorded before. Returns `False` if the token may no longer enter.
        """
        async with asyncio.timeout(STORE_TIMEOUT_S):
            previous = await self._redis.get(key)
        if previous == _RECORDED:
            self._remember(digest, REMEMBERED_S)
        # Another request may have recorded it while Redis was asked.
        elif previous is None and digest not in self._recording and not self.remembers(token, name, client):
            self._recording.add(digest)
            try:
                if not await self._record(_entry(token, name, client)):
                    return False
            finally:
                self._recording.discard(digest)
            self._remember(digest, PERIOD_S)
        return True


def _entry(token: str, name: str, client: ClientRequest) -> Entry:
    return Entry(
        token=token,
        external_name=name,
        address=client.address,
        user_agent=client.sent("user-agent"),
        request_id=client.sent("x-request-id"),
    )


def _digest(token: str, name: str, client: ClientRequest) -> bytes:
    return hashlib.sha256(f"{name} {client.address} {token}".encode()).digest()
