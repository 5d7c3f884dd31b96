"""A client's request as the gateway judges it, and the policies that need nothing but the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import Scope

from portal.workspaces.gateway.hosts import same_origin
from portal.workspaces.gateway.tickets import MAX_COOKIES

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_COOKIES = frozenset({"berth_ws", "__Host-berth_ws"})
_BEARER = "bearer "
_MAX_TOKEN = 512


class Malformed(Exception):
    """A header that must be there once is missing, doubled or not readable."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What a client asked of a workspace's host, here or at the front door. `address` is the client's."""

    host: str
    method: str
    target: str
    headers: Mapping[str, Sequence[str]]
    address: str = ""

    def first(self, name: str) -> str:
        """The header's value, lower case; empty when it is missing or sent twice."""
        return self.sent(name).strip().lower()

    def sent(self, name: str) -> str:
        """The header as it was sent; empty when it is missing or sent twice."""
        values = self.headers.get(name, ())
        return values[0] if len(values) == 1 else ""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    @property
    def websocket(self) -> bool:
        """Hop-by-hop headers do not reach forward-auth, so the handshake's own ones decide."""
        return "sec-websocket-key" in self.headers or "sec-websocket-version" in self.headers

    @property
    def lasting(self) -> bool:
        """Whether it outlives what was decided when it was made: a WebSocket, or a stream of events."""
        return self.websocket or any(
            "text/event-stream" in value.lower() for value in self.headers.get("accept", ())
        )

    @property
    def service_worker(self) -> bool:
        """Whether a browser asks for the script of a service worker, which it says of itself."""
        return "service-worker" in self.headers

    @property
    def navigation(self) -> bool:
        """Whether a person looks at the answer in a browser's window."""
        if self.method not in ("GET", "HEAD") or self.websocket:
            return False
        mode = self.first("sec-fetch-mode")
        return mode == "navigate" if mode else "text/html" in self.first("accept")

    @property
    def bearer(self) -> str:
        """The bearer token, or empty. Two Authorization headers count as none."""
        values = self.headers.get("authorization", ())
        if len(values) != 1 or values[0][: len(_BEARER)].lower() != _BEARER:
            return ""
        token = values[0][len(_BEARER) :].strip()
        return token if 0 < len(token) <= _MAX_TOKEN and token.isascii() and token.isprintable() else ""

    def session_cookies(self, name: str) -> list[str]:
        """The distinct values sent under our cookie's name: another host of the domain may add some."""
        found: list[str] = []
        for pair in self._cookie_pairs():
            key, _, value = pair.partition("=")
            if key.strip() == name and value and len(value) <= 256 and value not in found:
                found.append(value)
        return found if len(found) <= MAX_COOKIES else []

    def app_cookies(self) -> str:
        """The Cookie header without ours, for the app."""
        pairs = self._cookie_pairs()
        return "; ".join(pair for pair in pairs if pair.partition("=")[0].strip() not in _OWN_COOKIES)

    def _cookie_pairs(self) -> list[str]:
        pairs = map(str.strip, ";".join(self.headers.get("cookie", ())).split(";"))
        return [pair for pair in pairs if pair]

    def foreign(self, scheme: str) -> bool:
        """Whether another origin's page sent this: refused where it could act or embed.

        Workspaces of one domain are the same site to a browser, so SameSite does not part them.
        """
        origins = self.headers.get("origin", ())
        acts = self.websocket or self.method not in _SAFE_METHODS
        if acts and origins:
            return len(origins) != 1 or not same_origin(origins[0].strip(), self.host, scheme)
        if self.first("sec-fetch-site") not in ("cross-site", "same-site"):
            return False
        # A link from the portal or elsewhere may open the workspace; nothing may embed or load it.
        opens = self.first("sec-fetch-mode") == "navigate" and not acts
        return not (opens and self.first("sec-fetch-dest") in ("document", ""))


def direct(scope: Scope) -> ClientRequest:
    """The request as it came, on a workspace's own host. Raises `Malformed`."""
    target = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    if scope.get("query_string"):
        target += "?" + scope["query_string"].decode("latin-1")
    headers = _by_name(scope)
    return ClientRequest(_once(headers, "host"), scope["method"], target, headers, _address(scope))


def forwarded(scope: Scope) -> ClientRequest:
    """The request that the front door asks about. Raises `Malformed`."""
    headers = _by_name(scope)
    method = _once(headers, "x-forwarded-method").upper()
    target = _once(headers, "x-forwarded-uri")
    if not target.startswith("/"):
        # The absolute form of a request line.
        parts = urlsplit(target)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return ClientRequest(_once(headers, "x-forwarded-host"), method, target, headers, _address(scope))


def _address(scope: Scope) -> str:
    """Who asks, as the server has found out from the proxies that it believes."""
    client = scope.get("client")
    return client[0] if client else ""


def _by_name(scope: Scope) -> dict[str, list[str]]:
    """The headers, whose names a server of ASGI sends in lower case.

    Ten of them are looked at for each request; in Starlette's `Headers` each look goes through the list.
    """
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return headers


def _once(headers: Mapping[str, Sequence[str]], name: str) -> str:
    values = headers.get(name, ())
    if len(values) != 1 or not values[0]:
        raise Malformed(name)
    return values[0]
