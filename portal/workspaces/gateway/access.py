"""Decides who may enter a workspace, from cookies, bearer tokens and origins, usually from memory.

Values that are not in memory are read from Redis. The portal's database is used for values missing in Redis,
to check tokens, and to record who enters with a token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from portal.common import passes as form
from portal.workspaces.gateway import tickets, workspace_views
from portal.workspaces.gateway.bearers import CACHED_S, AuthorizeBearer, BearerTokens
from portal.workspaces.gateway.entries import RecentEntries, RecordEntry
from portal.workspaces.gateway.memory import Memory
from portal.workspaces.gateway.passes import Pass, Passes
from portal.workspaces.gateway.request import ClientRequest
from portal.workspaces.gateway.tickets import CookiePolicy
from portal.workspaces.gateway.workspace_views import WorkspaceView
from provisioning.endpoints import SOCKET_NAME

Resolve = Callable[[str], Awaitable[WorkspaceView | None]]

STORE_TIMEOUT_S = 2.0
# How many seconds before a token's pass expires the token is checked again.
AHEAD_S = 0.5 * CACHED_S
# Maximum number of tokens that are checked in the background at the same time.
MAX_CONCURRENT = 64

# Returns each value and its remaining seconds. One script is cheaper for the client than a pipeline.
_READ = """
local found = {}
for i = 1, #KEYS do
  found[2 * i - 1] = redis.call('GET', KEYS[i])
  found[2 * i] = redis.call('TTL', KEYS[i])
