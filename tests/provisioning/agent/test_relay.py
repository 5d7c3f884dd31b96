"""The relay of a workspace between two real sockets: no data lost, ends forwarded, no needless polling."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provisioning.agent.program.relay import Flow, Relay

PATIENCE_S = 30.0


@dataclass
class Joined:
    """A relay from the Unix socket `path` to the port of `app`."""

    path: str
    app: socket.socket
    relay: Relay
    opened: list[socket.socket] = field(default_factory=list)

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a connection: client and app."""
        client = self.client()
        client.sendall(b"?")
        inside, _ = self.app.accept()
        self.opened.append(inside)
        inside.settimeout(PATIENCE_S)
        assert inside.recv(1) == b"?"
        return client, inside

    def client(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        self.opened.append(made)
        made.settimeout(PATIENCE_S)
        made.connect(self.path)
        return made


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Joined]:
    app = socket.create_server(("127.0.0.1", 0))
    app.settimeout(PATIENCE_S)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    lifeline, held = os.pipe()
    relay = Relay(listener, app.getsockname()[1], lifeline)
    thread = threading.Thread(target=relay.run)
    thread.start()
    found = Joined(str(tmp_path / "s"), app, relay)
    yield found
    os.close(held)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    os.close(lifeline)
    # The process of the app would end here.
    relay.poll.close()
    for each in (*(end.sock for end in relay.ends.values()), *found.opened, app, listener):
        each.close()


def test_reused_descriptor_gets_no_events_of_a_closed_connection(tmp_path: Path) -> None:
    app = socket.create_server(("127.0.0.1", 0))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    relay = Relay(listener, app.getsockname()[1], -1)
    listener.setblocking(False)
    with app, listener, socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.connect(str(tmp_path / "s"))
        relay.set_accepting(True)
        relay.connect_one()
        near, far = relay.ends
        inside, _ = app.accept()
        # Shut down but not closed, since a freed descriptor would be reused first.
        first.shutdown(socket.SHUT_RDWR)
        inside.shutdown(socket.SHUT_RDWR)
        second.connect(str(tmp_path / "s"))
        second.sendall(b"?")
        hung_up = select.EPOLLIN | select.EPOLLHUP
        # One batch: the first connection ends on both sides; the second arrives between the two events.
        relay.handle([(near, hung_up), (listener.fileno(), select.EPOLLIN), (far, hung_up)])
        assert set(relay.ends) == {near, far}, "the descriptors of the first connection are used again"
        assert not relay.ends[near].out.ended
        assert not relay.ends[near].into.ended
        inside.close()
        for end in list(relay.ends.values()):
            end.sock.close()
        relay.poll.close()


def received(end: socket.socket, size: int = 1 << 30) -> bytes:
    """Read up to `size` bytes or to the end of the stream."""
    found = bytearray()
    while len(found) < size and (part := end.recv(1 << 16)):
        found += part
    return bytes(found)


def in_threads(*calls: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)


def test_data_sent_in_both_directions_at_once_arrives(joined: Joined) -> None:
    """More data than the sockets buffer, so each side must wait for the other."""
    client, app = joined.pair()
    there, back = os.urandom(1 << 20) * 8, os.urandom(1 << 20) * 8
    found: dict[str, bytes] = {}
    in_threads(
        lambda: client.sendall(there),
        lambda: app.sendall(back),
        lambda: found.update(there=received(app, len(there))),
        lambda: found.update(back=received(client, len(back))),
    )
    assert found == {"there": there, "back": back}


def test_parallel_connections_do_not_mix(joined: Joined) -> None:
    pairs = [joined.pair() for _ in range(20)]
    for number, (client, app) in enumerate(pairs):
        client.sendall(b"to %d" % number)
        app.sendall(b"from %d" % number)
    for number, (client, app) in enumerate(pairs):
        assert app.recv(64) == b"to %d" % number
        assert client.recv(64) == b"from %d" % number


@pytest.mark.parametrize("first", [0, 1], ids=["client", "app"])
def test_half_closed_connection_still_receives(joined: Joined, first: int) -> None:
    ends = joined.pair()
    done, other = ends[first], ends[1 - first]
    done.sendall(b"last words")
    done.shutdown(socket.SHUT_WR)
    assert received(other) == b"last words"
    other.sendall(b"answer" * 100_000)
    other.close()
    assert received(done) == b"answer" * 100_000


@pytest.mark.parametrize("first", [0, 1], ids=["client", "app"])
def test_closing_one_end_closes_the_other(joined: Joined, first: int) -> None:
    ends = joined.pair()
    ends[first].close()
    assert received(ends[1 - first]) == b""
    ends[1 - first].close()
    client, app = joined.pair()
    client.sendall(b"next")
    assert app.recv(16) == b"next"


def test_buffered_data_arrives_after_the_sender_ends(joined: Joined) -> None:
    client, app = joined.pair()
    sent = os.urandom(1 << 20) * 4
    found: list[bytes] = []
    in_threads(lambda: (client.sendall(sent), client.close()), lambda: found.append(received(app)))
    assert found == [sent]


def test_connection_is_closed_without_an_app(joined: Joined) -> None:
    joined.app.close()
    assert joined.client().recv(1) == b""


def test_request_and_answer_take_two_polls(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    """One poll per readable end, without changing the epoll registration."""
    client, app = joined.pair()
    looks: list[Flow] = []
    pump = Flow.pump

    def counted(flow: Flow, room: memoryview) -> None:
        looks.append(flow)
        pump(flow, room)

    monkeypatch.setattr(Flow, "pump", counted)
    watched = [end.mask for end in joined.relay.ends.values()]
    for _ in range(50):
        client.sendall(b"request")
        assert app.recv(64) == b"request"
        app.sendall(b"answer")
        assert client.recv(64) == b"answer"
    assert len(looks) == 100
    assert [end.mask for end in joined.relay.ends.values()] == watched == [select.EPOLLIN] * 2


def test_forwarded_bytes_are_counted_both_ways(joined: Joined) -> None:
    client, inside = joined.pair()
    client.sendall(b"a" * 300_000)
    assert len(received(inside, 300_000)) == 300_000
    inside.sendall(b"b" * 700_000)
    assert len(received(client, 700_000)) == 700_000
    assert joined.relay.passed[0] == 1 + 300_000 + 700_000  # includes the byte sent by `pair`
