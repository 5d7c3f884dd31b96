"""Configuration of Caddy, the front door of the portal and of all workspaces on every machine.

Every request for a workspace's host first goes to forward-auth, whose answer names the upstream: a Unix
socket on this machine, the gateway of another node, or an address. Any other answer is returned to the client
unchanged. A gap here is a security hole, so change this module together with its tests.

The same process connects this machine's workspaces with the portal, like `provisioning.node_gateway` on other
machines. It therefore runs in the folder of the local driver's state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portal.common import front_door
from portal.common.front_door import STREAM_HEADER, STREAM_PLACE_HEADER
from portal.embedded import outage
from portal.embedded import passes as fast
from provisioning import node_gateway
from provisioning.endpoints import (
    GATEWAY_HEADER,
    HTTP_HEADER,
    HTTPS_HEADER,
    NODE_HEADER,
    PROBE_LABEL,
    SOCKET_HEADER,
    SOCKET_NAME,
    UNAVAILABLE_HEADER,
)
from provisioning.node_gateway import CHUNKED, SECOND_NS, Certificates

HEALTH_HOST = "health.berth.internal"
"""The front door itself answers requests for this host with 200, so health checks need no other port."""

YEAR_S = 31_536_000
READ_TIMEOUT_S = 3600
BODY_TIMEOUT_S = 30
"""Maximum time from the first byte of a request to the end of its body, or until forward-auth admits it."""
SMALL_BODY_BYTES = 64 * 1024
"""Maximum body that anonymous clients may send, such as sign-in forms or tokens of other issuers."""
MAX_BODY_BYTES = 4 * 1024 * 1024
"""Larger than any request body that the portal accepts. Requests to workspaces have no limit."""
MAX_LARGE_BODIES = 24
"""Maximum number of large bodies in memory at once. Each takes up to 8 MiB."""
SAML, MAX_SAML_BYTES, MAX_SAML_BODIES = "^/sign-in/saml/[^/]+/acs/$", 512 * 1024, 16
"""Limits for SAML responses, which arrive without authentication and may name hundreds of groups."""
MAX_HEADER_BYTES = 64 * 1024
IDLE_NS = 180 * SECOND_NS
# web and the gateway keep a connection for 120 s. The front door must close it first.
PORTAL_IDLE_NS = 60 * SECOND_NS
OWN_HEADERS = "X-Berth-*"

_UUID = "[0-9a-fA-F-]{36}"
STREAMS: tuple[tuple[str, str], ...] = (
    (f"^/(workspaces/{_UUID}/)?events/$", ""),
    (f"^/api/v1/workspaces/{_UUID}/(events|logs)/stream/?$", ""),
    (f"^/api/v1/gpu-checks/{_UUID}/stream/?$", ""),
    ("^/api/v1/events/stream/?$", ""),
    (f"^/api/v1/environments/[A-Za-z0-9_-]+/builds/{_UUID}/stream/?$", ""),
    (f"^/api/v1/workspaces/{_UUID}/events/?$", "text/event-stream"),
)
"""Path and Accept patterns of the portal's event streams. Keep in sync with `portal.stream_urls`."""

