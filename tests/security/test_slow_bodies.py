"""Attacks on the real front door with large and slow bodies, and bodies with two lengths."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from portal.common import front_door
from portal.embedded import programs, proxy
from portal.embedded.preflight import find_binaries
from provisioning.endpoints import PORTAL_SOCKET
from tests.certificates import Authority
from tests.instance import eventually
from tests.ports import consecutive_ports

pytestmark = pytest.mark.engine
LIMIT_S = 20.0
KNOWN = "Cookie: a session"
SECRET = "a secret of this test"
WORKSPACE = f"ws-{'0' * 32}.localhost"


class Web:
    """Replaces web and gateway process: answers each request and records it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.later = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            line, _peer = self._socket.accept()
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with line, line.makefile("rb") as read, contextlib.suppress(OSError, ValueError):
            while first := read.readline().decode():
                head = b"".join(iter(read.readline, b"\r\n")).decode()
                headers = dict(line.lower().split(": ", 1) for line in head.splitlines())
                self.asked.append(first.rsplit(" ", 1)[0])
                size = int(headers.get("content-length", 0))
                while headers.get("transfer-encoding") and (more := int(read.readline(), 16)):
                    size += len(read.read(more + 2)) - 2
                read.read(int(headers.get("content-length", 0)))
                status, body = "200 OK", f"{size}"
                if front_door.LARGE_BODY_PATH in first:
                    status, body = ("204 No Content", "") if "cookie" in headers else ("401 Unauthorized", "")
                elif "/auth" in first:
                    status = "401 Unauthorized"
                if "/later" in first:
                    self.later.wait(LIMIT_S)
                line.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


class Door:
    """The front door before `Web`."""

    def __init__(self, port: int, web: Web) -> None:
        self.port, self.web = port, web

    def line(self, *head: str, body: bytes = b"", host: str = "localhost") -> socket.socket:
        """Return a connection on which this request was sent."""
        line = socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)
        line.sendall("\r\n".join((head[0], f"Host: {host}", *head[1:], "", "")).encode() + body)
        return line


def all_of(line: socket.socket) -> bytes:
    """Return everything received until the other side closes."""
    found = b""
    with line, contextlib.suppress(ConnectionError):
        while more := line.recv(65536):
            found += more
    return found


def statuses(answers: bytes) -> list[int]:
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]


@contextlib.contextmanager
def started(folder: Path, **limits: int) -> Iterator[Door]:
    """Run a separate front door; `limits` replace those of the module."""
    (folder / PORTAL_SOCKET).parent.mkdir(parents=True)
    web, port = Web(), consecutive_ports(1)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(proxy, name, value)
        config = proxy.config(
            listen=f"127.0.0.1:{port}",
            places=proxy.Upstreams(web=web.address, gateway=web.address, agents_url=f"http://{web.address}"),
            domain="localhost",
            secret=SECRET,
            certificates=Authority(folder / "tls").front_door(),
            storage=folder / "caddy",
        )
    (folder / "door.json").write_text(config)
    argv = [str(find_binaries().caddy), "run", "--config", str(folder / "door.json")]
    with (folder / "log").open("w") as log, subprocess.Popen(argv, cwd=folder, stderr=log) as process:
        try:
            url, headers = f"http://127.0.0.1:{port}/", {"host": proxy.HEALTH_HOST}

            def answers() -> bool | None:
                with contextlib.suppress(httpx.TransportError):
                    return httpx.get(url, headers=headers).is_success or None
                return None

            eventually(answers, limit_s=LIMIT_S, what="the front door answers")
            yield Door(port, web)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with started(tmp_path_factory.mktemp("door")) as found:
        yield found


def large(size: int) -> tuple[str, str]:
    return "POST /sign-in/ HTTP/1.1", f"Content-Length: {size}"


def test_large_anonymous_body_is_refused_unread(door: Door) -> None:
    door.web.asked.clear()
    line = door.line(*large(proxy.MAX_BODY_BYTES))
    # No body was sent.
    assert line.recv(65536).startswith(b"HTTP/1.1 401")
    line.close()
    line = door.line("POST /sign-in/ HTTP/1.1", "Transfer-Encoding: chunked")
    assert line.recv(65536).startswith(b"HTTP/1.1 401")
    line.close()
    assert door.web.asked == [f"GET {front_door.LARGE_BODY_PATH}"] * 2


