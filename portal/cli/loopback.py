"""Lets programs reach a workspace's origin with a token, even if `*.localhost` is not resolved.

Browsers resolve every name below `localhost` to this machine; Python's resolver does not. Such requests go to
127.0.0.1 with their original Host header.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

LOOPBACK = "127.0.0.1"


def address_of(host: str) -> str:
    """Return the address to connect to for `host`: loopback for names below `localhost`."""
    name = host.lower().rstrip(".")
    return LOOPBACK if name == "localhost" or name.endswith(".localhost") else host


class LoopbackTransport(httpx.BaseTransport):
    """Sends requests for `*.localhost` to this machine, and all others unchanged."""

    def __init__(self, inner: httpx.BaseTransport | None = None) -> None:
        self._inner = inner or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        # The request keeps the Host header that it was built with.
        host = address_of(request.url.host)
        if host != request.url.host:
            request.extensions = {**request.extensions, "sni_hostname": request.url.host}
            request.url = request.url.copy_with(host=host)
        return self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True, slots=True)
class WebSocketTarget:
    """Arguments for a WebSocket client: connect to `host`:`port`, request `uri`, send `headers`."""

    uri: str
    host: str
    port: int
    headers: dict[str, str] = field(repr=False)


class Connection:
    """A workspace's origin, for programs. `base_url` is the workspace's `url` in the API.

    The token needs the scope `workspaces:connect`. Redirects are not followed: they mean that the workspace
    rejected the token. Close the connection, or use it in a `with` statement.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is not an http or https URL; pass the workspace's url")
        self._scheme = parts.scheme
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._hostname = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._token = token
        self.http = httpx.Client(
            base_url=self._origin,
            headers=self._headers(),
            transport=LoopbackTransport(transport),
            timeout=timeout_s,
            follow_redirects=False,
        )

    def websocket(self, path: str) -> WebSocketTarget:
        """Return how to open a WebSocket at `path`."""
        scheme = "wss" if self._scheme == "https" else "ws"
        origin = self._origin.partition("://")[2]
        return WebSocketTarget(
            uri=f"{scheme}://{origin}{path}",
            host=address_of(self._hostname),
            port=self._port,
            headers=self._headers(),
        )

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}

    def close(self) -> None:
        """Close open connections."""
        self.http.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()