# Agents and the front door's own requests connect over loopback, never through the front door. No portal path
# contains an encoded slash, backslash, dot segment or parameter, so the path matched here is the path that
# the portal reads. The path is matched in the form in which it is forwarded.
INTERNAL_PATHS = r"(?i)^/+(gateway|agent|nodes)(/|$)"
SUSPICIOUS_PATHS = r"(?i)^[^?]*(%2f|%5c|%25|%2e|%3b|%00|;|\\|//|/\.\.?(/|\?|$))"
COMPRESSED = (
    "text/html*", "text/css*", "text/plain*", "text/csv*", "text/javascript*", "application/json*",
    "application/problem+json*", "application/scim+json*", "application/javascript*", "application/x-ndjson*",
    "application/vnd.oai.openapi*", "image/svg+xml*",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Upstreams:
    """Upstreams of the front door: web and the gateway process as `host:port`, and the agents' URL."""

    web: str
    gateway: str
    agents_url: str


def config(
    *,
    listen: str,
    places: Upstreams,
    domain: str,
    secret: str,
    certificates: Certificates,
    storage: Path,
    https: bool = False,
    trusted_proxies: Sequence[str] = (),
    read_timeout_s: int = READ_TIMEOUT_S,
    passes: Path | None = None,
) -> str:
    """Return Caddy's configuration as JSON.

    `listen` is `host:port`, or `unix/PATH` behind `portal.embedded.front_guard`. `secret` is the path secret
    of forward-auth, `certificates` are the client certificates for other nodes' gateways, `storage` is a
    folder for Caddy itself. `https`: TLS ends in front of the front door. `passes` is the folder in which the
    gateway process stores passes, or None to disable passes. `read_timeout_s` is how long an upload to a
    workspace may pause.
    """
    upload: dict[str, Any] = {"handler": "timeouts", "read_timeout": read_timeout_s * SECOND_NS}
    workspace = _workspace(
        places.gateway,
        secret,
        certificates,
        https=https,
        passes=None if passes is None else fast.Passes(passes, secret, tokens=not trusted_proxies),
        upload=upload,
    )
    server: dict[str, Any] = {
        **node_gateway.SERVER,
        "listen": [listen],
        "max_header_bytes": MAX_HEADER_BYTES,
        # Time limit for a request with its body, which only `upload` extends. Responses, WebSockets and event
        # streams have no limit.
        "read_timeout": BODY_TIMEOUT_S * SECOND_NS,
        "idle_timeout": IDLE_NS,
        "routes": [
            {"handle": _response_handlers(https=https)},
            node_gateway.CLOSE_AFTER_CHUNKS,
            _authorized_route(secret, certificates, upload),
            _drop_forged_headers(trusted_proxies),
            {
                "match": [{"host": [HEALTH_HOST]}],
                "handle": [{"handler": "static_response", "status_code": 200, "body": "ok\n"}],
                "terminal": True,
            },
            {
                # Portal pages use this host to test whether the browser can reach workspaces.
                "match": [{"host": [f"{PROBE_LABEL}.{domain}"]}],
                "handle": [
                    {
                        "handler": "static_response",
                        "status_code": 204,
                        "headers": {"Access-Control-Allow-Origin": ["*"], "Cache-Control": ["no-store"]},
                    }
                ],
                "terminal": True,
            },
            {
                "match": [{"header_regexp": {"Host": {"name": fast.HOST, "pattern": _hosts(domain)}}}],
                "handle": [{"handler": "subroute", "routes": workspace}],
                "terminal": True,
            },
            {
                "match": [
                    {"path_regexp": {"pattern": INTERNAL_PATHS}},
                    {"vars_regexp": {"{http.request.uri}": {"pattern": SUSPICIOUS_PATHS}}},
                ],
                "handle": [outage.NOT_FOUND],
                "terminal": True,
            },
            {
                "match": [_stream(path, accept) for path, accept in STREAMS],
                "handle": [_door("portal"), _small_body(), _to_portal(places.gateway, secret)],
                "terminal": True,
            },
            {
                # Checked before the upstream is contacted. For a chunked body, the length is checked as it
                # arrives.
                "match": [{"header_regexp": {"Content-Length": {"pattern": more_than(MAX_BODY_BYTES)}}}],
                "handle": [_door("portal"), {"handler": "error", "status_code": 413}],
                "terminal": True,
            },
            *_large_bodies(places.web, secret),
            _live(places, secret),
            {"handle": [_door("portal"), _COMPRESS, *_buffered(places.web, secret, SMALL_BODY_BYTES)]},
        ],
        "errors": {"routes": outage.routes()},
    }
    if listen.startswith("unix/"):
        # Access is controlled by permissions of the socket.
        server["listener_wrappers"] = [{"wrapper": "proxy_protocol", "timeout": 5 * SECOND_NS}]
    if trusted_proxies:
        server["trusted_proxies"] = {"source": "static", "ranges": list(trusted_proxies)}
    servers = {"front-door": server, "agents": node_gateway.agents_server(places.agents_url, tls={})}
    return node_gateway.caddy(servers, storage=storage)


def more_than(number: int) -> str:
    """Return a pattern that matches decimal numbers above `number`."""
    digits = str(number)
    patterns = [rf"[1-9][0-9]{{{len(digits)},}}"]
    for place, digit in enumerate(digits):
        if digit != "9":
            left = len(digits) - place - 1
            patterns.append(f"{digits[:place]}[{int(digit) + 1}-9][0-9]{{{left}}}")
    return f"^0*({'|'.join(patterns)})$"


def _hosts(domain: str) -> str:
    return rf"(?i)^(ws-[0-9a-f]{{32}})\.{re.escape(domain)}\.?(:[0-9]+)?$"


def _response_handlers(*, https: bool) -> list[dict[str, Any]]:
    """Return handlers that set HSTS in every response and hide the server software."""
    headers = {"Strict-Transport-Security": [f"max-age={YEAR_S}; includeSubDomains"]} if https else {}
    return [
        {"handler": "headers", "response": {"set": headers, "delete": ["Server"]}},
        {"handler": "headers", "response": {"deferred": True, "delete": ["Via"]}},
    ]


# The front door sets these headers, so remove them from upstream responses.
_SINGLE_HEADERS = ["Strict-Transport-Security"]


def _drop_forged_headers(trusted_proxies: Sequence[str]) -> dict[str, Any]:
    """Return a route that drops forwarding headers of clients other than trusted proxies."""
    route: dict[str, Any] = {
        "handle": [
            {
                "handler": "headers",
                "request": {"delete": ["X-Forwarded-*", OWN_HEADERS, "X-Real-Ip", "Forwarded"]},
            }
        ]
    }
    if trusted_proxies:
        route["match"] = [{"not": [{"remote_ip": {"ranges": list(trusted_proxies)}}]}]
    return route


def _stream(path: str, accept: str) -> dict[str, Any]:
    match: dict[str, Any] = {"path_regexp": {"pattern": path}}
    if accept:
        match["header_regexp"] = {"Accept": {"pattern": re.escape(accept)}}
    return match


def _door(name: str) -> dict[str, Any]:
    """Return a handler that records the kind of upstream, for `outage.routes`."""
    return {"handler": "vars", "door": name}


_COMPRESS = {
    "handler": "encode",
    "encodings": {"gzip": {}, "zstd": {}},
    "prefer": ["zstd", "gzip"],
    "minimum_length": 1024,
    # Event streams are excluded, because each line has to arrive at once.
    "match": {"headers": {"Content-Type": list(COMPRESSED)}},
}


def _to_portal(address: str, secret: str) -> dict[str, Any]:
    """Return a handler that forwards to web or the gateway process, with the front door's credential."""
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": address}],
        # Page requests are small, and anonymous clients can open many at once.
        "transport": node_gateway.transport(idle_ns=PORTAL_IDLE_NS, idle=64, read_buffer_size=4096),
        "headers": {
            "request": {
                "set": {front_door.TOKEN_HEADER: [front_door.token_of(secret)]},
                "delete": [SOCKET_HEADER],
            },
            "response": {"delete": _SINGLE_HEADERS},
        },
    }


