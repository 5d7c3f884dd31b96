"""Long-lived connections through the real front door end with access, and not before."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_support import (
    SECRET,
    WS_A,
    WS_B,
    Stack,
    echo,
    eventually,
    free_port,
    run_caddy,
    started,
    view,
)
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from portal.common import front_door
from portal.workspaces.gateway import streams, tickets, workspace_views
from portal.workspaces.gateway.access import ACCOUNTS_KEY, EntryRefused, Refusal
from portal.workspaces.gateway.request import ClientRequest
from portal.workspaces.gateway.streams import ConnectionLimitReached, Streams
from provisioning.endpoints import GATEWAY_HEADER, HTTP_HEADER, NODE_HEADER, SOCKET_HEADER
from provisioning.node_gateway import caddy_config
from tests.certificates import Authority

pytestmark = pytest.mark.engine
CUT_S = 2.0
TOKEN = front_door.gateway_process_token(SECRET)


@pytest.fixture
def door(stack: Stack) -> Stack:
    """An empty store and two running workspaces, the second of another user."""
    stack.redis.flushall()
    stack.portal.views = {WS_A: stack.view(), WS_B: stack.view(WS_B, user_ids=frozenset({"8"}))}
    stack.portal.tokens = {"good": "7", "other": "8"}
    stack.portal.broken = False
    return stack


def cookie_of(stack: Stack) -> dict[str, str]:
    def entered() -> str | None:
        ticket = tickets.issue(stack.redis, external_name=WS_A, user_id="7")
        answer = stack.get(f"/.berth/enter?ticket={ticket}", name=WS_A)
        return answer.headers["set-cookie"].partition(";")[0] if answer.status_code == 303 else None

    return {"Cookie": eventually(entered)}


@contextlib.asynccontextmanager
async def talking(stack: Stack, headers: dict[str, str], name: str = WS_A) -> AsyncIterator[ClientConnection]:
    """A WebSocket with one exchanged message."""
    uri = f"ws://{stack.host(name)}/api/kernels/1/channels?session_id=1"
    place = {"host": "127.0.0.1", "port": stack.proxy_port}
    async with connect(uri, additional_headers=headers, ping_interval=None, **place) as found:
        await found.recv()
        await echoed(found)
        yield found


async def echoed(channel: ClientConnection) -> None:
    await channel.send("hello")
    assert await asyncio.wait_for(channel.recv(), 10) == "hello"


async def cut_after(channel: ClientConnection) -> float:
    """Return the seconds until it is closed by the server."""
    began = time.monotonic()
    with pytest.raises(ConnectionClosed):
        await asyncio.wait_for(channel.recv(), 20)
    return time.monotonic() - began


@pytest.fixture
def no_periodic_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No periodic checks: connections are closed by notifications only."""
    monkeypatch.setattr(streams, "TOKEN_RECHECK_S", 3600.0)
    monkeypatch.setattr(streams, "SESSION_RECHECK_S", 3600.0)


TAKEN_AWAY: dict[str, Callable[[Stack], Any]] = {
    "signed out": lambda door: tickets.revoke_user(door.redis, "7"),
    "sessions of the workspace ended": lambda door: tickets.revoke_workspace(door.redis, WS_A),
    "no longer among those who may": lambda door: workspace_views.store_view(
        door.redis, door.view(user_ids=frozenset({"9"}), revision=5)
    ),
    "on a machine that was revoked": lambda door: workspace_views.store_view(
        door.redis, door.view(endpoint="", revision=5)
    ),
    "another start": lambda door: workspace_views.store_view(
        door.redis, door.view(endpoint="http://127.0.0.1:1", revision=5)
    ),
    "deleted": lambda door: workspace_views.store_view(door.redis, door.view(state="terminated", revision=5)),
}


@pytest.mark.parametrize("how", TAKEN_AWAY)
async def test_open_connection_ends_with_access(door: Stack, no_periodic_checks: None, how: str) -> None:
    session = await asyncio.to_thread(cookie_of, door)
    async with (
        talking(door, session) as mine,
        talking(door, {"Authorization": "Bearer other"}, WS_B) as theirs,
    ):
        await asyncio.to_thread(TAKEN_AWAY[how], door)
        assert await cut_after(mine) < CUT_S
        await echoed(theirs)


@pytest.mark.parametrize("told", [True, False], ids=["with a word", "without one"])
async def test_ended_token_closes_its_connections(
    door: Stack, told: bool, request: pytest.FixtureRequest
) -> None:
    if told:
        request.getfixturevalue("no_periodic_checks")
    session = await asyncio.to_thread(cookie_of, door)
    async with (
        talking(door, {"Authorization": "Bearer good"}) as by_token,
        talking(door, session) as by_cookie,
    ):
        del door.portal.tokens["good"]
        if told:
            await asyncio.to_thread(door.redis.incr, ACCOUNTS_KEY)
        # Looked up each second, with time for a loaded machine.
        assert await cut_after(by_token) < CUT_S + (0 if told else 1)
        await echoed(by_cookie)


