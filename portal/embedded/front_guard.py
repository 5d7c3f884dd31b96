"""Connection limiter in front of the front door, and the parent of its Caddy.

Run as `python -m portal.embedded.front_guard --listen HOST:PORT --to SOCKET -- CADDY ARGUMENTS`. The guard
forwards bytes to Caddy at the Unix socket, and client addresses with the PROXY protocol. If all connections
are in use, it closes the oldest connection of the address with the most, so that a few addresses cannot lock
out the others. This machine and trusted proxies connect for many clients, so they are counted separately and
have no limit per address. Uses only the standard library.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import ipaddress
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from portal.embedded.door_guard import network_of, proxy_header

PER_ADDRESS, PROXIES = "BERTH_CONNECTIONS_PER_ADDRESS", "BERTH_TRUSTED_PROXIES"
VARIABLES = (PER_ADDRESS, PROXIES)
MAX_OF_AN_ADDRESS = 512
MAX_CONNECTIONS = 8192
"""Maximum connections of unknown clients, and again of this machine and trusted proxies."""
OWN_FILES = 256
CHUNK = 256 * 1024
FIRST_CHUNK = 16 * 1024
BACKLOG = 1024
KEEP_ALIVE_S = 60
LINGER_S, FLUSH_S = 1.0, 30.0
RETRY_S = 0.05
_PR_SET_PDEATHSIG = 1

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Limits:
    """Connection limits per address and in total, and the networks that connect for many clients."""

    of_address: int = MAX_OF_AN_ADDRESS
    connections: int = MAX_CONNECTIONS
    proxies: tuple[Network, ...] = ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], files: int) -> Limits:
        """Return the limits for a process that may open this many `files`. Raises `ValueError`."""
        ranges = [network.strip() for network in environ.get(PROXIES, "").split(",") if network.strip()]
        return cls(
            of_address=int(environ.get(PER_ADDRESS) or MAX_OF_AN_ADDRESS),
            # Each connection takes two files, and each of two groups may have this many connections.
            connections=max(16, min(MAX_CONNECTIONS, (files - OWN_FILES) // 4)),
            proxies=tuple(ipaddress.ip_network(network, strict=False) for network in ranges),
        )

    def group_of(self, address: str) -> str:
        """Return the key under which a client is counted; "" for this machine and trusted proxies."""
        try:
            ip = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return address
        ip = getattr(ip, "ipv4_mapped", None) or ip
        if ip.is_loopback or any(ip in network for network in self.proxies):
            return ""
        return network_of(address)


class ConnectionSide(asyncio.Protocol):
    """One end of a forwarded connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.peer: ConnectionSide | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.max_size = CHUNK  # type: ignore[attr-defined]
        transport.set_write_buffer_limits(CHUNK)

    def data_received(self, data: bytes) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write(data)

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def finish(self) -> None:
        """End the connection once all pending data has been sent, or after `FLUSH_S`."""
        self.peer = None
        if self.transport is None or self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            # A reset by the client is noticed here first.
            with contextlib.suppress(OSError):
                self.transport.write_eof()
        # Until then, read what the client still sends; otherwise the client would lose the answer.
        loop = asyncio.get_running_loop()
        loop.call_later(LINGER_S, self._close_when_sent, loop.time() + FLUSH_S)

    def _close_when_sent(self, until: float) -> None:
        assert self.transport is not None
        loop = asyncio.get_running_loop()
        if self.transport.get_write_buffer_size() and loop.time() < until:
            loop.call_later(LINGER_S, self._close_when_sent, until)
        else:
            self.transport.abort()


class UpstreamSide(ConnectionSide):
    """Caddy's end of a connection. Once Caddy closes it, the client receives no more data."""

    def connection_lost(self, _error: Exception | None) -> None:
        if self.peer is not None:
            self.peer.finish()
            self.peer = None


class Client(ConnectionSide):
    """The client's end. Up to `FIRST_CHUNK` is read before Caddy accepts its end.

    Pausing in `connection_made` does not help, because Python 3.11.2 (Debian 12) reads anyway.
    """

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._is_waiting = True
        self._early, self._has_ended = b"", False
        self.group: str | None = None
        self.number = 0
        self._guard = guard
        self._joining: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.max_size = FIRST_CHUNK  # type: ignore[attr-defined]
        peer, own = (transport.get_extra_info(name) or ("", 0) for name in ("peername", "sockname"))
        if not self._guard.admit(self, str(peer[0])):
            self.transport.abort()
            return
        _tune(transport.get_extra_info("socket"))
        self._joining = asyncio.ensure_future(self._join(peer, own))

    async def _join(self, peer: Sequence[object], own: Sequence[object]) -> None:
        try:
            header = proxy_header(peer, own)
            _transport, inner = await asyncio.get_running_loop().create_unix_connection(
                UpstreamSide, self._guard.to
            )
        except (OSError, ValueError):
            self.abort()
            return
        inner.peer, self.peer = self, inner
        assert self.transport is not None and inner.transport is not None
        if self.transport.is_closing():
            inner.abort()
            return
        self._is_waiting = False
        inner.transport.write(header + self._early)
        self._early = b""
        if self._has_ended:
            inner.transport.write_eof()
        self.transport.max_size = CHUNK  # type: ignore[attr-defined]
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if not self._is_waiting:
            super().data_received(data)
            return
        assert self.transport is not None
        self._early += data
        self.transport.pause_reading()

    def eof_received(self) -> bool:
        """Forward the end of the stream to Caddy, which may still answer."""
        self._has_ended = True
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write_eof()
        return True

    def connection_lost(self, _error: Exception | None) -> None:
        self._guard.leave(self)
        if self.peer is not None:
            self.peer.finish()
            self.peer = None