def _small_body() -> dict[str, Any]:
    return {"handler": "request_body", "max_size": SMALL_BODY_BYTES}


def _buffered(address: str, secret: str, size: int) -> list[dict[str, Any]]:
    """Return handlers to web that buffer a body of up to `size` bytes until it is complete.

    A thread of the portal therefore never waits for a body. The buffer is one byte larger than the limit, so
    that a body that is too large cannot fill it.
    """
    return [
        {"handler": "request_body", "max_size": size},
        {**_to_portal(address, secret), "request_buffers": size + 1},
    ]


def _large_bodies(address: str, secret: str) -> list[dict[str, Any]]:
    """Return the routes for large bodies. The last one is for authenticated clients."""
    large = [{"header_regexp": {"Content-Length": {"pattern": more_than(SMALL_BODY_BYTES)}}}, CHUNKED]
    # Caddy counts requests by the text of the address, so each route has a different text.
    saml = _counted(
        f"tcp4/{address}",
        f"{front_door.LIVE_PATH}?",
        MAX_SAML_BODIES,
        _buffered(address, secret, MAX_SAML_BYTES),
    )
    counted = _counted(
        f"tcp/{address}",
        f"{front_door.LARGE_BODY_PATH}?",
        MAX_LARGE_BODIES,
        _buffered(address, secret, MAX_BODY_BYTES),
        {front_door.TOKEN_HEADER: [front_door.token_of(secret)]},
    )
    return [
        {
            "match": [{**matcher, "method": ["POST"], "path_regexp": {"pattern": SAML}} for matcher in large],
            "handle": [_door("large"), saml],
            "terminal": True,
        },
        {"match": large, "handle": [_door("large"), _COMPRESS, counted], "terminal": True},
    ]


def _live(places: Upstreams, secret: str) -> dict[str, Any]:
    """Return the route with which load balancers probe this host: the gateway process and web must answer.

    The gateway process is asked first, because without it this host serves no notebooks or streams.
    """
    ask = {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": places.gateway}],
        "transport": node_gateway.transport(idle_ns=PORTAL_IDLE_NS, idle=1),
        "rewrite": {"method": "GET", "uri": f"{front_door.LIVE_PATH}?"},
        "headers": {"request": {"delete": ["Connection", "Upgrade", SOCKET_HEADER]}},
        "handle_response": [
            {
                "match": {"status_code": [200]},
                "routes": [{"handle": [_small_body(), _to_portal(places.web, secret)]}],
            }
        ],
    }
    return {
        "match": [{"path": [front_door.LIVE_PATH]}],
        "handle": [_door("portal"), ask],
        "terminal": True,
    }


