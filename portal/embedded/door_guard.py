"""Connection limiter in front of the machines' HTTPS endpoint: limits number, share per client and duration.

Run as `python -m portal.embedded.door_guard --listen HOST:PORT --to SOCKET`. The endpoint terminates TLS; the
guard forwards bytes, and client addresses with the PROXY protocol. It parses only the types of the client's
TLS records, to detect the end of the handshake. If all connections are in use, the guard closes the oldest
connection of the address with the most, so that a few addresses cannot lock out the others.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import signal
import socket
import struct
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger("door_guard")

HANDSHAKE_S = 10.0
IDLE_S = 120.0
CONNECT_S = FLUSH_S = 5.0
MAX_CONNECTIONS = 1024
MAX_OF_AN_ADDRESS = 128
MAX_HANDSHAKES_OF_AN_ADDRESS = 16
CHUNK = 64 * 1024
BACKLOG = 256
MAX_HELLO_BYTES = 64 * 1024
"""Maximum bytes from a client before the end of its handshake. Certificate chains take a few thousand."""
_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_HANDSHAKE, _ALERT, _CHANGE, _DATA = 22, 21, 20, 23


class HandshakeRefused(Exception):
    """The client does not speak TLS, is too slow, or sends too many bytes before the end of the handshake."""


@dataclass(eq=False)
class ClientConnection:
    """One connection of a client; `active_at` is when bytes were last transferred, on the loop's clock.

    `in_handshake` is true until the TLS handshake is over.
    """

    network: str
    writer: asyncio.StreamWriter
    active_at: float
    began: int
    in_handshake: bool = True
    inner: asyncio.StreamWriter | None = field(default=None, repr=False)

    def end(self) -> None:
        """Abort the connection, which also ends the task that serves it."""
        self.writer.transport.abort()
        if self.inner is not None:
            self.inner.transport.abort()


class Guard:
    """Forwards clients to the endpoint at the Unix socket `to`."""

    def __init__(self, to: Path) -> None:
        self._to = to
        self._connections: dict[str, dict[ClientConnection, None]] = {}
        self._open = 0
        self._begun = 0
        self._handshakes: Counter[str] = Counter()

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Start listening. Raises `OSError`."""
        return await asyncio.start_server(self._accept, host, port, backlog=BACKLOG, limit=CHUNK)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, own = (writer.get_extra_info(name) or ("", 0) for name in ("peername", "sockname"))
        network = network_of(str(peer[0]))
        if not self._has_room(network):
            writer.transport.abort()
            return
        self._begun += 1
        connection = ClientConnection(network, writer, asyncio.get_running_loop().time(), self._begun)
        self._connections.setdefault(network, {})[connection] = None
        self._open += 1
        self._handshakes[network] += 1
        try:
            hello = await _hello(reader)
            await self._relay(connection, reader, proxy_header(peer, own) + hello)
        except (OSError, HandshakeRefused, asyncio.IncompleteReadError, TimeoutError, ValueError) as error:
            log.debug("connection from %s ended: %s", network, error)
        finally:
            self._leave(connection)

    def _has_room(self, network: str) -> bool:
        """Return whether this network may open another connection. May abort another network's oldest one."""
        own = len(self._connections.get(network, ()))
        if own >= MAX_OF_AN_ADDRESS or self._handshakes[network] >= MAX_HANDSHAKES_OF_AN_ADDRESS:
            return False
        if self._open < MAX_CONNECTIONS:
            return True
        longest = max(len(group) for group in self._connections.values())
        if own and own >= longest:
            return False
        oldest = min(
            (next(iter(group)) for group in self._connections.values() if len(group) == longest),
            key=lambda connection: connection.began,
        )
        oldest.end()
        self._leave(oldest)
        return True

    def _leave(self, connection: ClientConnection) -> None:
        """Remove the connection from the counts. Idempotent."""
        self._end_handshake(connection)
        of_network = self._connections.get(connection.network, {})
        if connection in of_network:
            del of_network[connection]
            self._open -= 1
            if not of_network:
                del self._connections[connection.network]
        connection.end()

    def _end_handshake(self, connection: ClientConnection) -> None:
        """Count the handshake as over, completed or not."""
        if connection.in_handshake:
            connection.in_handshake = False
            self._handshakes[connection.network] -= 1
            if not self._handshakes[connection.network]:
                del self._handshakes[connection.network]

    async def _relay(self, connection: ClientConnection, reader: asyncio.StreamReader, first: bytes) -> None:
        async with asyncio.timeout(CONNECT_S):
            inner_reader, inner = await asyncio.open_unix_connection(str(self._to), limit=CHUNK)
        connection.inner = inner
        inner.write(first)
        out = asyncio.create_task(self._copy(connection, inner_reader, connection.writer, None))
        every = [
            out,
            asyncio.create_task(self._copy(connection, reader, inner, HandshakeRecords())),
            asyncio.create_task(_watch(connection)),
        ]
        try:
            await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
            if out.done() and out.exception() is None:
                # The endpoint has answered and closed. Flush the rest to the client.
                async with asyncio.timeout(FLUSH_S):
                    connection.writer.close()
                    await connection.writer.wait_closed()
        finally:
            for task in every:
                task.cancel()
            await asyncio.gather(*every, return_exceptions=True)

    async def _copy(
        self,
        connection: ClientConnection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        records: HandshakeRecords | None,
    ) -> None:
        """Forward data until its end, with back pressure."""
        loop = asyncio.get_running_loop()
        while data := await reader.read(CHUNK):
            connection.active_at = loop.time()
            if records is not None and not records.over:
                records.feed(data)
                if records.over:
                    self._end_handshake(connection)
            writer.write(data)
            await writer.drain()


