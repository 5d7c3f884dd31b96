"""`berth port-forward` against a fake workspace origin that speaks the extension's protocol.

The extension is tested in `tests/provisioning/local/test_port_forward.py`, both together in `tests/e2e`.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from websockets.sync.server import ServerConnection, serve

from portal.cli import forwarding
from portal.cli.client.transport import Transport
from portal.cli.loopback import Connection
from portal.people.accounts.models import ApiToken
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.factories import WorkspaceFactory
from tests.ports import consecutive_ports

COUNTS, ECHOES, NOBODY, CLOSED = 7001, 7002, 7003, 7004
LIMIT_S = 20


class Origin:
    """A fake workspace origin. `status` is its response to the question whether it forwards."""

    status = 200

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.server = serve(self.lead, "127.0.0.1", 0, process_request=self.answer, max_size=None)
        self.url = f"http://127.0.0.1:{self.server.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join(LIMIT_S)

    def answer(self, channel: ServerConnection, request: Any) -> Any:
        assert request.headers["Authorization"].startswith("Bearer ")
        assert "Origin" not in request.headers
        if request.path in ("/", "/berth/forward"):
            return channel.respond(self.status, json.dumps({"version": 1}))
        self.asked.append(request.path)
        return channel.respond(403, "") if request.path.endswith(f"/{CLOSED}") else None

    def lead(self, channel: ServerConnection) -> None:
        port = int(channel.request.path.rpartition("/")[2])  # type: ignore[union-attr]
        if port == NOBODY:
            channel.close(4001, "no program listens on this port")
            return
        size = 0
        for message in channel:
            if message == "end":
                channel.send(b"%d bytes" % size)
                channel.send("end")
                channel.close()
                return
            size += len(message)
            if port == ECHOES:
                channel.send(message)


@pytest.fixture
def origin(bob: Any, team: Any, pool: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Origin]:
    """The origin of bob's running workspace `job`."""
    WorkspaceFactory(owner=bob, team=team, pool=pool, name="job", state=State.RUNNING)
    found = Origin()
    monkeypatch.setattr(Transport, "connect", lambda self, _: Connection(found.url, self._token))
    monkeypatch.setattr(forwarding, "POLL_INTERVAL_S", 0.2)
    yield found
    found.close()


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[int], None]], None]]:
    """Run code with the local port once the command listens, then interrupt the command."""
    ports: queue.Queue[int] = queue.Queue()
    say, watch, threads = forwarding._announce_port, forwarding.PortForwarder.watch, []
    watching, over = threading.Event(), threading.Event()

    def said(local: int, *given: Any, **more: Any) -> None:
        say(local, *given, **more)
        ports.put(local)

    def watched(*given: Any) -> int:
        over.clear()
        watching.set()
        try:
            return watch(*given)
        finally:
            watching.clear()
            over.set()

    monkeypatch.setattr(forwarding, "_announce_port", said)
    monkeypatch.setattr(forwarding.PortForwarder, "watch", watched)
    # A shell's background jobs ignore SIGINT by default.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def begin(work: Callable[[int], None], *, interrupt: bool = True) -> None:
        def run() -> None:
            try:
                local = ports.get(timeout=LIMIT_S)
                watching.wait(LIMIT_S)
                work(local)
            except Exception as error:
                failures.append(error)
            finally:
                connection.close()
                # Repeated, as Python drops an interrupt inside a destructor.
                until = time.monotonic() + LIMIT_S
                while (interrupt or failures) and watching.is_set() and time.monotonic() < until:
                    os.kill(os.getpid(), signal.SIGINT)
                    over.wait(1.0)

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    failures: list[Exception] = []
    yield begin
    for thread in threads:
        thread.join(LIMIT_S)
    signal.signal(signal.SIGINT, before)
    assert not failures, failures


