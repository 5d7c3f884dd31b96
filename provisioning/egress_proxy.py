"""A forward proxy that connects only to allowed hosts. Standard library only.

It serves clients in an isolated network: they send `CONNECT host:443` or `GET http://host/…`. The proxy runs
outside that network on a listening socket of any family that it inherits: a TCP socket created in the
client's network namespace, or a Unix socket.

A name is matched with the list before it is resolved. The proxy resolves it once, checks the addresses and
connects to one of those. Private networks, this machine and the metadata service are blocked unless
`networks` allows them; this machine is always blocked. IP addresses instead of names are accepted only if in
`networks`.

The head of a request without TLS is parsed, rewritten and sent with its body, and nothing after it, so a
smuggled second request is never sent. The content of a tunnel is not inspected.

Run as `python -I -S egress_proxy.py` with a plan as JSON on standard input: `listener` (an inherited
descriptor), `hosts`, `networks`, `closed` (texts, see `ProxyRules`), `uid`, the user to switch to from root,
and `watched`, a pidfd: the proxy ends with that process. Refusals are written to standard error, once per
host.
"""

from __future__ import annotations

import asyncio
import contextlib
import encodings.idna  # noqa: F401 - required to resolve names
import ipaddress
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

DEFAULT_PORTS = (80, 443)
CLOSED = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3",
    "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16", "fc00::/7", "fe80::/10", "ff00::/8",
)  # fmt: skip
"""Blocked unless a network allows them: private networks, this machine, link-local (the metadata service),
multicast, and IPv6 addresses that embed IPv4 addresses."""