async def _hello(reader: asyncio.StreamReader) -> bytes:
    """Read the first TLS record. The endpoint is contacted only after the record has arrived in time."""
    async with asyncio.timeout(HANDSHAKE_S):
        head = await reader.readexactly(5)
        length = struct.unpack("!H", head[3:])[0]
        if head[0] != _HANDSHAKE or head[1] != 3 or not length:
            raise HandshakeRefused("no TLS")
        return head + await reader.readexactly(length)


class HandshakeRecords:
    """Tracks the headers of a client's TLS records up to the first data record, which ends the handshake.

    In TLS 1.3, the last handshake message is a data record; in TLS 1.2, it directly precedes the first one.
    """

    def __init__(self) -> None:
        self.over = False
        self._skip = 0
        self._head = b""
        self._bytes = 0

    def feed(self, data: bytes) -> None:
        """Process received bytes. Raises `HandshakeRefused` for non-TLS protocols or too many bytes."""
        self._bytes += 0 if self.over else len(data)
        while data and not self.over:
            if self._skip:
                skipped = min(self._skip, len(data))
                self._skip -= skipped
                data = data[skipped:]
                continue
            missing = 5 - len(self._head)
            self._head += data[:missing]
            data = data[missing:]
            if len(self._head) == 5:
                if self._head[0] not in (_HANDSHAKE, _ALERT, _CHANGE, _DATA) or self._head[1] != 3:
                    raise HandshakeRefused("no TLS")
                self.over = self._head[0] == _DATA
                self._skip = struct.unpack("!H", self._head[3:])[0]
                self._head = b""
        if not self.over and self._bytes > MAX_HELLO_BYTES:
            raise HandshakeRefused("too many bytes before the end of the handshake")


async def _watch(connection: ClientConnection) -> None:
    """Return when the handshake takes too long, or the connection is idle for too long."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        now = loop.time()
        until = began + HANDSHAKE_S if connection.in_handshake else connection.active_at + IDLE_S
        if now >= until:
            return
        await asyncio.sleep(until - now)


def network_of(address: str) -> str:
    """Return the key for counting clients: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        mapped = ip.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


def proxy_header(peer: Sequence[object], own: Sequence[object]) -> bytes:
    """Return the PROXY protocol header, version 2, for a connection from `peer` to `own` (`host, port, …`).

    Raises `ValueError` or `OSError` unless both are addresses of one family.
    """
    family = socket.AF_INET6 if ":" in str(peer[0]) else socket.AF_INET
    hosts = b"".join(socket.inet_pton(family, str(address[0]).partition("%")[0]) for address in (peer, own))
    body = hosts + struct.pack("!HH", int(str(peer[1])), int(str(own[1])))
    return (
        _SIGNATURE + struct.pack("!BBH", 0x21, 0x11 if family == socket.AF_INET else 0x21, len(body)) + body
    )


async def run(listen: str, to: Path) -> None:
    """Serve until SIGINT or SIGTERM."""
    host, _, port = listen.rpartition(":")
    server = await Guard(to).serve(host.strip("[]"), int(port))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    server.close()


def main(argv: Sequence[str]) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="portal.embedded.door_guard")
    parser.add_argument("--listen", required=True, help="host:port")
    parser.add_argument("--to", required=True, type=Path, help="Unix socket of the door")
    options = parser.parse_args(argv)
    # Keeps the socket's path short, because the limit is 107 bytes.
    os.chdir(options.to.parent)
    logging.basicConfig(level=logging.WARNING)
    try:
        asyncio.run(run(options.listen, Path(options.to.name)))
    except OSError as error:
        print(f"the machines' door cannot be opened: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