def exchange(port: int, data: bytes) -> bytes:
    """The response of a local port to `data` followed by end of file."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as line:
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: line.recv(65536), b""))


def is_closed(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


def test_bytes_pass_both_ways_until_interrupt(as_bob: Any, origin: Origin, meanwhile: Any) -> None:
    used = []

    def work(port: int) -> None:
        used.append(port)
        assert exchange(port, b"x" * 3_000_000) == b"3000000 bytes"
        lines = [socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) for _ in range(40)]
        for size, line in enumerate(lines):
            line.sendall(b"y" * size)
            line.shutdown(socket.SHUT_WR)
        for size, line in enumerate(lines):
            with line:
                assert b"".join(iter(lambda line=line: line.recv(99), b"")) == b"%d bytes" % size
        # On no other address of this machine.
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", port), timeout=LIMIT_S)
        # An open connection ends with the command.
        used.append(socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S))

    meanwhile(work)
    ran = as_bob("port-forward", "job", f"0:{COUNTS}", f"0:{ECHOES}", "--json")
    port, line = used
    with line:
        assert is_closed(line)
    assert ran.code == 130, ran
    said = [json.loads(line) for line in ran.out.splitlines()]
    assert said[0] == {"address": "127.0.0.1", "local_port": port, "port": COUNTS}
    assert said[1]["port"] == ECHOES and said[1]["local_port"] not in (0, port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert set(origin.asked) == {f"/berth/forward/{COUNTS}"}


def test_failed_connection_ends_with_an_error(
    as_bob: Any, origin: Origin, meanwhile: Any, unused_port: int
) -> None:
    def work(port: int) -> None:
        assert port == unused_port
        assert exchange(port, b"x") == b""

    meanwhile(work)
    ran = as_bob("port-forward", "job", f"{unused_port}:{NOBODY}")
    assert ran.code == 130
    assert ran.out == f"127.0.0.1:{unused_port} forwards to port {NOBODY} of job.\n"
    assert ran.err == f"Nothing listens on port {NOBODY} of job.\nInterrupted.\n"
    meanwhile(lambda port: exchange(port, b"x") and None)
    ran = as_bob("port-forward", "job", f"0:{CLOSED}")
    assert ran.code == 130 and "(403)" in ran.err


@pytest.fixture
def unused_port() -> int:
    return consecutive_ports(1)


def test_short_messages_are_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = queue.SimpleQueue[int]()

    async def forward(_self: forwarding.PortForwarder, _port: int, line: socket.socket) -> None:
        with line:
            accepted.put(line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(forwarding.PortForwarder, "_forward", forward)
    forwarder = forwarding.PortForwarder(Connection("http://127.0.0.1:1", "token"), "job")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        forwarder.add(listener, 8000)
        with socket.create_connection(listener.getsockname()[:2]):
            assert accepted.get(timeout=LIMIT_S)
        forwarder.close()


def test_forwarding_ends_when_the_workspace_stops_or_the_token_is_revoked(
    as_bob: Any, origin: Origin, meanwhile: Any
) -> None:
    def stop(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as line:
            line.sendall(b"x")
            assert line.recv(1) == b"x"
            Workspace.objects.update(state=State.STOPPED)
            assert is_closed(line)

    meanwhile(stop, interrupt=False)
    ran = as_bob("port-forward", "job", f"0:{ECHOES}")
    assert ran.code == 1 and "job is stopped. Forwarding has ended." in ran.err
    Workspace.objects.update(state=State.RUNNING)
    meanwhile(lambda _: ApiToken.objects.all().delete() and None, interrupt=False)
    ran = as_bob("port-forward", "job", f"0:{ECHOES}", "--json")
    assert ran.code == 3
    assert json.loads(ran.out.splitlines()[1])["error"]["message"]


def test_unforwardable_port_is_reported_at_once(as_bob: Any, origin: Origin) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = as_bob("port-forward", "job", "0:80", f"{port}:80")
        assert ran.code == 2 and f"Port {port} of this machine is in use." in ran.err and "0:80" in ran.err
        assert ran.out == ""
    for wrong in ("0", "65536", "a", "1:2:3", "-1:80", "80:0"):
        assert as_bob("port-forward", "job", "--", wrong).code == 2, wrong
    origin.status = 404
    ran = as_bob("port-forward", "job", "0:80")
    assert ran.code == 1 and "has no Jupyter that forwards ports" in ran.err
    origin.status = 403
    ran = as_bob("port-forward", "job", "0:80")
    assert ran.code == 3 and "workspaces:connect" in ran.err
    Workspace.objects.update(state=State.STOPPED)
    ran = as_bob("port-forward", "job", "0:80")
    assert ran.code == 1 and "berth start" in ran.err
    assert as_bob("port-forward", "theirs", "0:80").code == 5
    assert origin.asked == []
