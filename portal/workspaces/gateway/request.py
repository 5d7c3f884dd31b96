"""A client's request, and the rules that depend on the request alone."""

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


class MalformedRequest(Exception):
    """A required header is missing, repeated or not readable."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A client's request to a workspace's host, received directly or through the front door.

    `address` is the client's address.
    """

    host: str
    method: str
    target: str
    headers: Mapping[str, Sequence[str]]
    address: str = ""

    def first(self, name: str) -> str:
        """Return the header's value in lower case, or an empty string if it is missing or repeated."""
        return self.sent(name).strip().lower()

    def sent(self, name: str) -> str:
        """Return the header's value as sent, or an empty string if it is missing or repeated."""
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
        """Whether this is a WebSocket handshake.

        Forward-auth requests lack hop-by-hop headers, so other headers decide.
        """
        return "sec-websocket-key" in self.headers or "sec-websocket-version" in self.headers

    @property
    def lasting(self) -> bool:
        """Whether the connection is long-lived: a WebSocket or an event stream."""
        return self.websocket or any(
            "text/event-stream" in value.lower() for value in self.headers.get("accept", ())
        )

    @property
    def service_worker(self) -> bool:
        """Whether a browser requests a service worker script, according to its `Service-Worker` header."""
        return "service-worker" in self.headers

    @property
    def navigation(self) -> bool:
        """Whether a person sees the response in a browser window."""
        if self.method not in ("GET", "HEAD") or self.websocket:
            return False
        mode = self.first("sec-fetch-mode")
        return mode == "navigate" if mode else "text/html" in self.first("accept")

    @property
    def bearer(self) -> str:
        """The bearer token, or an empty string. Several Authorization headers count as none."""
        values = self.headers.get("authorization", ())
        if len(values) != 1 or values[0][: len(_BEARER)].lower() != _BEARER:
            return ""
        token = values[0][len(_BEARER) :].strip()
        return token if 0 < len(token) <= _MAX_TOKEN and token.isascii() and token.isprintable() else ""

    def session_cookies(self, name: str) -> list[str]:
        """Return the distinct values of the session cookie. Other hosts of the domain can set it too."""
        cookies: list[str] = []
        for pair in self._cookie_pairs():
            key, _, value = pair.partition("=")
            if key.strip() == name and value and len(value) <= 256 and value not in cookies:
                cookies.append(value)
        return cookies if len(cookies) <= MAX_COOKIES else []

    def app_cookies(self) -> str:
        """Return the Cookie header for the app, without the gateway's own cookies."""
        pairs = self._cookie_pairs()
        return "; ".join(pair for pair in pairs if pair.partition("=")[0].strip() not in _OWN_COOKIES)

    def _cookie_pairs(self) -> list[str]:
        pairs = map(str.strip, ";".join(self.headers.get("cookie", ())).split(";"))
        return [pair for pair in pairs if pair]

    def foreign(self, scheme: str) -> bool:
        """Return whether a page of another origin sent this request to act on the workspace or to embed it.

        To a browser, workspaces of one domain are the same site, so SameSite does not separate them.
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
    """Return the request as received on a workspace's own host. Raises `MalformedRequest`."""
    target = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    if scope.get("query_string"):
        target += "?" + scope["query_string"].decode("latin-1")
    headers = _by_name(scope)
    return ClientRequest(_single_value(headers, "host"), scope["method"], target, headers, _address(scope))


def forwarded_request(scope: Scope) -> ClientRequest:
    """Return the request that the front door asks about. Raises `MalformedRequest`."""
    headers = _by_name(scope)
    method = _single_value(headers, "x-forwarded-method").upper()
    target = _single_value(headers, "x-forwarded-uri")
    if not target.startswith("/"):
        # The absolute form of a request line (RFC 9112, section 3.2.2).
        parts = urlsplit(target)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return ClientRequest(_single_value(headers, "x-forwarded-host"), method, target, headers, _address(scope))


def _address(scope: Scope) -> str:
    """Return the client's address, as determined from trusted proxies."""
    client = scope.get("client")
    return client[0] if client else ""


def _by_name(scope: Scope) -> dict[str, list[str]]:
    """Return the headers by name; ASGI servers send names in lower case.

    About ten headers are read per request, and each lookup in Starlette's `Headers` scans the whole list.
    """
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return headers


def _single_value(headers: Mapping[str, Sequence[str]], name: str) -> str:
    values = headers.get(name, ())
    if len(values) != 1 or not values[0]:
        raise MalformedRequest(name)
    return values[0]
