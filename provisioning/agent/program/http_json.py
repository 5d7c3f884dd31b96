"""JSON requests to the portal and to the app."""

from __future__ import annotations

import http.client
import json
import socket
from urllib.parse import urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def connection_to(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection and the path for `url`. `unix:/socket:/path` uses a Unix socket."""
    if url.startswith("unix:"):
        address, _, path = url[5:].partition(":")

        class Connection(http.client.HTTPConnection):
            def connect(self) -> None:
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.settimeout(self.timeout)
                self.sock.connect(address)

        return Connection("portal", timeout=timeout_s), path or "/"
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = (parts.path or "/") + ("?" + parts.query if parts.query else "")
    return kind(parts.hostname or "", parts.port, timeout=timeout_s), path


def http_json(
    method: str, url: str, token: str, body: Any, timeout_s: float, more: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Return (status, decoded answer or None); `more` are headers. Raises `OSError` if there is no answer."""
    connection, path = connection_to(url, timeout_s)
    try:
        headers = {"Accept": "application/json", **(more or {})}
        if token:
            headers["Authorization"] = "Bearer " + token
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        raw = response.read(4 * 1024 * 1024)
        try:
            answer = json.loads(raw) if raw else None
        except (ValueError, RecursionError):
            answer = None
        return response.status, answer
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()