end
return found
"""
# Changes whenever a token ends or an account changes (`portal.people.accounts.changes`).
ACCOUNTS_KEY = "berth:acc:revision"
PREFIXES = (workspace_views.KEY_PREFIX, tickets.SESSION_PREFIX, ACCOUNTS_KEY)


log = logging.getLogger(__name__)


class Refusal(StrEnum):
    """Why a request is denied."""

    FOREIGN_ORIGIN = "foreign_origin"
    NOT_SIGNED_IN = "not_signed_in"
    FORBIDDEN = "forbidden"


class EntryRefused(Exception):
    """`client` may not enter the workspace `name`, or not with this request."""

    def __init__(self, refusal: Refusal, name: str, client: ClientRequest) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.name = name
        self.client = client


class AccessRules:
    """The access rules. `scheme` is the portal's; for the other arguments see `app.build_app`.

    `passes` is `None` to disable passes, or a folder, a key (`portal.common.passes`) and whether the
    process's group can read them. `on_change` is called with the changed keys in Redis, or with `None` if any
    key may have changed.
    """

    def __init__(
        self,
        redis: Redis,
        resolve: Resolve,
        authorize_bearer: AuthorizeBearer,
        record_entry: RecordEntry,
        *,
        cookie: CookiePolicy,
        scheme: str,
        passes: tuple[Path, str, bool] | None,
        clock: Callable[[], float],
        on_change: Callable[[frozenset[str] | None], None] = lambda _: None,
    ) -> None:
        self._redis = redis
        self._on_change = on_change
        self.passes: Passes | None = None
        self.memory = Memory(redis, PREFIXES, on_change=self._changed)
        if passes is not None:
            folder, key, shared = passes
            self.passes = Passes(folder, key, self.memory.is_fresh, shared=shared)
        self._resolve = resolve
        self._bearers = BearerTokens(authorize_bearer, self.memory)
        self._kept_alive: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._entries = RecentEntries(redis, record_entry)
        self._cookie = cookie
        self._scheme = scheme
        self._clock = clock
        self._read_script: Any = redis.register_script(_READ)

    def _changed(self, keys: frozenset[str] | None) -> None:
        if keys is None or ACCOUNTS_KEY in keys:
            self._bearers.forget()
        if self.passes is not None:
            self.passes.changed(keys)
        self._on_change(keys)

    def depends_on(self, name: str, client: ClientRequest) -> frozenset[str]:
        """Return the Redis keys whose change may change the result of `enter` for this request."""
        keys = {
            workspace_views.key(name),
            *map(tickets.session_key, client.session_cookies(self._cookie.name)),
        }
        return frozenset({*keys, ACCOUNTS_KEY} if client.bearer else keys)

    async def enter(self, name: str, client: ClientRequest) -> WorkspaceView:
        """Return the workspace if `client` may use it now.

        Entry by token is recorded before the request is admitted. Raises `EntryRefused`; `RedisError`,
        `OSError` or `TimeoutError` if Redis does not answer; and the exceptions of the portal's functions.
        """
        if client.foreign(self._scheme):
            raise EntryRefused(Refusal.FOREIGN_ORIGIN, name, client)
        cookies = client.session_cookies(self._cookie.name)
        bearer = client.bearer
        if not cookies and not bearer:
            raise EntryRefused(Refusal.NOT_SIGNED_IN, name, client)
        view, sessions = await self._read(name, cookies)
        user = await self._session_user(sessions)
        by_token = user is None and bool(bearer)
        if by_token:
            user = await self._bearers.user(bearer, name)
        if user is None:
            raise EntryRefused(Refusal.NOT_SIGNED_IN, name, client)
        if view is None:
            view = await self._load_view(name)
        if view is None or user not in view.user_ids:
            raise EntryRefused(Refusal.FORBIDDEN, name, client)
        if by_token and view.reachable and not await self._entries.note(bearer, name, client):
            raise EntryRefused(Refusal.NOT_SIGNED_IN, name, client)
        return view

    async def enter_in_person(self, name: str, client: ClientRequest) -> tuple[WorkspaceView, str]:
        """Return the workspace and the id of the user signed in with a browser. Tokens are not accepted.

        Raises the same exceptions as `enter`.
        """
        if client.foreign(self._scheme):
            raise EntryRefused(Refusal.FOREIGN_ORIGIN, name, client)
        cookies = client.session_cookies(self._cookie.name)
        if not cookies:
            raise EntryRefused(Refusal.NOT_SIGNED_IN, name, client)
        view, sessions = await self._read(name, cookies)
        user = await self._session_user(sessions)
        if user is None:
            raise EntryRefused(Refusal.NOT_SIGNED_IN, name, client)
        if view is None:
            view = await self._load_view(name)
        if view is None or user not in view.user_ids:
            raise EntryRefused(Refusal.FORBIDDEN, name, client)
        return view, user

    async def close(self) -> None:
        """Cancel background checks, end all passes, and stop listening to Redis."""
        for task in tuple(self._kept_alive.values()):
            task.cancel()
        await asyncio.gather(*self._kept_alive.values(), return_exceptions=True)
        if self.passes is not None:
            await self.passes.close()
        await self.memory.close()

    def forget(self, key: str) -> None:
        """Invalidate a key that was deleted, without waiting for the notification from Redis."""
        if self.passes is not None:
            self.passes.changed((key,))

    async def create_pass(self, view: WorkspaceView, client: ClientRequest) -> None:
        """Create a pass, so that the front door can admit similar requests without forward-auth.

        Call it after `enter` has admitted `client`. A pass is created only if memory holds everything the
        decision depends on, so that a change notification ends the pass.
        """
        if self.passes is None:
            return
        self.passes.start()
        cookie, token = self._pass_credential(client)
        credential = cookie or token
        if not credential or not view.socket or view.gateway:
            return
        name = view.external_name
        if self.passes.has(name, credential) or not await self.memory.is_fresh():
            return
        # No await from here on, so that memory cannot change in between.
        basis = self._pass_from_memory(name, client)
        if basis is None:
            return
        new, for_s = basis
        self.passes.add(new, for_s=for_s)
        cached = self._bearers.cached(client.bearer, name) if token else None
        if cached is not None and cached[2]:
            self._keep_alive(new, client)

    def _pass_from_memory(self, name: str, client: ClientRequest) -> tuple[Pass, float] | None:
        """Return the pass for requests like this one and its lifetime in seconds, from memory."""
        cookie, token = self._pass_credential(client)
        entry = self.memory.get(workspace_views.key(name))
        if entry is None or not entry[0].reachable:
            return None
        view: WorkspaceView = entry[0]
        basis = self._by_cookie(cookie, name) if cookie else self._by_token(client, name)
        shown = form.app_credential(view.upstream_headers)
        place = SOCKET_NAME.fullmatch(view.socket)
        if basis is None or basis[0] not in view.user_ids or shown is None or place is None or view.gateway:
            return None
        _, key, for_s = basis
        keys = frozenset({workspace_views.key(name), key})
        return Pass(name, cookie or token, place[2], *shown, keys), min(for_s, entry[1])

    def _keep_alive(self, pass_: Pass, client: ClientRequest) -> None:
        """Renew a token's pass in the background, so that requests need not wait for a token check."""
        place = (pass_.workspace, pass_.credential)
        if self.passes is None or place in self._kept_alive or len(self._kept_alive) >= MAX_CONCURRENT:
            return
        task = asyncio.get_running_loop().create_task(
            self._prolong(self.passes, pass_, client), name="berth-token"
        )
        self._kept_alive[place] = task
        task.add_done_callback(lambda _: self._kept_alive.pop(place, None))

    async def _prolong(self, passes: Passes, pass_: Pass, client: ClientRequest) -> None:
        """Check the token again each time before the pass expires, up to the maximum lifetime of the pass."""
        name, token = pass_.workspace, client.bearer
        while True:
            cached = self._bearers.cached(token, name)
            await asyncio.sleep(max(0.0, cached[1] - AHEAD_S) if cached else 0.0)
            if not passes.has(name, pass_.credential):
                return
            try:
                await self._bearers.refresh(token, name)
            except Exception as error:
                # The pass expires, and the next request reports the error.
                log.debug("could not look up token again: %s", type(error).__name__)
                return
            if not await self.memory.is_fresh():
                return
            # No await from here on, so that memory cannot change in between.
            basis = self._pass_from_memory(name, client)
            if basis is None or basis[0] != pass_:
                passes.end(pass_)
                return
            if not passes.prolong(pass_, for_s=basis[1]):
                return

    def _pass_credential(self, client: ClientRequest) -> tuple[str, str]:
        """Return the pass credentials from the only cookie or, without cookies, the token; else empty."""
        sent = client.headers.get("cookie", ())
        cookies = client.session_cookies(self._cookie.name)
        if len(sent) == 1 and len(cookies) == 1:
            return form.cookie_credential(cookies[0]), ""
        return "", "" if sent or not client.bearer else form.token_credential(client.bearer, client.address)

    def _by_cookie(self, cookie: str, name: str) -> tuple[str, str, float] | None:
        """Return user, Redis key and remaining seconds of this workspace's session, if memory has it."""
        key = tickets.session_key(cookie)
        entry = self.memory.get(key)
        return (entry[0].user, key, entry[1]) if entry is not None and entry[0].workspace == name else None

    def _by_token(self, client: ClientRequest, name: str) -> tuple[str, str, float] | None:
        """Like `_by_cookie`, for a token that is cached and whose entry is already recorded."""
        cached = self._bearers.cached(client.bearer, name)
        if cached is None or not self._entries.remembers(client.bearer, name, client):
            return None
        return cached[0], ACCOUNTS_KEY, cached[1]

    async def _load_view(self, name: str) -> WorkspaceView | None:
        """Read the view from the database, and store it in Redis for the next request."""
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
        """Return the view and this workspace's live sessions among the cookies.

        Reads memory, or Redis with one call.
        """
        keys = [tickets.session_key(cookie) for cookie in cookies]
        cache_keys = [workspace_views.key(name), *keys]
        self.memory.start()
        entries = [self.memory.get(key) for key in cache_keys] if await self.memory.is_fresh() else [None]
        if None in entries:
            entries = await self._ask(cache_keys)
        view = entries[0][0] if entries[0] is not None else None
        sessions = [
            (key, entry[0], int(entry[1]))
            for key, entry in zip(keys, entries[1:], strict=True)
            if entry is not None and entry[0].workspace == name
        ]
        return view, sessions

    async def _ask(self, keys: list[str]) -> list[tuple[Any, float] | None]:
        """Read the keys from Redis, and cache the values.

        The first key is a view, the others are sessions.
        """
        mark = self.memory.mark()
        async with asyncio.timeout(STORE_TIMEOUT_S):
            answer: list[Any] = await self._read_script(keys=keys)
        entries: list[tuple[Any, float] | None] = []
        for key, data, ttl_s in zip(keys, answer[::2], answer[1::2], strict=True):
            value: Any = tickets.decode_session(data) if entries else workspace_views.decode(data)
            entries.append(None if value is None else (value, float(ttl_s)))
            if value is not None:
                # TTLs are rounded, so keep the value at least one second less than Redis does.
                self.memory.store(key, value, for_s=ttl_s - 1, mark=mark)
        return entries

    async def _session_user(self, sessions: list[tuple[str, tickets.Session, int]]) -> str | None:
        """Return the user of the sessions, or `None` if there is none or they belong to several users."""
        if len({session.user for _, session, _ in sessions}) != 1:
            return None
        session_key, session, ttl_s = sessions[0]
        renewed_s = tickets.renewal_s(session, ttl_s, self._clock())
        if renewed_s:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._redis.expire(session_key, renewed_s)
        return session.user