async def test_event_stream_ends_with_access(door: Stack, no_periodic_checks: None) -> None:
    """Its response never ends while the app has data."""

    async def ticking(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await receive()
        disconnected = asyncio.ensure_future(receive())
        while not disconnected.done():
            await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
            await asyncio.wait([disconnected], timeout=0.1)

    session = await asyncio.to_thread(cookie_of, door)
    with door.app(ticking, 3) as place:
        workspace_views.store_view(door.redis, view(socket=place, endpoint="", revision=3))
        url = f"http://127.0.0.1:{door.proxy_port}/ticks"
        headers = {"host": door.host(), "accept": "text/event-stream", **session}
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("GET", url, headers=headers) as found,
        ):
            assert found.status_code == 200
            ticks = found.aiter_raw()
            assert await anext(ticks)
            await asyncio.to_thread(tickets.revoke_user, door.redis, "7")
            # It runs until its connection is closed: the end is the proof.
            async with asyncio.timeout(CUT_S):
                with contextlib.suppress(httpx.HTTPError):
                    async for _ in ticks:
                        pass


async def test_change_without_lost_access_keeps_connections(door: Stack) -> None:
    session = await asyncio.to_thread(cookie_of, door)
    async with talking(door, session) as channel:
        for revision, state in enumerate(("running", "running", "stopping"), 10):
            workspace_views.store_view(door.redis, door.view(name=WS_A, state=state, revision=revision))
        workspace_views.drop(door.redis, WS_B)
        door.redis.incr(ACCOUNTS_KEY)
        await asyncio.sleep(1)
        # A stopped app closes its connections in order.
        await echoed(channel)


async def test_app_gets_client_headers_but_no_berth_credentials(door: Stack) -> None:
    uri = f"ws://{door.host()}/x"
    place = {"host": "127.0.0.1", "port": door.proxy_port}
    asked = {
        "Authorization": "Bearer good",
        "X-Forwarded-For": "203.0.113.9",
        "X-Berth-Stream": "0" * 64,
        "X-Berth-Socket": f"{WS_B}.1",
    }
    async with connect(uri, additional_headers=asked, **place) as channel:
        headers = dict(json.loads(await channel.recv()))
    assert headers["authorization"] == "token upstream-secret"
    assert headers["x-forwarded-for"] == "127.0.0.1"
    assert headers["host"] == headers["x-forwarded-host"] == door.host()
    assert [name for name in headers if name.startswith("x-berth")] == []


@pytest.mark.parametrize("token", ["", "0" * 64, TOKEN[:-1], TOKEN.upper(), f"{TOKEN}0", f"{TOKEN}, {TOKEN}"])
@pytest.mark.parametrize("header", [SOCKET_HEADER, HTTP_HEADER, GATEWAY_HEADER])
def test_clients_cannot_choose_the_upstream(door: Stack, token: str, header: str) -> None:
    with door.app(echo, 4) as place:
        named = {SOCKET_HEADER: place, HTTP_HEADER: f"127.0.0.1:{door.upstream_port}"}.get(
            header, "127.0.0.1:1"
        )
        headers = {"host": door.host(), front_door.ONWARD_HEADER: token, header: named, NODE_HEADER: "node-b"}
        answer = httpx.get(f"http://127.0.0.1:{door.proxy_port}/x", headers=headers)
    assert answer.status_code == 401
    assert "x-upstream" not in answer.headers


def test_unsafe_socket_name_is_refused_even_with_the_secret(door: Stack) -> None:
    for name in ("../secrets.1", f"{WS_A}.1/..", f"{WS_A}.0", "x"):
        headers = {"host": door.host(), front_door.ONWARD_HEADER: TOKEN, SOCKET_HEADER: name}
        answer = httpx.get(f"http://127.0.0.1:{door.proxy_port}/x", headers=headers)
        assert answer.status_code == 502, name


def test_internal_addresses_are_not_sent_to_clients(door: Stack) -> None:
    """Neither a refused nor an upgraded response reveals internal addresses."""
    for headers in ({}, {"authorization": "Bearer good"}):
        answer = door.get("/x", upgrade="websocket", connection="Upgrade", **{
            "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==", "sec-websocket-version": "13", **headers,
        })  # fmt: skip
        assert answer.status_code == (101 if headers else 401)
        assert [name for name in answer.headers if name.startswith("x-berth")] == []


