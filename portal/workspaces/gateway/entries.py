"""Has the entries of programs recorded: who enters a workspace by token, once in `PERIOD_S`.

Each request of a program brings its token, so what the audit log is told has to be told apart from what it
knows already: by memory for `REMEMBERED_S`, else by Redis, which all processes share. The record is written
before the first request gets through, and a process that is killed while it writes leaves a claim that ends
by itself, so that the next request is recorded in its place.
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
    """A program goes into a workspace. `token` is the secret; the rest is as its request said."""

    token: str = field(repr=False)
    external_name: str
    address: str
    user_agent: str
    request_id: str


RecordEntry = Callable[[Entry], Awaitable[bool]]


class Entries:
    """What has been recorded of late. `record` writes an entry; False: this token may not enter any more."""

    def __init__(self, redis: Redis, record: RecordEntry) -> None:
        self._redis = redis
        self._record = record
        self._remembered: dict[bytes, float] = {}

    async def note(self, token: str, name: str, client: ClientRequest) -> bool:
        """Have it recorded that `client` enters the workspace `name` by `token`, where it is not yet.

        Another address is another entry. False where the token may not enter any more. Raises `RedisError`,
        `OSError`, `TimeoutError`, and what `record` raises: nobody enters whose entry is not on record.
        """
        if self.remembers(token, name, client):
            return True
        remembered = _digest(token, name, client)
        key = KEY_PREFIX + remembered.hex()
        async with asyncio.timeout(STORE_TIMEOUT_S):
            # None: it is ours to record.
            known: Any = await self._redis.set(key, _CLAIMED, nx=True, get=True, ex=CLAIM_S)
        if known is None and not await self._recorded(key, token, name, client):
            return False
        if known != _CLAIMED:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[remembered] = time.monotonic() + REMEMBERED_S
        return True

    def remembers(self, token: str, name: str, client: ClientRequest) -> bool:
        """Whether this entry is known to be on record, without a look."""
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
