"""Limits of the Redis door on connections and handshakes, in this process."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from portal.embedded import authority, redis_door
from portal.fleet.machines import certificates
from portal.fleet.machines.certificates import Authority


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    authority.ensure(tmp_path / "tls")
    return tmp_path / "tls"


@asynccontextmanager
async def door(tls: Path) -> AsyncIterator[tuple[int, redis_door.Door]]:
    """The door's port, in front of an echo server."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
        except OSError:
            pass  # the door cuts connections off
        finally:
            await _close(writer)

    redis = await asyncio.start_server(echo, "127.0.0.1", 0)
    made = redis_door.Door(redis_door.context_of(tls), redis.sockets[0].getsockname()[1])
    server = await made.serve("127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], made
    finally:
        server.close()
        redis.close()
        # A connection's task ends with it; its socket is closed soon after.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), 20)
        await asyncio.wait_for(server.wait_closed(), 20)
        for _ in range(10):
            await asyncio.sleep(0)


def node_context(tls: Path, name: str) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    made = Authority.load(tls).issue(
        key.public_key(), name=f"node:{name}", host="x", usages=(certificates.CLIENT,)
    )
    (tls / f"{name}.pem").write_text(made.pem)
    (tls / f"{name}.key").write_text(certificates.pem_of(key))
    context = ssl.create_default_context(cafile=str(tls / "authority.pem"))
    context.load_cert_chain(tls / f"{name}.pem", tls / f"{name}.key")
    return context


async def connected(port: int, context: ssl.SSLContext | None, stack: AsyncExitStack):
    name = certificates.PORTAL_NAME if context else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    stack.push_async_callback(_close, writer)
    return reader, writer


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"PING\r\n")
    try:
        return await asyncio.wait_for(reader.read(100), 20) == b"PING\r\n"
    except (OSError, ssl.SSLError):
        return False


async def test_endless_handshakes_at_once_are_limited_and_time_out(tls, monkeypatch) -> None:
    monkeypatch.setattr(redis_door, "MAX_HANDSHAKES_OF_AN_ADDRESS", 3)
    ample_s = redis_door.HANDSHAKE_S
    # Long enough for the connections below on a slow machine.
    monkeypatch.setattr(redis_door, "HANDSHAKE_S", 2.0)
    async with door(tls) as (port, made), AsyncExitStack() as stack:
        slow = [await connected(port, None, stack) for _ in range(3)]
        one_more, _ = await connected(port, None, stack)
        assert await asyncio.wait_for(_ended(one_more), 20), "no place for another one"
        for reader, _writer in slow:
            assert await asyncio.wait_for(_ended(reader), 20), "its time is over"
        monkeypatch.setattr(redis_door, "HANDSHAKE_S", ample_s)
        assert await answers(*await connected(port, node_context(tls, "gpu-a"), stack))
        assert not made._handshakes, "what has ended is forgotten"


async def test_one_node_cannot_use_connections_of_others(tls, monkeypatch) -> None:
    monkeypatch.setattr(redis_door, "MAX_OF_A_NODE", 2)
    async with door(tls) as (port, _made), AsyncExitStack() as stack:
        greedy = node_context(tls, "gpu-a")
        held = [await connected(port, greedy, stack) for _ in range(2)]
        assert [await answers(*each) for each in held] == [True, True]
        assert not await answers(*await connected(port, greedy, stack))
        assert await answers(*await connected(port, node_context(tls, "gpu-b"), stack))
        held[0][1].close()
        assert await _until(lambda: _again(port, greedy, stack))


async def test_total_connections_are_limited(tls, monkeypatch) -> None:
    monkeypatch.setattr(redis_door, "MAX_CONNECTIONS", 1)
    async with door(tls) as (port, _made), AsyncExitStack() as stack:
        assert await answers(*await connected(port, node_context(tls, "gpu-a"), stack))
        late, _ = await connected(port, None, stack)
        assert await asyncio.wait_for(_ended(late), 20)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, ssl.SSLError):
        await asyncio.wait_for(writer.wait_closed(), 20)


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() is not None
    except OSError:
        return True


async def _again(port: int, context: ssl.SSLContext, stack: AsyncExitStack) -> bool:
    return await answers(*await connected(port, context, stack))


async def _until(attempt) -> bool:
    async with asyncio.timeout(20):
        while not await attempt():
            await asyncio.sleep(0.01)
    return True
