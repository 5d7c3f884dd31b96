"""Who may enter a workspace: decided from cookies, bearer tokens and origins, as a rule from memory.

What is not in memory, Redis is asked for; the portal's database only for what Redis does not know, for
tokens, and for the record of who entered by one.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

from redis.asyncio import Redis

from portal.workspaces.gateway import tickets, workspace_views
from portal.workspaces.gateway.entries import Entries, RecordEntry
from portal.workspaces.gateway.memory import Memory
from portal.workspaces.gateway.request import ClientRequest
from portal.workspaces.gateway.tickets import CookiePolicy
from portal.workspaces.gateway.workspace_views import WorkspaceView

Resolve = Callable[[str], Awaitable[WorkspaceView | None]]
AuthorizeBearer = Callable[[str, str], Awaitable[str | None]]

STORE_TIMEOUT_S = 2.0
BEARER_CACHE_S = 1.0
_BEARER_CACHE_MAX = 4096

# Each value and its remaining seconds. One command costs the client less than a pipeline.
_READ = """
local found = {}
for i = 1, #KEYS do
  found[2 * i - 1] = redis.call('GET', KEYS[i])
  found[2 * i] = redis.call('TTL', KEYS[i])
end
return found
"""
# Changes with every token that ends and every account that is changed (`portal.accounts.changes`).
ACCOUNTS_KEY = "berth:acc:revision"
PREFIXES = (workspace_views.KEY_PREFIX, tickets.SESSION_PREFIX, ACCOUNTS_KEY)


class Refusal(StrEnum):
    """Why a request does not get through."""

    FOREIGN_ORIGIN = "foreign_origin"
    NOT_SIGNED_IN = "not_signed_in"
    FORBIDDEN = "forbidden"


class Refused(Exception):
    """`client` may not enter the workspace `name`, or not with this request."""

    def __init__(self, refusal: Refusal, name: str, client: ClientRequest) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.name = name
        self.client = client


class Access:
    """The rules of entry. `scheme` is the portal's; for the other arguments see `app.build_app`."""

    def __init__(
        self,
        redis: Redis,
        resolve: Resolve,
        authorize_bearer: AuthorizeBearer,
        record_entry: RecordEntry,
        *,
        cookie: CookiePolicy,
        scheme: str,
        clock: Callable[[], float],
    ) -> None:
        self._redis = redis
        self.memory = Memory(redis, PREFIXES, on_change=self._changed)
        self._resolve = resolve
        self._authorize_bearer = authorize_bearer
        self._entries = Entries(redis, record_entry)
        self._cookie = cookie
        self._scheme = scheme
        self._clock = clock
        self._read_script: Any = redis.register_script(_READ)
        self._bearers: dict[bytes, tuple[float, str]] = {}

    def _changed(self, keys: frozenset[str] | None) -> None:
        if keys is None or ACCOUNTS_KEY in keys:
            self._bearers.clear()

    async def enter(self, name: str, client: ClientRequest) -> WorkspaceView:
        """The workspace, for a client who may use it now.

        A program's entry is on record before it is let through. Raises `Refused`; `RedisError`, `OSError` or
        `TimeoutError` where Redis does not answer; what the portal's functions raise.
        """
        if client.foreign(self._scheme):
            raise Refused(Refusal.FOREIGN_ORIGIN, name, client)
        cookies = client.session_cookies(self._cookie.name)
        bearer = client.bearer
        if not cookies and not bearer:
            raise Refused(Refusal.NOT_SIGNED_IN, name, client)
        view, sessions = await self._read(name, cookies)
        user = await self._session_user(sessions)
        by_token = user is None and bool(bearer)
        if by_token:
            user = await self._bearer_user(bearer, name)
        if user is None:
            raise Refused(Refusal.NOT_SIGNED_IN, name, client)
        if view is None:
            view = await self._resolved(name)
        if view is None or user not in view.user_ids:
            raise Refused(Refusal.FORBIDDEN, name, client)
        if by_token and view.reachable and not await self._entries.note(bearer, name, client):
            raise Refused(Refusal.NOT_SIGNED_IN, name, client)
        return view

    async def _resolved(self, name: str) -> WorkspaceView | None:
        """The view from the database, put into Redis for the next request."""
        view = await self._resolve(name)
        if view is None:
            return None
        if view.external_name != name:
            raise ValueError("resolve answered for another workspace")
        async with asyncio.timeout(STORE_TIMEOUT_S):
            await workspace_views.heal(self._redis, view)
        return view

    async def _read(
        self, name: str, cookies: list[str]
    ) -> tuple[WorkspaceView | None, list[tuple[str, tickets.Session, int]]]:
        """The view, and this workspace's live sessions among the cookies: from memory or by one look."""
        keys = [tickets.session_key(cookie) for cookie in cookies]
        wanted = [workspace_views.key(name), *keys]
        self.memory.start()
        known = [self.memory.get(key) for key in wanted] if await self.memory.fresh() else [None]
        if None in known:
            known = await self._ask(wanted)
        view = known[0][0] if known[0] is not None else None
        sessions = [
            (key, found[0], int(found[1]))
            for key, found in zip(keys, known[1:], strict=True)
            if found is not None and found[0].workspace == name
        ]
        return view, sessions

    async def _ask(self, keys: list[str]) -> list[tuple[Any, float] | None]:
        """What Redis has under the keys, the first of them a view's; it is remembered."""
        mark = self.memory.mark()
        async with asyncio.timeout(STORE_TIMEOUT_S):
            answer: list[Any] = await self._read_script(keys=keys)
        found: list[tuple[Any, float] | None] = []
        for key, data, ttl_s in zip(keys, answer[::2], answer[1::2], strict=True):
            value: Any = tickets.decode_session(data) if found else workspace_views.decode(data)
            found.append(None if value is None else (value, float(ttl_s)))
            if value is not None:
                # At least a second less than Redis will have it: what is left is rounded.
                self.memory.keep(key, value, for_s=ttl_s - 1, mark=mark)
        return found

    async def _session_user(self, sessions: list[tuple[str, tickets.Session, int]]) -> str | None:
        """The user of the one live session; with several it is not clear who this is."""
        if len({session.user for _, session, _ in sessions}) != 1:
            return None
        session_key, session, ttl_s = sessions[0]
        renewed_s = tickets.renewal_s(session, ttl_s, self._clock())
        if renewed_s:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._redis.expire(session_key, renewed_s)
        return session.user

    async def _bearer_user(self, token: str, name: str) -> str | None:
        """The user behind a token. A yes is believed for `BEARER_CACHE_S` and until accounts change."""
        key = hashlib.sha256(f"{name} {token}".encode()).digest()
        now = time.monotonic()
        until, user = self._bearers.get(key, (0.0, ""))
        if now < until and await self.memory.fresh():
            return user
        mark = self.memory.mark()
        found = await self._authorize_bearer(token, name)
        if found is None:
            self._bearers.pop(key, None)
            return None
        if len(self._bearers) >= _BEARER_CACHE_MAX:
            self._bearers.clear()
        if mark == self.memory.mark():
            self._bearers[key] = (now + BEARER_CACHE_S, found)
        return found
