"""HTTP client for user-supplied URLs, with a hard deadline.

Connects only to checked addresses (`addresses`) and verifies TLS against the host name. Redirects and proxies
from the environment are ignored. Only the beginning of the response body is read.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import certifi
import httpcore
from django.conf import settings

from portal.common.outgoing import addresses
from portal.common.outgoing.addresses import AddressPolicy, AddressRefused

MAX_ANSWER = 1024
"""Maximum number of response bytes read."""
CONNECT_S = 3.0
MAX_URL = 1000
USER_AGENT = "Berth-Webhooks/1"


class Failure(StrEnum):
    """Why there is no response."""

    REFUSED = "refused_address"
    PLAIN = "plain_http"
    TIMEOUT = "timeout"
    TLS = "tls"
    CONNECTION = "connection"
    PROTOCOL = "protocol"


class NoAnswer(Exception):
    """The receiver did not respond, because of `failure`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.value)
        self.failure = failure


class UrlProblem(StrEnum):
    """Why a URL is not acceptable."""

    NO_URL = "no_url"
    SCHEME = "scheme"
    CREDENTIALS = "credentials"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class ReceiverResponse:
    """Response of the receiver. `head` is the beginning of the body, up to `MAX_ANSWER` bytes."""

    status: int
    head: bytes
    duration_ms: int


def policy() -> AddressPolicy:
    """Return the policy with the networks in `BERTH_OUTGOING_ALLOW`."""
    return AddressPolicy.parse(settings.BERTH_OUTGOING_ALLOW)


def url_problem(url: str) -> UrlProblem | None:
    """Return the problem of a URL, or None if it is acceptable. Does not resolve names."""
    if not url.isascii() or not url.isprintable() or " " in url or len(url) > MAX_URL:
        return UrlProblem.NO_URL
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        return UrlProblem.NO_URL
    if parts.scheme not in ("https", "http"):
        return UrlProblem.SCHEME
    if not host:
        return UrlProblem.NO_URL
    if parts.username is not None or parts.password is not None:
        return UrlProblem.CREDENTIALS
    try:
        policy().check(ipaddress.ip_address(host), plain=parts.scheme == "http")
    except AddressRefused as error:
        return UrlProblem.SCHEME if error.refusal is addresses.Refusal.PLAIN else UrlProblem.INTERNAL
    except ValueError:
        # A host name, whose addresses are checked on connecting.
        pass
    return None


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float, guarded: bool = True
) -> ReceiverResponse:
    """POST `body` and return the response, regardless of its status, within `timeout_s` seconds.

    Pass `guarded=False` only for URLs from the site's own settings: any address is then allowed. Raises
    `NoAnswer`.
    """
    began = time.monotonic()
    backend = _Backend(began + timeout_s, None if not guarded else policy(), urlsplit(url).scheme == "http")
    try:
        with httpcore.ConnectionPool(
            ssl_context=_ssl_context(), network_backend=backend, max_connections=1, retries=0
        ) as pool:
            return _answer(pool, url, body, headers, began)
    except AddressRefused as error:
        plain = error.refusal is addresses.Refusal.PLAIN
        raise NoAnswer(Failure.PLAIN if plain else Failure.REFUSED) from error
    except (httpcore.TimeoutException, TimeoutError) as error:
        raise NoAnswer(Failure.TIMEOUT) from error
    except ssl.SSLError as error:
        raise NoAnswer(Failure.TLS) from error
    except (httpcore.ProtocolError, httpcore.UnsupportedProtocol, UnicodeError, ValueError) as error:
        raise NoAnswer(Failure.PROTOCOL) from error
    except (httpcore.NetworkError, OSError) as error:
        raise NoAnswer(Failure.CONNECTION) from error


def _answer(
    pool: httpcore.ConnectionPool, url: str, body: bytes, headers: Mapping[str, str], began: float
) -> ReceiverResponse:
    sent = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", "Connection": "close", **headers}
    # httpcore does not add the Host header. It includes a non-default port.
    host = urlsplit(url).netloc
    with pool.stream(
        "POST", url, headers=[("Host", host), *sent.items(), ("Content-Length", str(len(body)))], content=body
    ) as response:
        head = b""
        for chunk in response.iter_stream():
            head += chunk
            if len(head) >= MAX_ANSWER:
                break
        return ReceiverResponse(response.status, head[:MAX_ANSWER], round((time.monotonic() - began) * 1000))


def _ssl_context() -> ssl.SSLContext:
    # Created per request, because the CA file may have changed.
    context = ssl.create_default_context(cafile=settings.BERTH_OUTGOING_CA_FILE or certifi.where())
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class _Stream(httpcore.NetworkStream):
    """A connection with an absolute deadline, regardless of progress."""

    def __init__(self, opened: socket.socket, deadline: float) -> None:
        self._socket, self._deadline = opened, deadline

    def _limit(self, timeout: float | None) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time is over")
        self._socket.settimeout(left if timeout is None else min(left, timeout))

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._limit(timeout)
        return self._socket.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        while buffer:
            self._limit(timeout)
            buffer = buffer[self._socket.send(buffer) :]

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        self._limit(timeout)
        try:
            secured = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
        except Exception:
            self._socket.close()
            raise
        return _Stream(secured, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return None


class _Backend(httpcore.NetworkBackend):
    """Network backend that connects only to checked addresses."""

    def __init__(self, deadline: float, policy: AddressPolicy | None, plain: bool) -> None:
        self._deadline, self._policy, self._plain = deadline, policy, plain

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = min(CONNECT_S, self._deadline - time.monotonic())
        if left <= 0:
            raise TimeoutError("the time is over")
        opened = addresses.connect(
            host, port, self._policy or addresses.EVERYWHERE, timeout_s=left, plain=self._plain
        )
        return _Stream(opened, self._deadline)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        raise AddressRefused(addresses.Refusal.INTERNAL)
