"""Limits of the machines' HTTPS door, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from portal.embedded import authority, door_guard
from portal.embedded.door_guard import Guard, HandshakeRecords, HandshakeRefused, network_of, proxy_header
from portal.fleet.machines import certificates

SHORT_S = 2.0
"""Instead of a limit of the guard's: what comes at once on a slow machine comes within it."""


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    authority.ensure(tmp_path / "tls")
    return tmp_path / "tls"


class Door(socketserver.BaseRequestHandler):
    """A TLS echo server behind a PROXY protocol header; sends much data after `bye`."""

    server: Any

    def handle(self) -> None:
        raw = self.request
        raw.settimeout(20)
        try:
            head = raw.recv(16, socket.MSG_WAITALL)
            self.server.heads.append(head + raw.recv(struct.unpack("!H", head[14:])[0], socket.MSG_WAITALL))
            with self.server.context.wrap_socket(raw, server_side=True) as secure:
                while data := secure.recv(100):
                    secure.sendall(data if data != b"bye\n" else b"x" * 300_000)
                    if data == b"bye\n":
                        break
        except (OSError, struct.error):
            pass  # the guard cuts connections off


class DoorServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False


@asynccontextmanager
async def guarded(tls: Path) -> AsyncIterator[tuple[int, Guard, list[bytes]]]:
    """The guard's port, in front of a `Door`."""
    inner: Any = DoorServer(str(tls.parent / "d.sock"), Door)
    inner.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    inner.context.load_cert_chain(tls / "nodes-door.pem", tls / "nodes-door.key")
    inner.heads = []
    threading.Thread(target=inner.serve_forever, daemon=True).start()
    guard = Guard(tls.parent / "d.sock")
    server = await guard.serve("127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], guard, inner.heads
    finally:
        server.close()
        # Connections opened by the test are closed, so their tasks end.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), 20)
        await asyncio.wait_for(server.wait_closed(), 20)
        await asyncio.to_thread(inner.shutdown)
        inner.server_close()
        for _ in range(10):
            await asyncio.sleep(0)


async def client(port: int, tls: Path | None, stack: AsyncExitStack):
    context = ssl.create_default_context(cafile=str(tls / "authority.pem")) if tls else None
    name = certificates.PORTAL_NAME if tls else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    stack.callback(_abort, writer)
    return reader, writer


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"here\n")
    try:
        return await asyncio.wait_for(reader.readline(), 20) == b"here\n"
    except (OSError, ssl.SSLError):
        return False


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the other side closes the connection."""
    try:
        return await asyncio.wait_for(reader.read(100), 20) == b""
    except (OSError, ssl.SSLError):
        return True


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_data_is_forwarded_with_the_client_address(tls):
    async with guarded(tls) as (port, guard, heads), AsyncExitStack() as stack:
        reader, writer = await client(port, tls, stack)
        assert await answers(reader, writer)
        own = writer.get_extra_info("sockname")
        assert heads == [proxy_header(own, ("127.0.0.1", port))]
        assert not guard._handshakes
        writer.write(b"bye\n")
        assert len(await asyncio.wait_for(reader.read(-1), 20)) == 300_000, "what was on its way comes whole"
        await until(lambda: not guard._connections and not guard._open)


async def test_connections_without_tls_never_reach_the_door(tls):
    async with guarded(tls) as (port, _guard, heads), AsyncExitStack() as stack:
        for nonsense in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x02\x00\x00\x05hello",
            b"\x16\x03\x01\x00\x00",
        ):
            reader, writer = await client(port, None, stack)
            writer.write(nonsense)
            assert await is_closed(reader)
        assert heads == []


async def test_slow_handshakes_at_once_are_limited_and_time_out(tls, monkeypatch):
    ample_s = door_guard.HANDSHAKE_S
    monkeypatch.setattr(door_guard, "HANDSHAKE_S", SHORT_S)
    monkeypatch.setattr(door_guard, "MAX_HANDSHAKES_OF_AN_ADDRESS", 3)
    async with guarded(tls) as (port, guard, _heads), AsyncExitStack() as stack:
        silent = [await client(port, None, stack) for _ in range(3)]
        await until(lambda: guard._handshakes["127.0.0.1"] == 3)
        reader, _writer = await client(port, None, stack)
        assert await is_closed(reader), "one more of this address is cut off at once"
        for reader, _writer in silent:
            assert await is_closed(reader)
        # A client that sends its handshake slowly.
        reader, writer = await client(port, None, stack)
        hello = ssl_hello()
        writer.write(hello)
        with contextlib.suppress(OSError):
            for _ in range(200):
                writer.write(b"\x16\x03\x03\x00\x01\x00")
                await writer.drain()
                await asyncio.sleep(0.02)
        await until(lambda: not guard._open)
        # Independent of the machine's speed.
        monkeypatch.setattr(door_guard, "HANDSHAKE_S", ample_s)
        assert await answers(*await client(port, tls, stack)), "who does it right comes in"


def ssl_hello() -> bytes:
    """The first record of a client."""
    out = ssl.MemoryBIO()
    shaking = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="x")
    with contextlib.suppress(ssl.SSLWantReadError):
        shaking.do_handshake()
    return out.read()


async def test_idle_connections_are_closed(tls, monkeypatch):
    monkeypatch.setattr(door_guard, "IDLE_S", SHORT_S)
    async with guarded(tls) as (port, guard, _heads), AsyncExitStack() as stack:
        reader, writer = await client(port, tls, stack)
        assert await answers(reader, writer)
        assert await is_closed(reader)
        await until(lambda: not guard._open)


async def test_connections_per_address_are_limited_and_other_addresses_still_connect(tls, monkeypatch):
    monkeypatch.setattr(door_guard, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(door_guard, "MAX_OF_AN_ADDRESS", 4)
    names: list[str] = ["hog"] * 4
    monkeypatch.setattr(door_guard, "network_of", lambda _address: names[0])
    async with guarded(tls) as (port, guard, _heads), AsyncExitStack() as stack:
        hogs = []
        for _ in range(4):
            hogs.append(await client(port, tls, stack))
            assert await answers(*hogs[-1])
        with pytest.raises((OSError, ssl.SSLError)):
            await client(port, tls, stack)
        names[0] = "node-1"
        node = await client(port, tls, stack)
        assert await answers(*node), "whoever holds most gives way"
        assert await is_closed(hogs[0][0]), "its oldest"
        names[0] = "hog"
        with pytest.raises((OSError, ssl.SSLError)):
            await client(port, tls, stack)
        assert await answers(*node), "and takes no place back"
        names[0] = "node-2"
        assert await answers(*await client(port, tls, stack))
        assert await answers(*node)
        assert guard._open == 4


def test_end_of_a_handshake_is_found_in_any_fragmentation():
    stream = ssl_hello() + b"\x14\x03\x03\x00\x01\x01" + b"\x17\x03\x03\x00\x02ab" + b"\x00anything"
    for step in (1, 2, 5, 7, len(stream)):
        records, over_at = HandshakeRecords(), None
        for start in range(0, len(stream), step):
            records.feed(stream[start : start + step])
            if records.over and over_at is None:
                over_at = start
        assert records.over
    records = HandshakeRecords()
    records.feed(stream[: len(ssl_hello())])
    assert not records.over
    for wrong in (b"\x16\x03\x03\x00\x01\x00" + b"GET /", b"\x80\x03\x01\x00\x00"):
        with pytest.raises(HandshakeRefused):
            HandshakeRecords().feed(wrong)
    endless = HandshakeRecords()
    with pytest.raises(HandshakeRefused, match="too many bytes"):
        for _ in range(100):
            endless.feed(b"\x16\x03\x03\x40\x00" + bytes(0x4000))


def test_clients_are_counted_by_ipv4_address_or_ipv6_network():
    assert network_of("10.1.2.3") == network_of("::ffff:10.1.2.3") == "10.1.2.3"
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8::1")
    assert network_of("fe80::1%eth0") == "fe80::/64"


def test_proxy_header_for_ipv4_and_ipv6():
    four = proxy_header(("10.1.2.3", 5), ("10.0.0.1", 8007))
    assert four[12:16] == b"\x21\x11\x00\x0c" and four[16:20] == socket.inet_aton("10.1.2.3")
    six = proxy_header(("2001:db8::1", 5, 0, 0), ("::1", 8007, 0, 0))
    assert six[12:16] == b"\x21\x21\x00\x24" and len(six) == 16 + 36
    with pytest.raises((ValueError, OSError)):
        proxy_header(("10.1.2.3\r\n", 5), ("10.0.0.1", 8007))
