"""Records entries by token: who enters a workspace with which token, once per `PERIOD_S`.

Programs send their token with each request, so entries that are already recorded have to be detected: in
memory for `REMEMBERED_S`, else in Redis, which all processes share. An entry is recorded before its first
request is admitted. If a process is killed while it records, its claim expires, and the next request is
recorded instead.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

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


class Entries:
    """Recently recorded entries.

    `record` writes an entry; it returns `False` if the token may no longer enter.
    """

    def __init__(self, redis: Redis, record: RecordEntry) -> None:
        self._redis = redis
        self._record = record
        self._remembered: dict[bytes, float] = {}

    async def note(self, token: str, name: str, client: ClientRequest) -> bool:
        """Record that `client` enters the workspace `name` with `token`, unless it is already recorded.

        Another address is another entry. Returns `False` if the token may no longer enter. Raises
        `RedisError`, `OSError`, `TimeoutError`, and what `record` raises: without a record there is no entry.
        """
        if self.remembers(token, name, client):
            return True
        remembered = _digest(token, name, client)
        key = KEY_PREFIX + remembered.hex()
        async with asyncio.timeout(STORE_TIMEOUT_S):
            # `None`: this process has the claim.
            previous: Any = await self._redis.set(key, _CLAIMED, nx=True, get=True, ex=CLAIM_S)
        if previous is None and not await self._recorded(key, token, name, client):
            return False
        if previous != _CLAIMED:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[remembered] = time.monotonic() + REMEMBERED_S
        return True

    def remembers(self, token: str, name: str, client: ClientRequest) -> bool:
        """Return whether this entry is known to be recorded, without a Redis call."""
        return time.monotonic() < self._remembered.get(_digest(token, name, client), 0.0)

    async def _recorded(self, key: str, token: str, name: str, client: ClientRequest) -> bool:
        entry = Entry(
            token=token,
            external_name=name,
            address=client.address,
            user_agent=client.sent("user-agent"),
            request_id=client.sent("x-request-id"),
        )
        done = False
        try:
            done = await self._record(entry)
        finally:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await (self._redis.set(key, _RECORDED, ex=PERIOD_S) if done else self._redis.delete(key))
        return done


def _digest(token: str, name: str, client: ClientRequest) -> bytes:
    return hashlib.sha256(f"{name} {client.address} {token}".encode()).digest()
