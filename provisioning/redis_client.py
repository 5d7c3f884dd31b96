"""Redis clients: unencrypted on loopback, with mutual TLS from another machine.

A URL for another machine is `rediss://user:password@host:port/0?` with `ssl_ca_certs`, `ssl_certfile`,
`ssl_keyfile` (paths) and `ssl_server_name`, the name in the server's certificate: certificates do not contain
the addresses of machines.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import redis

SCHEME = "rediss://"


class TLSConnection(redis.SSLConnection):
    """A connection that trusts only one authority and a fixed server name."""

    def __init__(self, *, ssl_server_name: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._server_name = ssl_server_name

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        """Replace the library's method, which only checks the host's name and adds the system's roots."""
        context = ssl.create_default_context(cafile=self.ca_certs)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if self.certfile:
            context.load_cert_chain(self.certfile, self.keyfile)
        return context.wrap_socket(sock, server_hostname=self._server_name or self.host)


@dataclass(frozen=True, slots=True)
class TLS:
    """PEM files, and the name in the server's certificate."""

    authority: Path
    certificate: Path
    key: Path
    server_name: str


def url(*, host: str, port: int, user: str, password: str, tls: TLS) -> str:
    """Return the URL by which Celery and `client` reach Redis on another machine."""
    options = {
        "ssl_cert_reqs": "required",
        "ssl_ca_certs": str(tls.authority),
        "ssl_certfile": str(tls.certificate),
        "ssl_keyfile": str(tls.key),
        "ssl_server_name": tls.server_name,
    }
    address = f"[{host}]" if ":" in host else host
    account = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return f"{SCHEME}{account}@{address}:{port}/0?{urlencode(options)}"


def client(url: str, **options: Any) -> redis.Redis:
    """Return a client for a `redis://` or `rediss://` URL; `options` as of `redis.Redis`."""
    if url.startswith(SCHEME):
        options["connection_class"] = TLSConnection
    return redis.Redis.from_url(url, **options)
