"""The gateway's ASGI application: Traefik's forward-auth and routes, and a workspace host's own paths.

It stands before Django, uses no database, and answers most requests after one round trip to Redis.
Whatever goes wrong on the way, the answer is a refusal.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from redis.asyncio import Redis
from redis.exceptions import RedisError

from portal.workspaces.gateway import pages, state, tickets
from portal.workspaces.gateway.feed import RoutesFeed
from portal.workspaces.gateway.names import local_path, workspace_of_host, workspace_uuid
from portal.workspaces.gateway.pages import Answer, Notice
from portal.workspaces.gateway.request import Malformed, Request, direct, forwarded
from portal.workspaces.gateway.state import WorkspaceView
from portal.workspaces.gateway.tickets import CookiePolicy

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Resolve = Callable[[str], Awaitable[WorkspaceView | None]]
AuthorizeBearer = Callable[[str, str], Awaitable[str | None]]

STORE_TIMEOUT_S = 2.0
BEARER_CACHE_S = 1.0
_BEARER_CACHE_MAX = 4096
_MAX_FORM_BYTES = 8192
_OWN_PREFIX = "/.berth/"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`secret` is the path segment that only Traefik knows; `public_url` is the portal's address."""

    secret: str = field(repr=False)
    domain: str
    public_url: str
    cookie_secure: bool

    def __post_init__(self) -> None:
        if len(self.secret) < 16 or not self.secret.isascii() or not self.secret.isalnum():
            raise ValueError("BERTH_GATEWAY_SECRET needs at least 16 letters and digits, and nothing else")
        if urlsplit(self.public_url).scheme not in ("http", "https"):
            raise ValueError("BERTH_PUBLIC_URL has to start with http:// or https://")


@dataclass(frozen=True, slots=True)
class _Entry:
    """Somebody who may use a workspace now."""

    view: WorkspaceView
    user: str