def _counted(
    address: str,
    uri: str,
    at_once: int,
    to_portal: list[dict[str, Any]],
    proof: Mapping[str, list[str]] | None = None,
) -> dict[str, Any]:
    """Return a handler that first asks web at `uri`, and reads the body only if web agrees.

    A request counts until it has been answered. Above `at_once` requests, the answer is 503.
    """
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": address, "max_requests": at_once}],
        "transport": node_gateway.transport(idle_ns=PORTAL_IDLE_NS, idle=at_once),
        "rewrite": {"method": "GET", "uri": uri},
        "headers": {
            "request": {"set": dict(proof or {}), "delete": ["Connection", "Upgrade", SOCKET_HEADER]},
            "response": {"delete": _SINGLE_HEADERS},
        },
        "handle_response": [
            {
                "match": {"status_code": [200, 204]},
                "routes": [{"handle": [_door("portal"), *to_portal]}],
            }
        ],
    }


def _workspace(
    auth: str,
    secret: str,
    certificates: Certificates,
    *,
    https: bool,
    passes: fast.Passes | None,
    upload: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return the routes of a workspace's host: file transfers, the gateway's own paths, the app."""
    to_app = {**node_gateway.to_socket("pass"), "headers": {"response": {"delete": _SINGLE_HEADERS}}}
    routes = (
        [fast.route(passes, https=https, own_headers=OWN_HEADERS, to_app=[upload, to_app])] if passes else []
    )
    return [
        {
            "match": [{"path_regexp": {"pattern": r"^/\.berth/files/"}}],
            "handle": [_door("portal"), _guard(auth, secret, certificates, upload)],
            "terminal": True,
        },
        {
            "match": [{"path_regexp": {"pattern": r"^/\.berth/"}}],
            "handle": [_door("portal"), _small_body(), _to_portal(auth, secret)],
            "terminal": True,
        },
        *routes,
        {"handle": [_door("portal"), _guard(auth, secret, certificates, upload)]},
    ]


def _guard(auth: str, secret: str, certificates: Certificates, upload: dict[str, Any]) -> dict[str, Any]:
    """Return a handler that authorizes a request with forward-auth and routes it by that response."""
    routes = [(STREAM_PLACE_HEADER, [], _to_stream()), *_workspace_routes(_auth_header, certificates)]
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": auth}],
        "transport": node_gateway.transport(idle_ns=PORTAL_IDLE_NS, idle=256),
        "rewrite": {"method": "GET", "uri": f"/gateway/{secret}/auth?"},
        "headers": {
            "request": {
                "set": {
                    "X-Forwarded-Method": ["{http.request.method}"],
                    "X-Forwarded-Uri": ["{http.request.uri}"],
                    "X-Forwarded-Host": ["{http.request.hostport}"],
                },
                # The subrequest asks about a WebSocket handshake but does not perform it. Its path
                # authenticates the front door.
                "delete": ["Connection", "Upgrade", front_door.TOKEN_HEADER, SOCKET_HEADER],
            },
            "response": {"delete": _SINGLE_HEADERS},
        },
        "handle_response": [
            {
                "match": {"status_code": [200], "headers": {header: ["*"]}},
                "routes": [*_credentials(), {"handle": [*noted, _door("workspace"), upload, route]}],
            }
            # The first matching header applies.
            for header, noted, route in routes
        ],
    }


Read = Callable[[str], str]
"""Returns the placeholder of a header, in forward-auth's answer or in an authenticated request."""


def _auth_header(header: str) -> str:
    """Return the placeholder of a header in forward-auth's answer."""
    return f"{{http.reverse_proxy.header.{header}}}"


def _stored_header(header: str) -> str:
    """Return the placeholder of a request header that `_authorized_route` has stored."""
    return f"{{http.vars.{header}}}"


def _workspace_routes(
    read: Read, certificates: Certificates, replaced: Mapping[str, list[str]] | None = None
) -> list[tuple[str, list[dict[str, Any]], dict[str, Any]]]:
    """Return the routes to a workspace: selecting header, handlers to run first, and final handler.

    `replaced` are headers that replace Caddy's own.
    """
    headers = dict(replaced or {})
    return [
        (
            GATEWAY_HEADER,
            [{"handler": "vars", "node": read(NODE_HEADER)}],
            _to_app(
                read(GATEWAY_HEADER),
                tls=node_gateway.client_tls(
                    certificates, server_name=node_gateway.node_name("{http.vars.node}")
                ),
                add={**headers, SOCKET_HEADER: [read(SOCKET_HEADER)]},
            )
            | {"handle_response": [_UNAVAILABLE]},
        ),
        (SOCKET_HEADER, [], _to_socket(read, add=headers)),
        (HTTP_HEADER, [], _to_app(read(HTTP_HEADER), add=headers)),
        (HTTPS_HEADER, [], _to_app(read(HTTPS_HEADER), tls={}, add=headers)),
    ]


# A node's gateway could not reach the app. Answer as for an app on this machine.
_UNAVAILABLE: dict[str, Any] = {
    "match": {"status_code": [502, 504], "headers": {UNAVAILABLE_HEADER: ["*"]}},
    "routes": [{"handle": [{"handler": "error", "status_code": "{http.reverse_proxy.status_code}"}]}],
}


def _to_stream() -> dict[str, Any]:
    """Return a handler to the gateway process, which uses `_authorized_route` while access is valid."""
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": f"unix/{_auth_header(STREAM_PLACE_HEADER)}"}],
        "transport": {**node_gateway.transport(idle_ns=SECOND_NS, idle=1), "keep_alive": {"enabled": False}},
        "headers": {
            "request": {"set": {STREAM_HEADER: [_auth_header(STREAM_HEADER)]}},
            "response": {"delete": _SINGLE_HEADERS},
        },
        **node_gateway.TO_APP,
    }


