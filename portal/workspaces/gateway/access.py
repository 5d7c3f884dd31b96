"""Who may enter a workspace: decided from cookies, bearer tokens and origins, with one look at Redis.

Redis is asked first; the portal's database only for what Redis does not know, and for tokens.
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
from portal.workspaces.gateway.request import ClientRequest
from portal.workspaces.gateway.tickets import CookiePolicy
from portal.workspaces.gateway.workspace_views import WorkspaceView

Resolve = Callable[[str], Awaitable[WorkspaceView | None]]
AuthorizeBearer = Callable[[str, str], Awaitable[str | None]]

STORE_TIMEOUT_S = 2.0
BEARER_CACHE_S = 1.0
_BEARER_CACHE_MAX = 4096

# A view, then each session and its remaining seconds. One command costs the client less than a pipeline.
_READ = """
local found = {redis.call('GET', KEYS[1])}
for i = 2, #KEYS do
  found[2 * i - 2] = redis.call('GET', KEYS[i])
  found[2 * i - 1] = redis.call('TTL', KEYS[i])
end
return found
"""


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
        *,
        cookie: CookiePolicy,
        scheme: str,
        clock: Callable[[], float],
    ) -> None:
        self._redis = redis
        self._resolve = resolve
        self._authorize_bearer = authorize_bearer
        self._cookie = cookie
        self._scheme = scheme
        self._clock = clock
        self._read_script: Any = redis.register_script(_READ)
        self._bearers: dict[bytes, tuple[float, str]] = {}

    async def enter(self, name: str, client: ClientRequest) -> WorkspaceView:
        """The workspace, for a client who may use it now.

        Raises `Refused`; `RedisError`, `OSError` or `TimeoutError` where Redis does not answer.
        """
        if client.foreign(self._scheme):
            raise Refused(Refusal.FOREIGN_ORIGIN, name, client)
        cookies = client.session_cookies(self._cookie.name)
        bearer = client.bearer
        if not cookies and not bearer:
            raise Refused(Refusal.NOT_SIGNED_IN, name, client)
        view, sessions = await self._read(name, cookies)
        user = await self._session_user(sessions)
        if user is None and bearer:
            user = await self._bearer_user(bearer, name)
        if user is None:
            raise Refused(Refusal.NOT_SIGNED_IN, name, client)
        if view is None:
            view = await self._resolved(name)
        if view is None or user not in view.user_ids:
            raise Refused(Refusal.FORBIDDEN, name, client)
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
        """The view, and this workspace's live sessions among the cookies, in one round trip."""
        keys = [tickets.session_key(cookie) for cookie in cookies]
        async with asyncio.timeout(STORE_TIMEOUT_S):
            found: list[Any] = await self._read_script(keys=[workspace_views.key(name), *keys])
        sessions = []
        for position, session_key in enumerate(keys):
            session = tickets.decode_session(found[1 + 2 * position])
            if session is not None and session.workspace == name:
                sessions.append((session_key, session, int(found[2 + 2 * position])))
        return workspace_views.decode(found[0]), sessions

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
        """The user behind a token. A yes is believed for `BEARER_CACHE_S`, a no never."""
        key = hashlib.sha256(f"{name} {token}".encode()).digest()
        now = time.monotonic()
        until, user = self._bearers.get(key, (0.0, ""))
        if now < until:
            return user
        found = await self._authorize_bearer(token, name)
        if found is None:
            self._bearers.pop(key, None)
            return None
        if len(self._bearers) >= _BEARER_CACHE_MAX:
            self._bearers.clear()
        self._bearers[key] = (now + BEARER_CACHE_S, found)
        return found