class _Refused(Exception):
    """Carries the answer to a request that does not get through."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def build_app(
    settings: GatewaySettings,
    redis: Redis,
    resolve: Resolve,
    authorize_bearer: AuthorizeBearer,
    *,
    clock: Callable[[], float] = time.time,
) -> Gateway:
    """The application.

    `redis` is on the database of sessions and views. `resolve(external_name)` reads a view from
    the portal's database, None where there is no such workspace. `authorize_bearer(token,
    external_name)` returns the user id behind a live token with the scope to connect, None for any
    other; whether that user may enter is checked against the view as well.
    """
    return Gateway(settings, redis, resolve, authorize_bearer, clock)


class Gateway:
    """See `build_app`. `handles(scope)` tells whether a request is for this application."""

    def __init__(
        self,
        settings: GatewaySettings,
        redis: Redis,
        resolve: Resolve,
        authorize_bearer: AuthorizeBearer,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._redis = redis
        self._resolve = resolve
        self._authorize_bearer = authorize_bearer
        self._clock = clock
        self._cookie = CookiePolicy(secure=settings.cookie_secure)
        self._portal = settings.public_url.rstrip("/")
        self._scheme = urlsplit(settings.public_url).scheme
        self._feed = RoutesFeed(redis)
        self._bearers: dict[bytes, tuple[float, str]] = {}

    def handles(self, scope: Scope) -> bool:
        """Whether `scope` is for a workspace's host or for forward-auth."""
        if scope["type"] not in ("http", "websocket"):
            return False
        if scope["path"].startswith("/gateway/"):
            return True
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return workspace_of_host(host.decode("latin-1"), self._settings.domain) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            # Only a workspace without a route leads here: there is nothing to talk to.
            await receive()
            await send({"type": "websocket.close", "code": 1013, "reason": "The workspace is not running."})
            return
        html = False
        try:
            if scope["path"].startswith("/gateway/"):
                if self._is(scope["path"], "routes"):
                    answer = await self._routes(scope, receive)
                elif not self._is(scope["path"], "auth"):
                    answer = _not_found(html=False)
                else:
                    request = forwarded(scope)
                    html = request.navigation
                    answer = await self._auth(request)
            else:
                request = direct(scope)
                html = request.navigation
                answer = await self._own_host(request, receive)
        except _Refused as refused:
            answer = refused.answer
        except Malformed:
            answer = Notice(
                400, "bad_request", "Not a request for a workspace", "Use the address that the portal shows."
            ).answer(html=False)
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("message store not reachable: %s", type(error).__name__)
            answer = Notice(
                503,
                "store_unavailable",
                "The portal’s message store is not reachable",
                "Nothing is lost. Try again in a moment; if this stays, tell your operator.",
                link=f"{self._portal}/",
                link_text="Go to the portal",
                refresh_s=5,
            ).answer(html=html)
        except Exception:
            log.exception("gateway request failed")
            answer = Notice(
                503,
                "lookup_failed",
                "The portal could not look up this workspace",
                "Nothing is lost. Try again in a moment; if this stays, tell your operator.",
                link=f"{self._portal}/",
                link_text="Go to the portal",
                refresh_s=5,
            ).answer(html=html)
        await _respond(send, answer, head=scope["method"] == "HEAD")

    def _is(self, path: str, what: str) -> bool:
        expected = f"/gateway/{self._settings.secret}/{what}"
        return hmac.compare_digest(path.encode("utf-8", "surrogateescape"), expected.encode())

    async def _routes(self, scope: Scope, receive: Receive) -> Answer:
        """Traefik's configuration, held back until it has changed; see `RoutesFeed`."""
        document = await self._feed.answer(scope.get("client"), receive)
        if document is None:
            return Notice(503, "store_unavailable", "No routes yet", "Ask again.").answer(html=False)
        return Answer(200, (("content-type", "application/json"), ("cache-control", "no-store")), document)

    async def _auth(self, request: Request) -> Answer:
        """Traefik's question. 200 carries what the app gets in place of the client's own headers."""
        name = workspace_of_host(request.host, self._settings.domain)
        if name is None:
            return _not_found(html=False)
        entry = await self._enter(name, request)
        if entry.view.simulated:
            return self._simulated(entry.view, html=request.navigation)
        if entry.view.state != "running":
            return self._not_running(entry.view, html=request.navigation)
        upstream = entry.view.upstream_headers
        cookies = "; ".join(part for part in (request.app_cookies(), upstream.get("Cookie", "")) if part)
        headers = [("cache-control", "no-store")]
        if cookies:
            headers.append(("cookie", cookies))
        if "Authorization" in upstream:
            headers.append(("authorization", upstream["Authorization"]))
        return Answer(200, tuple(headers))

    async def _own_host(self, request: Request, receive: Receive) -> Answer:
        """A workspace's host: the gateway's own paths, and the page where no route leads further."""
        name = workspace_of_host(request.host, self._settings.domain)
        if name is None:
            return _not_found(html=request.navigation)
        if request.path == f"{_OWN_PREFIX}page.css":
            headers = (("content-type", "text/css; charset=utf-8"), ("cache-control", "max-age=3600"))
            return Answer(200, (*headers, ("x-content-type-options", "nosniff")), pages.CSS.encode())
        if request.path == f"{_OWN_PREFIX}enter":
            return await self._exchange(name, request, receive)
        if request.path == f"{_OWN_PREFIX}leave":
            return await self._leave(name, request)
        if request.path.startswith(_OWN_PREFIX):
            return _not_found(html=request.navigation)
        entry = await self._enter(name, request)
        if entry.view.simulated:
            return self._simulated(entry.view, html=request.navigation)
        return self._not_running(entry.view, html=request.navigation)

    async def _enter(self, name: str, request: Request) -> _Entry:
        """Who sends this, if they may; raises `_Refused` with the answer if not."""
        html = request.navigation
        if request.foreign(self._scheme):
            raise _Refused(
                Notice(
                    403,
                    "foreign_origin",
                    "Refused: sent by another site",
                    "Open the workspace in a window of its own, from the portal.",
                    link=self._page_url(name),
                    link_text="Go to the workspace’s page",
                ).answer(html=html)
            )
        cookies = request.session_cookies(self._cookie.name)
        bearer = request.bearer
        if not cookies and not bearer:
            raise _Refused(self._sign_in(name, request))
        view, sessions = await self._read(name, cookies)
        user = await self._session_user(sessions)
        if user is None and bearer:
            user = await self._bearer_user(bearer, name)
        if user is None:
            raise _Refused(self._sign_in(name, request))
        if view is None:
            view = await self._resolve(name)
            if view is not None and view.external_name != name:
                raise ValueError("resolve answered for another workspace")
            if view is not None:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await state.heal(self._redis, view)
        if view is None or user not in view.user_ids:
            raise _Refused(
                Notice(
                    403,
                    "forbidden",
                    "You cannot open this workspace",
                    "It does not exist, or it is not shared with you. Ask its owner.",
                    link=f"{self._portal}/",
                    link_text="Go to my workspaces",
                ).answer(html=html)
            )
        return _Entry(view, user)

    async def _read(
        self, name: str, cookies: list[str]
    ) -> tuple[WorkspaceView | None, list[tuple[str, tickets.Session, int]]]:
        """The view, and this workspace's live sessions among the cookies, in one round trip."""
        async with asyncio.timeout(STORE_TIMEOUT_S), self._redis.pipeline(transaction=False) as pipe:
            pipe.get(state.key(name))
            keys = [tickets.session_key(cookie) for cookie in cookies]
            for session_key in keys:
                pipe.get(session_key)
                pipe.ttl(session_key)
            found = await pipe.execute()
        sessions = []
        for position, session_key in enumerate(keys):
            session = tickets.decode_session(found[1 + 2 * position])
            if session is not None and session.workspace == name:
                sessions.append((session_key, session, int(found[2 + 2 * position])))
        return state.decode(found[0]), sessions

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

    async def _exchange(self, name: str, request: Request, receive: Receive) -> Answer:
        if request.method not in ("GET", "POST"):
            return _method_not_allowed()
        text = request.query if request.method == "GET" else await _form(receive)
        try:
            values = parse_qs(text, max_num_fields=10)
        except ValueError:
            values = {}
        given = values.get("ticket", [])
        following = local_path(values.get("next", ["/"])[0])
        cookie = None
        if len(given) == 1:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                cookie = await tickets.exchange(
                    self._redis, ticket=given[0], external_name=name, clock=self._clock
                )
        if cookie is None:
            return Notice(
                403,
                "ticket_spent",
                "This link has been used or has expired",
                "A link into a workspace works once, for half a minute. Open the workspace again.",
                link=self._open_url(name, following),
                link_text="Open the workspace",
            ).answer(html=request.navigation or request.method == "POST")
        return pages.redirect(
            following, status=303, headers=[("set-cookie", self._cookie.set_header(cookie))]
        )

    async def _leave(self, name: str, request: Request) -> Answer:
        if request.method not in ("GET", "POST"):
            return _method_not_allowed()
        for cookie in request.session_cookies(self._cookie.name):
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await tickets.end(self._redis, cookie)
        return pages.redirect(
            self._page_url(name), status=303, headers=[("set-cookie", self._cookie.clear_header())]
        )

    def _sign_in(self, name: str, request: Request) -> Answer:
        """Browsers are sent to the portal for a ticket; programs are told."""
        if request.navigation:
            return pages.redirect(self._open_url(name, local_path(request.target)))
        return Notice(
            401,
            "not_signed_in",
            "Not signed in to this workspace",
            "Open it from the portal, or send a token with the scope workspaces:connect as a bearer token.",
            link=self._page_url(name),
            headers=(("www-authenticate", 'Bearer realm="berth"'),),
        ).answer(html=False)

    def _simulated(self, view: WorkspaceView, *, html: bool) -> Answer:
        notice = pages.simulated_notice(view.name, self._page_url(view.external_name))
        return notice.answer(html=html)

    def _not_running(self, view: WorkspaceView, *, html: bool) -> Answer:
        notice = pages.state_notice(view.name, view.state, self._page_url(view.external_name))
        return notice.answer(html=html)

    def _page_url(self, name: str) -> str:
        return f"{self._portal}/workspaces/{workspace_uuid(name)}/"

    def _open_url(self, name: str, following: str) -> str:
        return f"{self._page_url(name)}open/?next={quote(following, safe='/')}"


def _not_found(*, html: bool) -> Answer:
    return Notice(404, "not_found", "Nothing is here", "Check the address.").answer(html=html)


def _method_not_allowed() -> Answer:
    return Notice(
        405, "method_not_allowed", "Not possible here", "Use GET or POST.", headers=(("allow", "GET, POST"),)
    ).answer(html=False)


async def _form(receive: Receive) -> str:
    """The body of a form; empty when it is larger than any that we ask for."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return ""
        body += bytes(message.get("body", b""))
        if len(body) > _MAX_FORM_BYTES:
            return ""
        if not message.get("more_body"):
            return body.decode("latin-1")


async def _respond(send: Send, answer: Answer, *, head: bool) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers]
    headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else answer.body})
