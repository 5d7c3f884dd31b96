"""Attack: connections to the front door that never finish a request head."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator

import httpx
import pytest

from portal.embedded import proxy
from portal.embedded.preflight import find_binaries
from provisioning.endpoints import PORTAL_SOCKET
from provisioning.node_gateway import HEADER_TIMEOUT_NS
from tests.certificates import Authority
from tests.instance import eventually
from tests.ports import consecutive_ports

pytestmark = [pytest.mark.engine, pytest.mark.thorough("waits for time limits")]
LIMIT_S = 60.0
BEGUN = (
    b"",
    b"GET / HT",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    b"POST /api/v1/workspaces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nX-Slow: ",
)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Only the front door with its default timeouts: bodies may take an hour."""
    folder = tmp_path_factory.mktemp("door")
    (folder / PORTAL_SOCKET).parent.mkdir()
    number = consecutive_ports(1)
    (folder / "door.json").write_text(
        proxy.config(
            listen=f"127.0.0.1:{number}",
            places=proxy.Upstreams(web="127.0.0.1:1", gateway="127.0.0.1:1", agents_url="http://127.0.0.1:1"),
            domain="localhost",
            secret="a secret of this test",
            certificates=Authority(folder / "tls").front_door(),
            storage=folder / "caddy",
        )
    )
    argv = [str(find_binaries().caddy), "run", "--config", str(folder / "door.json")]
    with (folder / "log").open("w") as log, subprocess.Popen(argv, cwd=folder, stderr=log) as process:
        try:
            eventually(lambda: alive(number) or None, limit_s=20, what="the front door answers")
            yield number
        finally:
            process.terminate()


def alive(port: int) -> bool:
    with contextlib.suppress(httpx.TransportError):
        headers = {"host": proxy.HEALTH_HOST}
        return httpx.get(f"http://127.0.0.1:{port}/", headers=headers, timeout=20).is_success
    return False


def dribble(port: int, begun: bytes, given_up: threading.Semaphore, stop: threading.Event) -> None:
    """Send a byte at intervals, so that the connection is never idle, until it is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=0.2) as line, contextlib.suppress(OSError):
        line.sendall(begun)
        while not stop.is_set():
            try:
                if not line.recv(4096):
                    break
            except TimeoutError:
                line.sendall(b"x" if begun else b"")
    given_up.release()


def test_slow_heads_time_out_while_others_are_served(port: int) -> None:
    given_up, stop = threading.Semaphore(0), threading.Event()
    threads = [
        threading.Thread(target=dribble, args=(port, begun, given_up, stop))
        for begun in BEGUN
        for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    try:
        assert alive(port)
        for _ in threads:
            assert given_up.acquire(timeout=LIMIT_S), "a slow head is still held"
        assert alive(port)
    finally:
        stop.set()
        for thread in threads:
            thread.join(LIMIT_S)


def test_slow_second_head_times_out(port: int) -> None:
    """A connection after one response is treated alike."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as line:
        line.sendall(f"GET / HTTP/1.1\r\nHost: {proxy.HEALTH_HOST}\r\n\r\n".encode())
        assert line.recv(4096).startswith(b"HTTP/1.1 200")
        line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        with contextlib.suppress(ConnectionError):
            while line.recv(4096):
                pass


def test_head_timeout_is_shorter_than_body_timeout() -> None:
    assert HEADER_TIMEOUT_NS < proxy.READ_TIMEOUT_S * 10**9