def _authorized_route(secret: str, certificates: Certificates, upload: dict[str, Any]) -> dict[str, Any]:
    """Return the route of authorized requests from the gateway process, which names the upstream."""
    # As received on the client's own connection to the front door.
    forwarded = ("X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host")
    noted = (GATEWAY_HEADER, NODE_HEADER, SOCKET_HEADER, HTTP_HEADER, HTTPS_HEADER)
    values = {name: f"{{http.request.header.{name}}}" for name in (*noted, *forwarded)}
    routes = _workspace_routes(
        _stored_header, certificates, {name: [_stored_header(name)] for name in forwarded}
    )
    return {
        "match": [{"header": {front_door.ONWARD_HEADER: [front_door.gateway_process_token(secret)]}}],
        "handle": [
            {"handler": "vars", **values},
            {"handler": "headers", "request": {"delete": [OWN_HEADERS]}},
            {
                "handler": "subroute",
                "routes": [
                    {
                        "match": [{"vars_regexp": {_stored_header(header): {"pattern": "."}}}],
                        "handle": [*before, _door("workspace"), upload, route],
                        "terminal": True,
                    }
                    for header, before, route in routes
                ],
            },
        ],
        "terminal": True,
    }


def _credentials() -> list[dict[str, Any]]:
    """Return routes that replace the client's credentials with forward-auth's and drop Berth's headers."""
    routes: list[dict[str, Any]] = [
        {"handle": [{"handler": "headers", "request": {"delete": ["Authorization", "Cookie", OWN_HEADERS]}}]}
    ]
    for name in ("Authorization", "Cookie"):
        routes.append(
            {
                "match": [{"vars_regexp": {_auth_header(name): {"pattern": "."}}}],
                "handle": [{"handler": "headers", "request": {"set": {name: [_auth_header(name)]}}}],
            }
        )
    return routes


def _to_socket(read: Read, *, add: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return a handler to a workspace on this machine. An invalid socket name results in 502."""
    handler = node_gateway.to_socket()
    handler["headers"] = {"request": {"set": dict(add)}, "response": {"delete": _SINGLE_HEADERS}}
    pattern = {"name": "socket", "pattern": f"^{SOCKET_NAME.pattern}$"}
    return {
        "handler": "subroute",
        "routes": [
            {
                "match": [{"vars_regexp": {read(SOCKET_HEADER): pattern}}],
                "handle": [handler],
                "terminal": True,
            },
            {"handle": [{"handler": "error", "status_code": 502}]},
        ],
    }


def _to_app(
    address: str, *, tls: dict[str, Any] | None = None, add: dict[str, list[str]] | None = None
) -> dict[str, Any]:
    more = {} if tls is None else {"tls": tls}
    # Over TLS, Caddy would send the upstream's address.
    headers = {"Host": ["{http.request.hostport}"], **(add or {})}
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": address}],
        "transport": node_gateway.transport(idle_ns=node_gateway.APP_IDLE_NS, idle=64, **more),
        "headers": {"request": {"set": headers}, "response": {"delete": _SINGLE_HEADERS}},
        **node_gateway.TO_APP,
    }
