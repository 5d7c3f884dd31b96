"""Attack: many connections to the front door; each address has a limit, and others are served."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from portal.embedded import front_guard
from portal.embedded.front_guard import MAX_CONNECTIONS, MAX_OF_AN_ADDRESS, OWN_FILES, Guard, Limits

LIMIT_S = 20.0
Connect = Callable[[str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Loopback(Limits):
    """Counts loopback addresses as foreign, except 127.0.0.1."""

    def group_of(self, address: str) -> str:
        return "" if address == "127.0.0.1" else address


@contextlib.asynccontextmanager
async def guarded(folder: Path, limits: Limits, heads: list[bytes]) -> AsyncIterator[tuple[Connect, Guard]]:
    """A guard before a server that echoes data, and sends more after `bye`."""

    writers: list[asyncio.StreamWriter] = []
    running: set[asyncio.Task[None] | None] = set()

    async def door(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readexactly(16)
            heads.append(head + await reader.readexactly(struct.unpack("!H", head[14:])[0]))
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write(b"x" * 3_000_000)
            await writer.drain()
        writer.close()
        running.discard(asyncio.current_task())

    behind = await asyncio.start_unix_server(door, folder / "door.sock")
    guard = Guard(str(folder / "door.sock"), limits)
    server = await guard.serve(front_guard.bind("127.0.0.1", 0))
    port = server.sockets[0].getsockname()[1]

    async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        line = socket.socket()
        line.bind((address, 0))
        line.setblocking(False)
        await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=line)
        writers.append(writer)
        return reader, writer

    try:
        yield connect, guard
    finally:
        server.close()
        behind.close()
        for writer in writers:
            writer.transport.abort()
        while guard._clients or running:
            await asyncio.sleep(0)


async def says(line: tuple[asyncio.StreamReader, asyncio.StreamWriter], data: bytes = b"hello") -> bytes:
    """Return the response; empty if the guard closed the connection."""
    reader, writer = line
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        return await asyncio.wait_for(reader.read(len(data)), LIMIT_S)
    return b""


async def test_guard_forwards_data_and_the_client_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_guard, "LINGER_S", 0.01)
    heads: list[bytes] = []
    async with guarded(tmp_path, Loopback(), heads) as (connect, guard):
        reader, writer = await connect("127.0.0.2")
        large = b"y" * 2_000_000
        writer.write(large)
        assert await asyncio.wait_for(reader.readexactly(len(large)), LIMIT_S) == large
        # Closing one direction leaves the other open.
        writer.write_eof()
        assert len(await asyncio.wait_for(reader.read(), LIMIT_S)) == 3_000_000
        assert socket.inet_aton("127.0.0.2") in heads[0]
        # The front door has closed: the connection is no longer counted, although the client keeps its end.
        while guard._clients:
            await asyncio.sleep(0.01)


async def test_short_messages_are_sent_at_once(tmp_path: Path) -> None:
    async with guarded(tmp_path, Loopback(), []) as (connect, guard):
        assert await says(await connect("127.0.0.2")) == b"hello"
        client = next(iter(guard._clients["127.0.0.2"]))
        assert client.transport is not None
        line = client.transport.get_extra_info("socket")
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_data_received_before_caddy_accepts_is_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11.2 reads although the transport was paused in connection_made."""
    loop = asyncio.get_running_loop()
    connect_to_caddy = loop.create_unix_connection
    async with guarded(tmp_path, Loopback(), []) as (connect, guard):

        async def late(*arguments: Any) -> Any:
            while not all(client._early for client in guard._clients["127.0.0.2"]):
                await asyncio.sleep(0)
            return await connect_to_caddy(*arguments)

        monkeypatch.setattr(loop, "create_unix_connection", late)
        line = await connect("127.0.0.2")
        large = b"y" * 1_000_000
        line[1].write(large)
        assert await asyncio.wait_for(line[0].readexactly(len(large)), LIMIT_S) == large


