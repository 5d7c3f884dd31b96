"""The gateway's ASGI application: forward-auth, and the gateway's own paths on workspace hosts.

The application runs in front of Django, uses no database, and answers most requests from memory (`memory`).
If a check fails, the request is denied.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from portal.common.front_door import gateway_process_token
from portal.common.passes import key_of
from portal.workspaces.gateway import access, file_tickets, pages, tickets
from portal.workspaces.gateway.access import AccessRules, EntryRefused, Refusal, Resolve
from portal.workspaces.gateway.bearers import AuthorizeBearer
from portal.workspaces.gateway.entries import RecordEntry
from portal.workspaces.gateway.hosts import local_path, workspace_of_host, workspace_uuid
from portal.workspaces.gateway.memory import Memory
from portal.workspaces.gateway.pages import Notice
from portal.workspaces.gateway.request import ClientRequest, MalformedRequest, direct, forwarded_request
from portal.workspaces.gateway.streams import ConnectionLimitReached, Streams
from portal.workspaces.gateway.tickets import CookiePolicy
from portal.workspaces.gateway.workspace_views import WorkspaceView
from provisioning.endpoints import (
    GATEWAY_HEADER,
    HTTP_HEADER,
    HTTPS_HEADER,
    NODE_HEADER,
    SOCKET_HEADER,
    host_and_port,
)

_MAX_FORM_BYTES = 8192
_PROXY_PREFIX = "/gateway/"
_ENDING = "stopping"
_OWN_PREFIX = "/.berth/"
_SIGNED_IN_PATH = f"{_OWN_PREFIX}signed-in"
_CLIENT = "berth.client"

_SUMMARY_S = 2.0
"""Seconds for which a summary is cached, so that polling pages do not burden the database."""
_MAX_SUMMARIES = 512

Handler = Callable[[Request], Awaitable[Response]]
Describe = Callable[[str], Awaitable[dict[str, Any] | None]]
Extend = Callable[[str, str], Awaitable[tuple[int, dict[str, Any]]]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Configuration of the gateway.

    `secret` is a path segment known only to the front door; `public_url` is the portal's address. `passes` is
    the folder of passes, or `None` to disable them. With `passes_shared`, the group of this process can read
    them too. `front_door` is the host and port of the front door. If it is set, long-lived connections are
    closed when their authorization ends (`streams`).
    """

    secret: str = field(repr=False)
    domain: str
    public_url: str
    cookie_secure: bool
    passes: Path | None = None
    passes_shared: bool = False
    front_door: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        if len(self.secret) < 16 or not self.secret.isascii() or not self.secret.isalnum():
            raise ValueError("BERTH_GATEWAY_SECRET needs at least 16 letters and digits, and nothing else")
        if urlsplit(self.public_url).scheme not in ("http", "https"):
            raise ValueError("BERTH_PUBLIC_URL has to start with http:// or https://")


def build_app(
    settings: GatewaySettings,
    redis: Redis,
    resolve: Resolve,
    authorize_bearer: AuthorizeBearer,
    record_entry: RecordEntry,
    *,
    describe: Describe | None = None,
    extend: Extend | None = None,
    clock: Callable[[], float] = time.time,
) -> Gateway:
    """Return the application.

    `redis` uses the database of sessions and views. `resolve(external_name)` reads a view from the portal's
    database, or returns `None` if the workspace does not exist. `authorize_bearer(token, external_name)`
    returns the user id of a live token with the scope to connect, or `None`; the view decides whether that
    user may enter. `record_entry(entry)` records in the audit log that a token was used to enter, and returns
    `False` if the token is no longer valid. `describe` is `summary.summary_of` or an extended version of it.
    `extend(external_name, user_id)` extends the workspace and returns an HTTP status and a response body.
    """
    return Gateway(settings, redis, resolve, authorize_bearer, record_entry, describe, extend, clock)


