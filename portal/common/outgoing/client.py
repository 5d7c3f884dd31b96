"""Sends one HTTP request to a URL that somebody wrote, within a time that no receiver can stretch.

The connection goes to an address that was checked (`addresses`); TLS is checked against the name. Redirects
are not followed, proxies of the environment are not used, of the answer the beginning is read.
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
from portal.common.outgoing.addresses import AddressRefused, Policy

MAX_ANSWER = 1024
"""Bytes of an answer that are read."""
CONNECT_S = 3.0
MAX_URL = 1000
USER_AGENT = "Berth-Webhooks/1"


class Failure(StrEnum):
    """Why there is no answer."""

    REFUSED = "refused_address"
    PLAIN = "plain_http"
    TIMEOUT = "timeout"
    TLS = "tls"
    CONNECTION = "connection"
    PROTOCOL = "protocol"


class NoAnswer(Exception):
    """The receiver has not answered; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.value)
        self.failure = failure


class UrlProblem(StrEnum):
    """Why a URL is none that can be sent to."""

    NO_URL = "no_url"
    SCHEME = "scheme"
    CREDENTIALS = "credentials"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the receiver answered: `head` is the beginning of the body, at most `MAX_ANSWER` bytes."""

    status: int
    head: bytes
    duration_ms: int


def policy() -> Policy:
    """The networks that the site allows (`BERTH_OUTGOING_ALLOW`)."""
    return Policy.of(settings.BERTH_OUTGOING_ALLOW)


def url_problem(url: str) -> UrlProblem | None:
    """What is wrong with a URL as it is written; None where it may do. No name is resolved."""
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
        # A name: where it leads is seen when it is connected to.
        pass
    return None


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float, guarded: bool = True
) -> Answer:
    """POST `body` and take the answer, whatever its status. All of it ends within `timeout_s`.

    Without `guarded` any address may be connected to: for URLs of the site's own settings only.
    Raises `NoAnswer`.
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
) -> Answer:
    sent = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", "Connection": "close", **headers}
    # Hosts with a port of their own, as httpcore does not add the header itself.
    host = urlsplit(url).netloc
    with pool.stream(
        "POST", url, headers=[("Host", host), *sent.items(), ("Content-Length", str(len(body)))], content=body
    ) as response:
        head = b""
        for chunk in response.iter_stream():
            head += chunk
            if len(head) >= MAX_ANSWER:
                break
        return Answer(response.status, head[:MAX_ANSWER], round((time.monotonic() - began) * 1000))


def _ssl_context() -> ssl.SSLContext:
    # Made anew: a file with further authorities may have been named meanwhile.
    context = ssl.create_default_context(cafile=settings.BERTH_OUTGOING_CA_FILE or certifi.where())
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class _Stream(httpcore.NetworkStream):
    """A connection on which nothing goes on beyond the deadline, however often a byte comes."""

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
    """Connects to checked addresses only."""

    def __init__(self, deadline: float, policy: Policy | None, plain: bool) -> None:
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
