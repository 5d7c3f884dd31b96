"""Forwarding of ports inside a workspace by its Jupyter extension, called like the gateway does."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
from jupyter_support import LIMIT_S, Jupyter
from local_support import Pool
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.node_sockets import SocketConnection, plug

pytestmark = [pytest.mark.apart, pytest.mark.engine, pytest.mark.usefixtures("sandbox")]
# Three servers: one answers after its client has finished sending, one only sends, one resets.
SERVERS = """
import json, socket, struct, threading
def serve(answer):
    listener = socket.create_server(("127.0.0.1", 0))
    def work():
        while True:
            answer(listener.accept()[0])
    threading.Thread(target=work, daemon=True).start()
    return listener.getsockname()[1]
def count(peer):
    with peer:
        size = sum(map(len, iter(lambda: peer.recv(65536), b"")))
        peer.sendall(b"%d bytes" % size)
def much(peer):
    with peer:
        peer.sendall(bytes(30_000_000))
def reset(peer):
    peer.recv(1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
# The same number is nobody's on the address that is asked: taken there, and not listened on.
taken, other = socket.socket(), socket.socket()
taken.bind(("127.0.0.1", 0))
other.bind(("127.0.0.2", taken.getsockname()[1]))
other.listen()
print(json.dumps([serve(count), serve(much), serve(reset), other.getsockname()[1]]))
"""


@pytest.fixture(params=[True, False], ids=["prepared", "started"])
def jupyter(notebook_pool: Pool, request: pytest.FixtureRequest) -> Jupyter:
    return Jupyter(notebook_pool, prepared=request.param)


def forward(jupyter: Jupyter, port: object, **headers: str) -> connect:
    token = {} if "Authorization" in headers else {"Authorization": f"Bearer {jupyter.token}"}
    return connect(
        f"ws://127.0.0.1/berth/forward/{port}",
        sock=plug(jupyter.socket, timeout_s=LIMIT_S),
        additional_headers={**token, **headers},
        open_timeout=LIMIT_S,
        max_size=None,
        compression=None,
    )


def refused(jupyter: Jupyter, port: object, **headers: str) -> int:
    with pytest.raises(InvalidStatus) as error, forward(jupyter, port, **headers):
        pass
    return error.value.response.status_code


def close_code(channel: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed) as closed:
        channel.recv(timeout=LIMIT_S)
    return closed.value.rcvd.code if closed.value.rcvd else None


def test_bytes_pass_both_ways_and_foreign_requests_are_refused(jupyter: Jupyter) -> None:
    assert jupyter.call("GET", "/berth/forward") == {"version": 1}
    kernel = jupyter.kernel()
    count, much, reset, elsewhere = json.loads(jupyter.run(kernel, SERVERS))
    # Many at once; each end is signalled separately, and the answer follows.
    with ExitStack() as held:
        channels = [held.enter_context(forward(jupyter, count)) for _ in range(20)]
        for size, channel in enumerate(channels):
            channel.send(b"x" * size)
            channel.send(b"y" * 100_000)
            channel.send("end")
        for size, channel in enumerate(channels):
            assert channel.recv(timeout=LIMIT_S) == b"%d bytes" % (size + 100_000)
            assert channel.recv(timeout=LIMIT_S) == "end"
            assert close_code(channel) == 1000
    with forward(jupyter, much) as channel:
        received, message = 0, channel.recv(timeout=LIMIT_S)
        while message != "end":
            received += len(message)
            message = channel.recv(timeout=LIMIT_S)
        assert received == 30_000_000
        channel.send("end")
        assert close_code(channel) == 1000
    with forward(jupyter, reset) as channel:
        channel.send(b"x")
        assert close_code(channel) == 4002

    attacks(jupyter, count, own_port(jupyter), elsewhere)


def own_port(jupyter: Jupyter) -> int:
    record = jupyter.pool.driver._dir(jupyter.spec.ref).record()
    assert record is not None
    return int(record.ports[0])


def attacks(jupyter: Jupyter, count: int, own: int, elsewhere: int) -> None:
    # Listening on another address only, or not at all.
    for port in (elsewhere, 1):
        with forward(jupyter, port) as channel:
            assert close_code(channel) == 4001
    assert [refused(jupyter, port) for port in (0, 65536, 99999, own)] == [400] * 4
    for port in ("127.0.0.2:80", "example.org:80", "-1", "80/../81", "%38%30%40example.org", "100000"):
        assert refused(jupyter, port) == 404, port
    assert refused(jupyter, count, Authorization="Bearer wrong") == 403
    assert refused(jupyter, count, Authorization="") == 403
    # A page of any origin, with the token added by the gateway.
    for origin in ("http://evil.example", "http://127.0.0.1", "null"):
        assert refused(jupyter, count, Origin=origin) == 403
    assert refused(jupyter, count, **{"Sec-Fetch-Site": "same-origin"}) == 403
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        assert status(jupyter, headers) == 403


def status(jupyter: Jupyter, headers: dict[str, str]) -> Any:
    connection = SocketConnection(jupyter.socket, timeout_s=LIMIT_S)
    connection.request("GET", "/berth/forward", headers=headers)
    answer = connection.getresponse().status
    connection.close()
    return answer