class Gateway:
    """The gateway application; see `build_app`."""

    def __init__(
        self,
        settings: GatewaySettings,
        redis: Redis,
        resolve: Resolve,
        authorize_bearer: AuthorizeBearer,
        record_entry: RecordEntry,
        describe: Describe | None,
        extend: Extend | None,
        clock: Callable[[], float],
    ) -> None:
        self._describe = describe
        self._extend_by = extend
        self._described: dict[str, tuple[float, dict[str, Any] | None]] = {}
        self._domain = settings.domain
        self._auth_path = f"{_PROXY_PREFIX}{settings.secret}/auth".encode()
        self._redis = redis
        self._clock = clock
        self._cookie = CookiePolicy(secure=settings.cookie_secure)
        self._portal = settings.public_url.rstrip("/")
        self._access = AccessRules(
            redis,
            resolve,
            authorize_bearer,
            record_entry,
            cookie=self._cookie,
            scheme=urlsplit(settings.public_url).scheme,
            passes=(
                None
                if settings.passes is None
                else (settings.passes, key_of(settings.secret), settings.passes_shared)
            ),
            clock=clock,
            on_change=self._changed,
        )
        self._streams = None
        if settings.front_door is not None:
            self._streams = Streams(
                settings.front_door, gateway_process_token(settings.secret), self._reauthorize
            )
        endpoints: dict[str, Handler] = {
            "/gateway/{path:path}": self._nothing,
            "/.berth/page.css": self._style,
            "/.berth/enter": self._exchange,
            "/.berth/leave": self._leave,
            _SIGNED_IN_PATH: self._signed_in,
            "/.berth/workspace": self._summary,
            "/.berth/extend": self._extend,
        }
        self._router = Router(
            [Route(path, _Endpoint(handler, self._error_response)) for path, handler in endpoints.items()],
            redirect_slashes=False,
            default=_Endpoint(self._fallback, self._error_response),
        )

    async def close(self) -> None:
        """Stop listening to Redis, and close all long-lived connections."""
        if self._streams is not None:
            await self._streams.close()
        await self._access.close()

    def _changed(self, keys: frozenset[str] | None) -> None:
        if self._streams is not None:
            self._streams.changed(keys)

    async def _reauthorize(self, name: str, client: ClientRequest) -> list[tuple[bytes, bytes]] | None:
        """Return the current upstream headers for `client`, or `None` if the app does not answer.

        Raises `EntryRefused`.
        """
        view = await self._access.enter(name, client)
        # While an app stops, its connections stay open until it closes them itself.
        return _upstream_headers(view) if view.reachable or view.state == _ENDING else None

    @property
    def memory(self) -> Memory:
        """The cache of values read from Redis."""
        return self._access.memory

    def handles(self, scope: Scope) -> bool:
        """Return whether `scope` is for a workspace's host or for forward-auth."""
        if scope["type"] not in ("http", "websocket"):
            return False
        if scope["path"].startswith(_PROXY_PREFIX):
            return True
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return workspace_of_host(host.decode("latin-1"), self._domain) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            # The gateway's own paths do not use WebSockets.
            await WebSocketClose(1013, "Page not found.")(scope, receive, send)
        elif hmac.compare_digest(scope["path"].encode("utf-8", "surrogateescape"), self._auth_path):
            await self._auth(scope, receive, send)
        else:
            await self._router(scope, receive, send)

    # Forward-auth, below a path that only the front door knows.

    async def _auth(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a forward-auth request.

        Every request to a workspace waits for this answer, so the common case creates no objects. A response
        with status 200 carries the upstream headers (`_upstream_headers`) and the headers that replace the
        client's own. The front door passes any other response to the client, regardless of its status.
        """
        try:
            client = scope[_CLIENT] = forwarded_request(scope)
            if client.path.startswith(file_tickets.PREFIX):
                await (await self._transfer(client))(scope, receive, send)
                return
            view = await self._access.enter(self._workspace(client), client)
        except Exception as error:
            await self._error_response(Request(scope, receive), error)(scope, receive, send)
            return
        if not view.reachable:
            await self._unreachable_response(view, client)(scope, receive, send)
            return
        if client.service_worker and not view.service_workers:
            await pages.service_worker_notice().response(html=False)(scope, receive, send)
            return
        await self._access.create_pass(view, client)
        upstream = view.upstream_headers
        headers = [(b"cache-control", b"no-store"), (b"content-length", b"0")]
        if cookies := "; ".join(part for part in (client.app_cookies(), upstream.get("Cookie", "")) if part):
            headers.append((b"cookie", cookies.encode("latin-1")))
        if "Authorization" in upstream:
            headers.append((b"authorization", upstream["Authorization"].encode("latin-1")))
        try:
            headers += await self._route_headers(view, client)
        except ConnectionLimitReached:
            await pages.connections_notice().response(html=False)(scope, receive, send)
            return
        except Exception as error:
            await self._error_response(Request(scope, receive), error)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body"})

    async def _route_headers(self, view: WorkspaceView, client: ClientRequest) -> list[tuple[bytes, bytes]]:
        """Return the upstream headers. They route long-lived connections through this process.

        Raises `ConnectionLimitReached`, `OSError`.
        """
        headers = _upstream_headers(view)
        if self._streams is None or not client.lasting:
            return headers
        name = view.external_name
        return await self._streams.expect(name, client, headers, self._access.depends_on(name, client))

    async def _transfer(self, client: ClientRequest) -> Response:
        """Route a file transfer to the file server of the home.

        The ticket in the path is valid for one request.
        """
        name = self._workspace(client)
        ticket = file_tickets.ticket_in_path(client.path)
        destination = None
        if ticket is not None:
            async with asyncio.timeout(access.STORE_TIMEOUT_S):
                read = file_tickets.peek_ticket if client.method == "OPTIONS" else file_tickets.redeem_ticket
                destination = await read(self._redis, ticket, name)
        if destination is None:
            return Notice(
                403,
                "ticket_spent",
                "This link has been used or has expired",
                "A file link works once. Go back and request a new one.",
                link=f"{self._page_url(name)}files/",
                link_text="View files",
            ).response(html=client.navigation or client.method == "POST")
        headers = {"cache-control": "no-store"}
        if destination.gateway:
            headers |= {GATEWAY_HEADER: destination.gateway, NODE_HEADER: destination.node}
        return Response(headers={**headers, SOCKET_HEADER: destination.socket})

    async def _nothing(self, request: Request) -> Response:
        raise _NotFound

    # A workspace's host: the gateway's own paths, and a page for requests that bypassed forward-auth.

    async def _style(self, request: Request) -> Response:
        self._workspace(_remember_client(request, direct(request.scope)))
        headers = {"cache-control": "max-age=3600", "x-content-type-options": "nosniff"}
        return Response(pages.CSS, headers=headers, media_type="text/css")

    async def _exchange(self, request: Request) -> Response:
        """Exchange a one-time ticket for a session cookie of this origin."""
        client = _remember_client(request, direct(request.scope))
        name = self._workspace(client)
        if request.method not in ("GET", "POST"):
            return pages.METHOD_NOT_ALLOWED.response(html=False)
        text = client.query if request.method == "GET" else await _form(request)
        try:
            values = parse_qs(text, max_num_fields=10)
        except ValueError:
            values = {}
        presented = values.get("ticket", [])
        following = local_path(values.get("next", ["/"])[0])
        cookie = None
        if len(presented) == 1:
            async with asyncio.timeout(access.STORE_TIMEOUT_S):
                cookie = await tickets.exchange(
                    self._redis, ticket=presented[0], external_name=name, clock=self._clock
                )
        if cookie is None:
            return Notice(
                403,
                "ticket_spent",
                "This link has been used or has expired",
                "A link to a workspace works once, within 30 s. Open the workspace again.",
                link=self._open_url(name, following),
                link_text="Open the workspace",
            ).response(html=client.navigation or request.method == "POST")
        return pages.redirect(following, status=303, headers={"set-cookie": self._cookie.set_header(cookie)})

    async def _signed_in(self, request: Request) -> Response:
        """Confirm a new session to a user whose app is open in another tab."""
        client = _remember_client(request, direct(request.scope))
        await self._access.enter(self._workspace(client), client)
        return pages.SIGNED_IN.response(html=client.navigation)

    async def _summary(self, request: Request) -> Response:
        """Return the state, usage and messages of the workspace, as JSON for the pages of its app."""
        client = _remember_client(request, direct(request.scope))
        name = self._workspace(client)
        if request.method != "GET":
            return pages.METHOD_NOT_ALLOWED.response(html=False)
        await self._access.enter(name, client)
        summary = await self._summary_of(name)
        if summary is None:
            raise _NotFound
        page = self._page_url(name)
        body = {**summary, "page": page, "stop": f"{page}stop/"}
        return Response(
            msgspec.json.encode(body), headers=pages.SECURITY_HEADERS, media_type="application/json"
        )

    async def _extend(self, request: Request) -> Response:
        """Extend the workspace on behalf of the signed-in user, from a page of its app."""
        client = _remember_client(request, direct(request.scope))
        name = self._workspace(client)
        if self._extend_by is None:
            raise _NotFound
        if request.method != "POST":
            return pages.METHOD_NOT_ALLOWED.response(html=False)
        if not client.headers.get("origin") and client.first("sec-fetch-site") != "same-origin":
            # Every browser sends the origin of a POST, so a request without one is refused.
            raise EntryRefused(Refusal.FOREIGN_ORIGIN, name, client)
        _view, user = await self._access.enter_in_person(name, client)
        status, body = await self._extend_by(name, user)
        self._described.pop(name, None)
        return Response(
            msgspec.json.encode(body), status, headers=pages.SECURITY_HEADERS, media_type="application/json"
        )

    async def _summary_of(self, name: str) -> dict[str, Any] | None:
        now = self._clock()
        cached_at, summary = self._described.get(name, (0.0, None))
        if self._describe is not None and not 0 <= now - cached_at < _SUMMARY_S:
            summary = await self._describe(name)
            if len(self._described) >= _MAX_SUMMARIES:
                self._described.clear()
            self._described[name] = (now, summary)
        return summary

    async def _leave(self, request: Request) -> Response:
        client = _remember_client(request, direct(request.scope))
        name = self._workspace(client)
        if request.method not in ("GET", "POST"):
            return pages.METHOD_NOT_ALLOWED.response(html=False)
        for cookie in client.session_cookies(self._cookie.name):
            async with asyncio.timeout(access.STORE_TIMEOUT_S):
                await tickets.end(self._redis, cookie)
            self._access.forget(tickets.session_key(cookie))
        headers = {"set-cookie": self._cookie.clear_header()}
        return pages.redirect(self._page_url(name), status=303, headers=headers)

    async def _fallback(self, request: Request) -> Response:
        client = _remember_client(request, direct(request.scope))
        name = self._workspace(client)
        if client.path.startswith(_OWN_PREFIX):
            raise _NotFound
        return self._unreachable_response(await self._access.enter(name, client), client)

    def _workspace(self, client: ClientRequest) -> str:
        """Return the external name of the workspace in the request's host. Raises `_NotFound`."""
        name = workspace_of_host(client.host, self._domain)
        if name is None:
            raise _NotFound
        return name

    def _unreachable_response(self, view: WorkspaceView, client: ClientRequest) -> Response:
        page_url = self._page_url(view.external_name)
        if view.simulated:
            return pages.simulated_notice(view.name, page_url).response(html=client.navigation)
        return pages.state_notice(view.name, view.state, page_url).response(html=client.navigation)

    def _error_response(self, request: Request, error: Exception) -> Response:
        """Return the response for an exception raised by a handler."""
        client: ClientRequest | None = request.scope.get(_CLIENT)
        html = client is not None and client.navigation
        match error:
            case EntryRefused():
                return self._refusal_response(error)
            case _NotFound():
                in_page = html and not request.scope["path"].startswith(_PROXY_PREFIX)
                return Notice(404, "not_found", "Page not found", "Check the address.").response(html=in_page)
            case MalformedRequest():
                return Notice(
                    400,
                    "bad_request",
                    "Not a request for a workspace",
                    "Use the address that the portal shows.",
                ).response(html=False)
            case RedisError() | OSError():
                log.warning("Redis not reachable: %s", type(error).__name__)
                return pages.store_unavailable_notice(f"{self._portal}/").response(html=html)
            case _:
                log.error("gateway request failed", exc_info=error)
                return pages.lookup_failed_notice(f"{self._portal}/").response(html=html)

    def _refusal_response(self, refused: EntryRefused) -> Response:
        client = refused.client
        match refused.refusal:
            case Refusal.NOT_SIGNED_IN:
                return self._sign_in(refused.name, client)
            case Refusal.FOREIGN_ORIGIN:
                log.warning("refused entry to %s: request from another origin", refused.name)
                notice = pages.foreign_origin_notice(self._page_url(refused.name))
            case Refusal.FORBIDDEN:
                log.warning("refused entry to %s: user has no access", refused.name)
                notice = pages.forbidden_notice(f"{self._portal}/")
        return notice.response(html=client.navigation)

    def _sign_in(self, name: str, client: ClientRequest) -> Response:
        """Redirect browsers to the portal for a ticket; answer programs with a 401."""
        if client.navigation:
            return pages.redirect(self._open_url(name, local_path(client.target)))
        return pages.sign_in_notice(self._open_url(name, _SIGNED_IN_PATH)).response(html=False)

    def _page_url(self, name: str) -> str:
        return f"{self._portal}/workspaces/{workspace_uuid(name)}/"

    def _open_url(self, name: str, following: str) -> str:
        return f"{self._page_url(name)}open/?next={quote(following, safe='/')}"


def _upstream_headers(view: WorkspaceView) -> list[tuple[bytes, bytes]]:
    """Return the upstream headers of a workspace, as `portal.embedded.proxy` reads them."""
    if view.gateway:
        headers = {GATEWAY_HEADER: view.gateway, NODE_HEADER: view.node, SOCKET_HEADER: view.socket}
    elif view.socket:
        headers = {SOCKET_HEADER: view.socket}
    else:
        scheme, address = host_and_port(view.endpoint) or ("", "")
        headers = {HTTPS_HEADER if scheme == "https" else HTTP_HEADER: address}
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


class _NotFound(Exception):
    """The path or workspace does not exist, or must not be disclosed."""


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """ASGI endpoint for every method. `failure` returns the response if `handler` raises.

    This is a class because Starlette restricts function endpoints to GET and answers other methods in plain
    text.
    """

    handler: Handler
    failure: Callable[[Request, Exception], Response]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self.handler(request)
        except Exception as error:
            response = self.failure(request, error)
        await response(scope, receive, send)


def _remember_client(request: Request, client: ClientRequest) -> ClientRequest:
    """Store `client` on the request, so that `_error_response` chooses a format it understands."""
    request.scope[_CLIENT] = client
    return client


async def _form(request: Request) -> str:
    """Return the request body of a form, or an empty string if it exceeds `_MAX_FORM_BYTES`."""
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_FORM_BYTES:
                return ""
    except ClientDisconnect:
        return ""
    return body.decode("latin-1")