class Guard:
    """Forwards clients to Caddy at the Unix socket `to`."""

    def __init__(self, to: str, limits: Limits) -> None:
        self.to = to
        self._limits = limits
        self._clients: dict[str, dict[Client, None]] = {}
        self._strangers = 0
        self._begun = 0

    async def serve(self, listener: socket.socket) -> asyncio.Server:
        """Start listening on a bound socket. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: Client(self), sock=listener, backlog=BACKLOG)

    def admit(self, client: Client, address: str) -> bool:
        """Count the client, and return whether to admit it. May abort another address's oldest connection."""
        group = self._limits.group_of(address)
        if not self._has_room(group):
            return False
        self._begun += 1
        client.group, client.number = group, self._begun
        self._clients.setdefault(group, {})[client] = None
        self._strangers += bool(group)
        return True

    def _has_room(self, group: str) -> bool:
        own = len(self._clients.get(group, ()))
        if not group:
            return own < self._limits.connections
        if own >= self._limits.of_address:
            return False
        if self._strangers < self._limits.connections:
            return True
        others = [clients for name, clients in self._clients.items() if name]
        largest = max(map(len, others))
        if own + 1 >= largest:
            return False
        oldest = min(
            (next(iter(connections)) for connections in others if len(connections) == largest),
            key=lambda connection: connection.number,
        )
        self.leave(oldest)
        oldest.abort()
        return True

    def leave(self, client: Client) -> None:
        """Remove the client from the counts. Idempotent."""
        if client.group is None:
            return
        group, client.group = client.group, None
        del self._clients[group][client]
        self._strangers -= bool(group)
        if not self._clients[group]:
            del self._clients[group]


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket, which refuses connections until it listens. Raises `OSError`."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def _tune(line: socket.socket) -> None:
    """Send short messages at once, and let the kernel close connections to clients that have vanished.

    asyncio disables Nagle's algorithm only on sockets that were created with a protocol number.
    """
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        line.setsockopt(socket.IPPROTO_TCP, option, KEEP_ALIVE_S)


def _end_with_parent() -> None:
    """Let the kernel end this process whenever its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def run(listen: str, to: str, limits: Limits, caddy: Sequence[str]) -> int:
    """Serve until SIGINT, SIGTERM or the end of Caddy. Returns Caddy's exit code. Raises `OSError`.

    Connections are refused until Caddy accepts them, so that a load balancer tries another host.
    """
    host, _, port = listen.rpartition(":")
    listener = bind(host.strip("[]"), int(port))
    process = await asyncio.create_subprocess_exec(*caddy, preexec_fn=_end_with_parent)
    servers: list[asyncio.Server] = []

    def stop() -> None:
        for server in servers:
            server.close()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    with listener:
        if await _is_accepting(to, process):
            servers.append(await Guard(to, limits).serve(listener))
        return await process.wait()


async def _is_accepting(to: str, process: asyncio.subprocess.Process) -> bool:
    """Wait until Caddy accepts connections at its socket. Returns False if it has ended."""
    while process.returncode is None:
        with contextlib.suppress(OSError):
            _reader, writer = await asyncio.open_unix_connection(to)
            writer.close()
            return True
        await asyncio.sleep(RETRY_S)
    return False


def main(argv: Sequence[str]) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="portal.embedded.front_guard")
    parser.add_argument("--listen", required=True, help="host:port")
    parser.add_argument("--folder", required=True, help="working folder of Caddy")
    parser.add_argument("--to", required=True, help="Unix socket of Caddy in that folder")
    parser.add_argument("caddy", nargs="+", help="command line of Caddy")
    options = parser.parse_args(argv)
    # Keeps socket paths short, because the limit is 107 bytes.
    os.chdir(options.folder)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        limits = Limits.from_environ(os.environ, hard)
        return asyncio.run(run(options.listen, options.to, limits, options.caddy))
    except (OSError, ValueError) as error:
        print(f"the front door cannot be opened: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