CADDY = """
import pathlib, socket, time
pathlib.Path("begun").touch()
while not pathlib.Path("open").exists():
    time.sleep(0.01)
server = socket.socket(socket.AF_UNIX)
server.bind("door.sock")
server.listen()
while True:
    line, _ = server.accept()
    if line.recv(100):
        line.sendall(b"hello")
    line.close()
"""


def test_connections_are_refused_until_caddy_accepts(tmp_path: Path) -> None:
    with front_guard.bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "portal.embedded.front_guard", "--listen", f"127.0.0.1:{port}"]
    argv += ["--folder", str(tmp_path), "--to", "door.sock", "--", sys.executable, "-c", CADDY]
    with subprocess.Popen(argv) as guard:
        try:
            while not (tmp_path / "begun").exists():
                assert guard.poll() is None
                time.sleep(0.01)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            (tmp_path / "open").touch()
            answer = b""
            while not answer:
                # Refused until then, and never accepted without an upstream.
                with (
                    contextlib.suppress(ConnectionRefusedError),
                    socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as line,
                ):
                    answer = line.recv(100)
                    assert answer == b"hello"
                assert guard.poll() is None
        finally:
            guard.terminate()


async def test_connections_per_address_are_limited_except_for_this_machine(tmp_path: Path) -> None:
    async with guarded(tmp_path, Loopback(of_address=3, connections=8), []) as (connect, _guard):
        lines = [await connect("127.0.0.2") for _ in range(3)]
        assert [await says(line) for line in lines] == [b"hello"] * 3
        assert await says(await connect("127.0.0.2")) == b""
        assert await says(await connect("127.0.0.3")) == b"hello"
        own = [await connect("127.0.0.1") for _ in range(8)]
        assert [await says(line) for line in own] == [b"hello"] * 8
        assert await says(await connect("127.0.0.1")) == b""
        assert [await says(line) for line in lines] == [b"hello"] * 3
        lines[0][1].close()
        while (await says(again := await connect("127.0.0.2"))) == b"":
            again[1].close()


async def test_full_guard_closes_the_oldest_connection_of_the_busiest_address(tmp_path: Path) -> None:
    async with guarded(tmp_path, Loopback(of_address=5, connections=6), []) as (connect, _guard):
        greedy = [await connect("127.0.0.2") for _ in range(4)]
        others = [await connect("127.0.0.3") for _ in range(2)]
        assert [await says(line) for line in (*greedy, *others)] == [b"hello"] * 6
        newcomer = await connect("127.0.0.4")
        assert await says(newcomer) == b"hello"
        assert [await says(line) for line in greedy] == [b"", b"hello", b"hello", b"hello"]
        assert await says(await connect("127.0.0.2")) == b""
        assert [await says(line) for line in (*others, newcomer)] == [b"hello"] * 3


def test_clients_behind_a_trusted_proxy_are_counted_separately() -> None:
    limits = Limits(proxies=(ip_network("10.0.0.0/8"),))
    assert limits.group_of("203.0.113.7") == "203.0.113.7" == limits.group_of("::ffff:203.0.113.7")
    assert limits.group_of("2001:db8::1") == limits.group_of("2001:db8::2") == "2001:db8::/64"
    assert limits.group_of("127.0.0.1") == limits.group_of("::1") == limits.group_of("10.1.2.3") == ""


@pytest.mark.parametrize(
    ("files", "connections"), [(1 << 20, MAX_CONNECTIONS), (1024, (1024 - OWN_FILES) // 4)]
)
def test_connection_limit_depends_on_the_file_limit(files: int, connections: int) -> None:
    limits = Limits.from_environ({"BERTH_TRUSTED_PROXIES": "10.0.0.7, 10.1.0.0/16"}, files)
    assert (limits.of_address, limits.connections) == (MAX_OF_AN_ADDRESS, connections)
    assert limits.proxies == (ip_network("10.0.0.7/32"), ip_network("10.1.0.0/16"))
    assert Limits.from_environ({"BERTH_CONNECTIONS_PER_ADDRESS": "9"}, files).of_address == 9