async def test_large_messages_pass_in_both_directions_in_order(door: Stack) -> None:
    size, count = 256 * 1024, 40
    uri = f"ws://{door.host()}/big"
    place = {"host": "127.0.0.1", "port": door.proxy_port}
    headers = {"Authorization": "Bearer good"}
    async with connect(uri, additional_headers=headers, max_size=None, compression=None, **place) as channel:
        await channel.recv()

        async def send() -> None:
            for number in range(count):
                await channel.send(f"{number:06}" + "x" * size)

        sending = asyncio.create_task(send())
        for number in range(count):
            found = await asyncio.wait_for(channel.recv(), 30)
            assert found == f"{number:06}" + "x" * size
        await sending


async def test_app_on_another_node_is_reached_and_disconnected(
    door: Stack, no_periodic_checks: None, tmp_path: Path
) -> None:
    """Through the gateway of that node, with mutual TLS."""
    authority = Authority(tmp_path / "authority")
    (tmp_path / "own").mkdir()
    with started(tmp_path / "own", certificates=authority.front_door()) as found:
        port = free_port()
        there = found.folder / "node-b"
        (there / ".gateway").mkdir(parents=True)
        (there / "gateway.json").write_text(
            caddy_config(
                listen=f"127.0.0.1:{port}",
                certificates=authority.node("node-b"),
                portal_url="http://127.0.0.1:9",
                storage=there / "caddy",
            )
        )
        with run_caddy(there, "gateway"), found.app(echo, 2, below="node-b") as place:
            found.portal.views = {
                WS_A: view(socket=place, gateway=f"127.0.0.1:{port}", node="node-b", endpoint="")
            }
            found.portal.tokens = {"good": "7"}
            eventually(lambda: found.get("/", authorization="Bearer good").status_code == 200 or None)
            session = await asyncio.to_thread(cookie_of, found)
            async with talking(found, session) as channel:
                await asyncio.to_thread(tickets.revoke_user, found.redis, "7")
                assert await cut_after(channel) < CUT_S


# --- without a front door: replaced by a test server ----------------------------------------------