HEAD_MAX_BYTES = 32 * 1024
HEAD_TIMEOUT_S = 15.0
RESOLVE_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 600.0
MAX_CONNECTIONS = 128
MAX_ADDRESSES = 6
CHUNK_BYTES = 256 * 1024
LOGGED_HOSTS = 500
RESOLVERS = 4

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})+")
_PATTERN = re.compile(rf"(?P<any>\*\.)?(?P<name>{_LABEL}(?:\.{_LABEL})+)(?::(?P<port>[0-9]{{1,5}}))?")
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOP_BY_HOP = frozenset(
    (b"connection", b"host", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of a list: a name, or everything below it (`below`), on `ports`."""

    name: str
    below: bool
    ports: tuple[int, ...] = DEFAULT_PORTS

    def __str__(self) -> str:
        port = "" if self.ports == DEFAULT_PORTS else f":{self.ports[0]}"
        return f"{'*.' if self.below else ''}{self.name}{port}"

    def covers(self, host: str, port: int) -> bool:
        """Return whether a connection to this host and port is allowed."""
        matches = host.endswith(f".{self.name}") if self.below else host == self.name
        return matches and port in self.ports


def host_rule(text: str) -> HostRule:
    """Parse `index.example.org`, `*.example.org` or `git.example.org:22`. Raises `ValueError`.

    The default ports are 80 and 443. A name contains a dot; `*.example.org` does not match `example.org`.
    """
    match = _PATTERN.fullmatch(text.strip().lower())
    if match is None or len(match["name"]) > 253 or match["name"].rsplit(".", 1)[1].isdigit():
        raise ValueError(f"{text!r} is not a valid host name")
    if match["port"] is None:
        return HostRule(match["name"], match["any"] is not None)
    port = int(match["port"])
    if not 1 <= port <= 65535:
        raise ValueError(f"{text!r} has an invalid port")
    return HostRule(match["name"], match["any"] is not None, (port,))


@dataclass(frozen=True, slots=True)
class ProxyRules:
    """Allowed destinations: `hosts` by name and port, `networks` by address on any port.

    `closed` are networks that names must not resolve to unless `networks` contains them. `here` are this
    machine's own addresses, which are always blocked.
    """

    hosts: tuple[HostRule, ...]
    networks: tuple[Network, ...] = ()
    closed: tuple[Network, ...] = tuple(map(ipaddress.ip_network, CLOSED))
    here: frozenset[str] = frozenset()

    def names(self, host: str, port: int) -> bool:
        """Return whether the list contains this name."""
        return any(rule.covers(host, port) for rule in self.hosts)

    def allows_address(self, address: Address) -> bool:
        """Return whether an allowed network contains this address."""
        return _is_in_any(address, self.networks)

    def permits(self, text: str) -> bool:
        """Return whether an allowed name may resolve to this address."""
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False  # also rejects addresses with a zone
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        address = mapped or address
        if address.is_loopback or address.is_unspecified or str(address) in self.here or _is_here(address):
            return False
        return self.allows_address(address) or not (_is_in_any(address, self.closed) or address.is_multicast)


def _is_in_any(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _is_here(address: Address) -> bool:
    """Return whether this machine has the address now: only a local address can be bound."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


class ProxyRequestRefused(Exception):
    """A rejected client request: HTTP status and reason for people."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed request.

    `head` is the head to forward, empty for a tunnel; `body` the length of the body in bytes.
    """

    host: str
    port: int
    head: bytes = b""
    body: int = 0

    @property
    def tunnel(self) -> bool:
        return not self.head


def request_of(head: bytes) -> Request:
    """Parse a head without its empty line. Raises `ProxyRequestRefused` if it is invalid or ambiguous."""
    lines = head.split(b"\r\n")
    if any(byte in (0, 10, 13) for line in lines for byte in line):
        raise ProxyRequestRefused("400 Bad Request", "The request head contains a control character.")
    parts = lines[0].split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or parts[2] not in (b"HTTP/1.0", b"HTTP/1.1"):
        raise ProxyRequestRefused("400 Bad Request", "The request is not a valid HTTP/1.1 request.")
    method, target, _ = parts
    if any(not 0x21 <= byte <= 0x7E for byte in target):
        raise ProxyRequestRefused("400 Bad Request", "The request target is not valid.")
    fields = _fields(lines[1:])
    if method == b"CONNECT":
        host, port = _authority(target.decode(), default=0)
        return Request(host, port)
    if not target.lower().startswith(b"http://"):
        raise ProxyRequestRefused(
            "400 Bad Request", "The proxy does not support this request. Use CONNECT or an http:// URL."
        )
    end = min(
        (position for position in (target.find(mark, 7) for mark in (b"/", b"?", b"#")) if position >= 0),
        default=len(target),
    )
    authority, path = target[7:end], target[end:].split(b"#")[0]
    host, port = _authority(authority.decode(), default=80)
    dropped = _HOP_BY_HOP | {
        option.strip().lower()
        for name, value in fields
        if name == b"connection"
        for option in value.split(b",")
    }
    headers = [
        b"%s: %s" % (name, value)
        for name, value in fields
        if name not in dropped and not name.startswith(b"proxy-") and name != b"content-length"
    ]
    length = _length(fields)
    if length is not None:
        headers.append(b"content-length: %d" % length)
    path = path if path.startswith(b"/") else b"/" + path
    request_line = b"%s %s HTTP/1.1" % (method, path)
    lines = [request_line, b"host: " + authority, *headers, b"connection: close", b"", b""]
    return Request(host, port, b"\r\n".join(lines), length or 0)


def _fields(lines: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name):  # a continuation line begins with a space
            raise ProxyRequestRefused("400 Bad Request", "A request header is not valid.")
        fields.append((name.lower(), value.strip(b" \t")))
    return fields


def _length(fields: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the length of the body, or None if the request has none.

    Raises `ProxyRequestRefused` if it is ambiguous.
    """
    lengths = [value for name, value in fields if name == b"content-length"]
    if any(name == b"transfer-encoding" for name, _ in fields):
        raise ProxyRequestRefused(
            "411 Length Required", "Chunked bodies are not supported. Send Content-Length."
        )
    if not lengths:
        return None
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,15}", lengths[0]):
        raise ProxyRequestRefused("400 Bad Request", "Content-Length is not valid.")
    return int(lengths[0])


def _authority(text: str, *, default: int) -> tuple[str, int]:
    match = _AUTHORITY.fullmatch(text)
    port = int(match["port"] or default) if match else 0
    if match is None or not 1 <= port <= 65535:
        raise ProxyRequestRefused("400 Bad Request", "The host is not valid. Write name:port.")
    host = match["v6"] or match["host"].lower()
    return (host[:-1] if host.endswith(".") else host), port


@dataclass(slots=True)
class _Activity:
    """Time of the last transfer of a connection, in seconds of the loop's clock."""

    at: float


@dataclass(slots=True)
class EgressProxy:
    """Proxy for the connections of one client network."""

    rules: ProxyRules
    max_connections: int = MAX_CONNECTIONS
    idle_timeout_s: float = IDLE_TIMEOUT_S
    head_timeout_s: float = HEAD_TIMEOUT_S
    _logged: set[str] = field(default_factory=set)

    async def serve(self, listener: socket.socket) -> None:
        """Serve until cancelled. Closes `listener` and every connection at the end.

        Stops accepting while `max_connections` are open.
        """
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(RESOLVERS))
        listener.setblocking(False)
        room = asyncio.Semaphore(self.max_connections)
        running: set[asyncio.Task[None]] = set()

        def over(task: asyncio.Task[None]) -> None:
            running.discard(task)
            room.release()

        try:
            while True:
                await room.acquire()
                try:
                    client, _ = await loop.sock_accept(listener)
                except OSError:
                    room.release()
                    await asyncio.sleep(0.1)  # out of descriptors; a closed connection frees some
                    continue
                task = loop.create_task(self._serve(client))
                running.add(task)
                task.add_done_callback(over)
        finally:
            listener.close()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _serve(self, client: socket.socket) -> None:
        client.setblocking(False)
        try:
            await self._answer(client)
        except (OSError, TimeoutError):
            pass  # either side disconnected
        finally:
            client.close()

    async def _answer(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.head_timeout_s):
                head, rest = await _head_of(client)
            request = request_of(head)
            server = await self._connect(request.host, request.port)
        except ProxyRequestRefused as refused:
            text = f"{refused.reason}\n".encode()
            answer = (
                f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            )
            async with asyncio.timeout(self.head_timeout_s):
                await loop.sock_sendall(client, answer.encode() + text)
            return
        with server:
            async with self._watch_activity() as activity:
                if request.tunnel:
                    await loop.sock_sendall(client, b"HTTP/1.1 200 Connection established\r\n\r\n")
                    await loop.sock_sendall(server, rest)
                    await _run_both(_copy(client, server, activity), _copy(server, client, activity))
                else:
                    await loop.sock_sendall(server, request.head)
                    answering = _copy(server, client, activity)
                    await _run_both(_send_body(client, server, rest, request.body, activity), answering)

    @contextlib.asynccontextmanager
    async def _watch_activity(self) -> AsyncIterator[_Activity]:
        """Raise `TimeoutError` in the block if it transfers nothing for `idle_timeout_s`."""
        loop = asyncio.get_running_loop()
        activity = _Activity(loop.time())
        timer: asyncio.TimerHandle
        async with asyncio.timeout(self.idle_timeout_s) as limit:

            def check_idle() -> None:
                nonlocal timer
                limit.reschedule(activity.at + self.idle_timeout_s)
                timer = loop.call_later(self.idle_timeout_s / 4, check_idle)

            timer = loop.call_later(self.idle_timeout_s / 4, check_idle)
            try:
                yield activity
            finally:
                timer.cancel()

    async def _connect(self, host: str, port: int) -> socket.socket:
        """Connect to the host at an allowed address. Raises `ProxyRequestRefused`."""
        for address in await self._addresses(host, port):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            server = socket.socket(family, socket.SOCK_STREAM)
            try:
                server.setblocking(False)
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await asyncio.get_running_loop().sock_connect(server, (address, port))
            except (OSError, TimeoutError):
                server.close()
            except BaseException:
                server.close()
                raise
            else:
                return server
        raise ProxyRequestRefused("502 Bad Gateway", f"{host} does not answer.")

    async def _addresses(self, host: str, port: int) -> list[str]:
        with contextlib.suppress(ValueError):
            literal = ipaddress.ip_address(host)
            mapped = literal.ipv4_mapped if isinstance(literal, ipaddress.IPv6Address) else None
            if not self.rules.allows_address(mapped or literal) or not self.rules.permits(host):
                raise self._refusal(host, port, "is not on the list of allowed hosts")
            return [str(mapped or literal)]
        if not _NAME.fullmatch(host) or not self.rules.names(host, port):
            raise self._refusal(host, port, "is not on the list of allowed hosts")
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, TimeoutError) as error:
            raise ProxyRequestRefused(
                "502 Bad Gateway", f"The host name {host} could not be resolved."
            ) from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        permitted = [address for address in addresses if self.rules.permits(address)]
        if not permitted:
            raise self._refusal(host, port, "resolves to an address that is not allowed")
        return permitted[:MAX_ADDRESSES]

    def _refusal(self, host: str, port: int, why: str) -> ProxyRequestRefused:
        if len(self._logged) < LOGGED_HOSTS and f"{host}:{port}" not in self._logged:
            self._logged.add(f"{host}:{port}")
            print(f"refused: {host}:{port} {why}", file=sys.stderr, flush=True)
        return ProxyRequestRefused("403 Forbidden", f"{host}:{port} {why}. Ask an operator for access.")


async def _head_of(client: socket.socket) -> tuple[bytes, bytes]:
    """Read the head of a request and the bytes after it. Raises `ProxyRequestRefused` or `OSError`."""
    loop = asyncio.get_running_loop()
    data = b""
    while True:
        end = data.find(b"\r\n\r\n")
        if end >= 0:
            return data[:end], data[end + 4 :]
        if len(data) > HEAD_MAX_BYTES:
            raise ProxyRequestRefused("431 Request Header Fields Too Large", "The request head is too long.")
        chunk = await loop.sock_recv(client, 16 * 1024)
        if not chunk:
            raise OSError("the client disconnected")
        data += chunk


async def _run_both(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
    """Run both to completion. If one raises `OSError`, cancel the other and raise it."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(source: socket.socket, target: socket.socket, activity: _Activity) -> None:
    loop = asyncio.get_running_loop()
    room = memoryview(bytearray(CHUNK_BYTES))
    while size := await loop.sock_recv_into(source, room):
        await loop.sock_sendall(target, room[:size])
        activity.at = loop.time()
    target.shutdown(socket.SHUT_WR)


async def _send_body(
    client: socket.socket, server: socket.socket, rest: bytes, length: int, activity: _Activity
) -> None:
    """Send exactly `length` bytes, beginning with `rest`; leave further bytes unread."""
    loop = asyncio.get_running_loop()
    data = rest[:length]
    while True:
        try:
            await loop.sock_sendall(server, data)
        except OSError:
            return  # the server stopped reading, and may have answered
        activity.at = loop.time()
        length -= len(data)
        if not length:
            return
        data = await loop.sock_recv(client, min(CHUNK_BYTES, length))
        if not data:
            raise OSError("the client disconnected")


def rules_of(plan: dict[str, Any]) -> ProxyRules:
    """Parse the rules of a plan. Raises `KeyError` or `ValueError`."""
    return ProxyRules(
        hosts=tuple(map(host_rule, plan["hosts"])),
        networks=tuple(map(ipaddress.ip_network, plan["networks"])),
        closed=tuple(map(ipaddress.ip_network, (*CLOSED, *plan.get("closed", ())))),
    )


async def _run(plan: dict[str, Any]) -> None:
    if plan.get("uid") is not None:  # after all imports, because this user may not be able to read the files
        os.setgroups([])
        os.setresgid(plan["uid"], plan["uid"], plan["uid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(plan["watched"], ended.set)
    serving = asyncio.create_task(EgressProxy(rules_of(plan)).serve(socket.socket(fileno=plan["listener"])))
    await ended.wait()
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


if __name__ == "__main__":
    asyncio.run(_run(json.loads(sys.stdin.buffer.read())))