def test_small_anonymous_and_large_authenticated_bodies_arrive(door: Door) -> None:
    url = f"http://127.0.0.1:{door.port}/sign-in/"
    stranger = {"host": "localhost"}
    small = httpx.post(url, content=b"x" * proxy.SMALL_BODY_BYTES, headers=stranger)
    assert (small.status_code, small.text) == (200, str(proxy.SMALL_BODY_BYTES))
    known = {**stranger, "cookie": "a session"}
    for content in (b"x" * proxy.MAX_BODY_BYTES, iter([b"x" * proxy.MAX_BODY_BYTES])):
        whole = httpx.post(url, content=content, headers=known)
        assert (whole.status_code, whole.text) == (200, str(proxy.MAX_BODY_BYTES))


def test_large_saml_response_arrives(door: Door) -> None:
    url = f"http://127.0.0.1:{door.port}/sign-in/saml/site/acs/"
    for size, status in ((proxy.MAX_SAML_BYTES, 200), (proxy.MAX_SAML_BYTES + 1, 413)):
        answered = httpx.post(url, content=b"x" * size, headers={"host": "localhost"})
        assert answered.status_code == status


def test_event_streams_and_internal_paths_accept_small_bodies_only(door: Door) -> None:
    for path, host in (("/events/", "localhost"), ("/.berth/ticket", WORKSPACE)):
        size = proxy.SMALL_BODY_BYTES + 1
        line = door.line(f"POST {path} HTTP/1.1", f"Content-Length: {size}", body=b"x" * size, host=host)
        assert statuses(line.recv(65536)) == [413]
        line.close()


@pytest.mark.parametrize("host", ["localhost", WORKSPACE])
def test_request_with_two_body_lengths_gets_one_response(door: Door, host: str) -> None:
    hidden = b"0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
    both = ("Content-Length: 4", "Transfer-Encoding: chunked", KNOWN)
    for method in ("POST", "GET"):
        door.web.asked.clear()
        answers = all_of(door.line(f"{method} /a HTTP/1.1", *both, body=hidden, host=host))
        assert len(statuses(answers)) == 1
        assert b"connection: close" in answers.lower()
        assert not [each for each in door.web.asked if "hidden" in each]


def test_number_of_buffered_large_bodies_is_limited(tmp_path: Path) -> None:
    with started(tmp_path, MAX_LARGE_BODIES=2) as door, contextlib.ExitStack() as held:

        def late() -> None:
            line = held.enter_context(door.line(*large(100_000), KNOWN, body=b"x" * 99_999))
            held.callback(line.close)

        late()
        late()
        eventually(
            lambda: len([each for each in door.web.asked if "large-body" in each]) == 2 or None,
            limit_s=LIMIT_S,
            what="both are admitted",
        )
        with door.line(*large(100_000), KNOWN, body=b"x" * 100_000) as line:
            head, _, body = line.recv(65536).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503") and b"Retry-After: 5" in head
        detail = "The portal receives too many large requests. Try again in a few seconds."
        assert json.loads(body)["detail"] == detail
        # Small requests are served.
        assert httpx.get(f"http://127.0.0.1:{door.port}/", headers={"host": "localhost"}).is_success


def test_slow_body_times_out_for_any_target(tmp_path: Path) -> None:
    """A completely received request may be answered later."""
    with started(tmp_path, BODY_TIMEOUT_S=1) as door:
        patient = [
            door.line("GET /later HTTP/1.1", "Connection: close"),
            door.line("POST /later HTTP/1.1", "Connection: close", "Content-Length: 4", body=b"user"),
        ]
        lines = [
            door.line(f"POST {path} HTTP/1.1", "Content-Length: 1000", KNOWN, body=b"user", host=host)
            for path, host in (
                ("/sign-in/", "localhost"),
                ("/events/", "localhost"),
                ("/agent/v1/ready", "localhost"),
                ("/", proxy.HEALTH_HOST),
                ("/", WORKSPACE),
                ("/.berth/ticket", WORKSPACE),
            )
        ]
        lines.append(door.line(*large(100_000), KNOWN, body=b"user"))
        for line in lines:
            # Returns when the front door has closed the connection.
            all_of(line)
        door.web.later.set()
        assert [statuses(all_of(line)) for line in patient] == [[200], [200]]


def test_front_door_has_a_memory_limit() -> None:
    assert programs.FRONT_DOOR_MEMORY == {"GOMEMLIMIT": "128MiB"}
    assert proxy.BODY_TIMEOUT_S == 30