class Door:
    """Replaces the front door: accepts the connection and returns its head."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"answered\n")
        with contextlib.suppress(OSError):
            while more := await reader.read(65536):
                writer.write(more)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class Reauthorizer:
    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] | None = [(b"x-berth-socket", b"ws-1.1")]
        self.error: Exception | None = None
        self.asked = 0

    async def __call__(self, name: str, client: ClientRequest) -> list[tuple[bytes, bytes]] | None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.headers

    async def asked_again(self, times: int) -> None:
        """Wait for that many further calls."""
        target = self.asked + times
        async with asyncio.timeout(20):
            while self.asked < target:
                await asyncio.sleep(0.01)


CLIENT = ClientRequest("ws.localhost", "GET", "/", {"cookie": ["berth_ws=1"]})
UPSTREAM_HEADERS = [(b"x-berth-socket", b"ws-1.1")]


@pytest.fixture
async def through() -> AsyncIterator[tuple[Streams, Door, Reauthorizer]]:
    behind, reauthorizer = Door(), Reauthorizer()
    server = await asyncio.start_server(behind, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    found = Streams(("127.0.0.1", port), "t" * 64, reauthorizer)
    yield found, behind, reauthorizer
    await found.close()
    for writer in CAME:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    CAME.clear()
    server.close()


CAME: list[asyncio.StreamWriter] = []


async def come(headers: list[tuple[bytes, bytes]], word: bytes | None = None) -> Any:
    said = dict(headers)
    place = said[b"x-berth-stream-place"].decode()
    reader, writer = await asyncio.open_unix_connection(f"\0{place[1:]}")
    CAME.append(writer)
    shown = word if word is not None else said[b"x-berth-stream"]
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Berth-Stream: " + shown + b"\r\n\r\nfirst")
    return reader, writer


async def test_stream_secret_is_valid_once_and_for_ten_seconds(
    through: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, behind, _ = through
    headers = await found.expect("ws-1", CLIENT, UPSTREAM_HEADERS, {"a"})
    for word in (b"0" * 64, b"", b"x, y"):
        reader, _ = await come(headers, word)
        assert await asyncio.wait_for(_rest(reader), 5) == b""
    reader, writer = await come(headers)
    assert await reader.readline() == b"answered\n"
    assert await reader.readexactly(5) == b"first"
    assert b"X-Berth-Onward: " + b"t" * 64 in behind.heads[0]
    assert b"x-berth-socket: ws-1.1" in behind.heads[0] and b"X-Berth-Stream" not in behind.heads[0]
    again, _ = await come(headers)
    assert await asyncio.wait_for(_rest(again), 5) == b""
    writer.close()
    monkeypatch.setattr(streams, "CLIENT_CONNECT_S", 0.1)
    late = await found.expect("ws-1", CLIENT, UPSTREAM_HEADERS, {"a"})
    await asyncio.sleep(0.3)
    reader, _ = await come(late)
    assert await asyncio.wait_for(_rest(reader), 5) == b""
    assert len(behind.heads) == 1


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_connections_per_workspace_are_limited_until_one_ends(
    through: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_OF_WORKSPACE", 2)
    found, _, _ = through
    first = await come(await found.expect("ws-1", CLIENT, UPSTREAM_HEADERS, {"a"}))
    await found.expect("ws-1", CLIENT, UPSTREAM_HEADERS, {"a"})
    with pytest.raises(ConnectionLimitReached):
        await found.expect("ws-1", CLIENT, UPSTREAM_HEADERS, {"a"})
    await found.expect("ws-2", CLIENT, UPSTREAM_HEADERS, {"a"})
    await first[0].readline()
    first[1].close()
    for _ in range(100):
        with contextlib.suppress(ConnectionLimitReached):
            await found.expect("ws-1", CLIENT, UPSTREAM_HEADERS, {"a"})
            return
        await asyncio.sleep(0.05)
    pytest.fail("its place was not free again")


async def test_failed_reauthorization_is_tolerated_for_a_while(
    through: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "RETRY_S", 0.05)
    monkeypatch.setattr(streams, "SILENT_S", 3600.0)
    found, _, reauthorizer = through
    reader, writer = await come(await found.expect("ws-1", CLIENT, UPSTREAM_HEADERS, {"a"}))
    await reader.readline()
    await reader.readexactly(5)
    reauthorizer.error = OSError("away")
    found.changed(None)
    await reauthorizer.asked_again(3)
    writer.write(b"still\n")
    assert await asyncio.wait_for(reader.readline(), 20) == b"still\n"
    reauthorizer.error = None
    await reauthorizer.asked_again(1)
    # That many seconds without an answer would exceed the limit now, but it got one.
    monkeypatch.setattr(streams, "SILENT_S", 1.0)
    await asyncio.sleep(1.2)
    writer.write(b"still\n")
    assert await asyncio.wait_for(reader.readline(), 20) == b"still\n"
    reauthorizer.error = OSError("away")
    found.changed(None)
    assert await asyncio.wait_for(_rest(reader), 20) == b""


async def test_connections_of_one_session_share_one_reauthorization(through: Any) -> None:
    found, _, reauthorizer = through
    held = [await come(await found.expect("ws-1", CLIENT, UPSTREAM_HEADERS, {"a"})) for _ in range(20)]
    for reader, _ in held:
        await reader.readline()
    await asyncio.sleep(0.2)
    before = reauthorizer.asked
    found.changed({"b"})
    await asyncio.sleep(0.2)
    assert reauthorizer.asked == before
    found.changed({"a"})
    await asyncio.sleep(0.3)
    assert reauthorizer.asked == before + 1
    reauthorizer.error = EntryRefused(Refusal.FORBIDDEN, "ws-1", CLIENT)
    found.changed({"a"})
    for reader, _ in held:
        assert await asyncio.wait_for(_rest(reader), 5) == b"first"


async def test_unanswered_request_does_not_delay_others(
    through: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "RECHECK_TIMEOUT_S", 3600.0)
    found, _, reauthorizer = through
    other = ClientRequest("ws.localhost", "GET", "/", {"cookie": ["berth_ws=2"]})
    hung = await come(await found.expect("ws-1", CLIENT, UPSTREAM_HEADERS, {"a"}))
    good = await come(await found.expect("ws-2", other, UPSTREAM_HEADERS, {"b"}))
    for reader, _ in (hung, good):
        await reader.readline()
    await asyncio.sleep(0.2)
    ask: Callable[[str, ClientRequest], Awaitable[Any]] = reauthorizer.__call__

    hangs = asyncio.Event()

    async def reauthorize(name: str, client: ClientRequest) -> Any:
        if name == "ws-1":
            hangs.set()
            await asyncio.Event().wait()
        return await ask(name, client)

    found._reauthorize = reauthorize
    found.changed({"a"})
    await asyncio.wait_for(hangs.wait(), 20)
    reauthorizer.headers = None
    found.changed({"b"})
    assert await asyncio.wait_for(_rest(good[0]), 20) == b"first"


def test_exhausted_descriptors_keep_existing_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(1, "refused")

    monkeypatch.setattr(streams.resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(streams.resource, "setrlimit", refused)
    assert Streams(("127.0.0.1", 1), "t" * 64, Reauthorizer())._most == 256
