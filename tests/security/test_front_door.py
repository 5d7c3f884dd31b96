"""Attacks from outside and from a workspace on the real front door and internal ports."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from portal.common import front_door
from portal.embedded import gateway_protocol, proxy, web_worker
from tests import instance
from tests.instance import Berth

pytestmark = [
    pytest.mark.engine,
    pytest.mark.thorough(
        "a Berth with settings of its own; `make test` has the gateway and Caddy without it"
    ),
]
LIMIT_S = 60.0
PROXY_SECRET = "the proxy's own secret"
WEB_THREADS = 2


@pytest.fixture(scope="module")
def berth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Berth]:
    """All processes, without notebooks."""
    with instance.running(
        tmp_path_factory.mktemp("front-door"),
        environment=None,
        BERTH_TRUSTED_PROXIES="127.0.0.1",
        BERTH_PROXY_SECRET=PROXY_SECRET,
        BERTH_SIGN_IN_FAILURES="4",
        BERTH_SIGN_IN_FAILURES_PER_NAME="6",
        BERTH_WEB_PROCESSES="1",
        BERTH_WEB_THREADS=str(WEB_THREADS),
    ) as found:
        yield found


class Line:
    """A connection read byte by byte."""

    def __init__(self, port: int, sent: str | bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        try:
            self.send(sent)
        except OSError:
            self.socket.close()
            raise

    def send(self, sent: str | bytes) -> None:
        self.socket.sendall(sent.encode() if isinstance(sent, str) else sent)

    def status(self) -> int:
        """Return the status of the response; 0 if the connection was closed without one."""
        head = b""
        with contextlib.suppress(ConnectionError):
            while b"\r\n" not in head and (more := self.socket.recv(4096)):
                head += more
        return int(head.split()[1]) if head else 0

    def closed(self) -> bool:
        """Wait until the other side has closed. Returns whether it has."""
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(65536):
                pass
        return True

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def raw(port: int, path: str, *headers: str) -> int:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", *headers, "Connection: close", "", ""]
    with Line(port, "\r\n".join(lines)) as line:
        return line.status()


# --- agent paths ----------------------------------------------------------------------------------

SPELLINGS = [
    "/agent/v1/ready",
    "/agent%2fv1/ready",
    "/agent%2Fv1%2Fready",
    "/agent/v1%2fready",
    "//agent/v1/ready",
    "/agent//v1/ready",
    "/./agent/v1/ready",
    "/agent/./v1/ready",
    "/x/../agent/v1/ready",
    "/x/..%2fagent/v1/ready",
    "/x%2f..%2fagent/v1/ready",
    "/%2e/agent/v1/ready",
    "/%2fagent/v1/ready",
    "/.%2fagent/v1/ready",
    "/%61gent/v1/ready",
    "/%61gent%2fv1/ready",
    "/agent%252fv1/ready",
    "/agent;x/v1/ready",
    "/agent;/v1/ready",
    "/agent/;/v1/ready",
    "/agent/v1;x=y/ready",
    "/agent%3bx/v1/ready",
    "/agent%5cv1/ready",
    "/agent\\v1/ready",
    "/AGENT/v1/ready",
    "/agent%00/v1/ready",
    "/agent/v1/ready%00",
    "/gateway%2fx/auth",
    "http://localhost/agent/v1/ready",
    "http://localhost/agent%2fv1/ready",
]


@pytest.mark.parametrize("path", SPELLINGS)
def test_agent_paths_in_any_spelling_are_refused(berth: Berth, path: str) -> None:
    # An agent path would answer 405 to GET and 401 to a POST without token.
    assert raw(berth.port, path) in {400, 404}
    with Line(
        berth.port, f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}"
    ) as line:
        assert line.status() in {400, 404}


def test_agent_endpoint_answers_on_the_internal_port(berth: Berth) -> None:
    assert raw(berth.instance.web_port, "/agent/v1/ready") == 405


def test_pages_and_programs_are_served(berth: Berth) -> None:
    assert raw(berth.port, "/sign-in/?next=%2Fgpus%2F") == 200
    assert raw(berth.port, "/api/v1/workspaces?name=a%2Fb") == 401
    assert raw(berth.port, "/static/berth/berth.css") in {200, 404}
    assert raw(berth.port, "/healthz/live") == 200


# --- addresses ------------------------------------------------------------------------------------


def guess(berth: Berth, port: int, name: str, **headers: str) -> int:
    """Return the status of a sign-in with a wrong password, in a new browser."""
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", headers={"Host": "localhost", **headers}, timeout=LIMIT_S
    ) as browser:
        page = browser.get("/sign-in/")
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert token is not None
        data = {"username": name, "password": "a wrong guess", "csrfmiddlewaretoken": token[1]}
        cookies = "; ".join(f"{key}={value}" for key, value in page.cookies.items())
        return browser.post("/sign-in/", data=data, headers={"Cookie": cookies}).status_code


def seen_address(berth: Berth, name: str) -> set[str]:
    rows = berth.rows("SELECT address FROM events_event WHERE data LIKE ? ", f'%"username": "{name}"%')
    return {row["address"] for row in rows}


@pytest.mark.parametrize("door", ["front door", "web"])
def test_forged_addresses_do_not_avoid_the_lockout(berth: Berth, door: str) -> None:
    name = f"guessed-{door.split()[0]}"
    port = berth.port if door == "front door" else berth.instance.web_port
    statuses = []
    for number in range(10):
        forged = f"198.51.100.{number}"
        statuses.append(
            guess(
                berth,
                port,
                name,
                **{
                    "X-Forwarded-For": f"{forged}, 203.0.113.{number}",
                    "X-Real-Ip": forged,
                    "Forwarded": f"for={forged}",
                    "X_Forwarded_For": forged,
                    front_door.TOKEN_HEADER: "0" * 64,
                    front_door.PROXY_HEADER: "a guess of that secret",
                },
            )
        )
    assert set(statuses[:3]) == {200}
    assert set(statuses[6:]) == {429}, statuses


def test_proxy_in_front_is_trusted_with_its_secret(berth: Berth) -> None:
    berth.run(
        "-c",
        "import django; django.setup(); from portal.people.accounts.models import User; "
        "User.objects.create_user('proxied', password='x')",
        DJANGO_SETTINGS_MODULE="portal.settings",
    )
    named = {"X-Forwarded-For": "203.0.113.77", front_door.PROXY_HEADER: PROXY_SECRET}
    assert guess(berth, berth.port, "proxied", **named) == 200
    assert seen_address(berth, "proxied") == {"203.0.113.77"}
    # The same headers on the internal port are not trusted: the front door has not set them.
    assert guess(berth, berth.instance.web_port, "proxied", **named) == 200
    assert seen_address(berth, "proxied") == {"203.0.113.77", "127.0.0.1"}


# --- slow and large requests ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun",
    [
        "",
        "GET / HT",
        "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        "POST /sign-in/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nuser",
        "POST /sign-in/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nuser",
    ],
    ids=["nothing", "line", "header", "body", "chunk"],
)
def test_slow_clients_are_disconnected(berth: Berth, begun: str) -> None:
    before = time.monotonic()
    with Line(berth.port, begun) as line:
        if begun:
            assert line.closed()
            assert time.monotonic() - before < LIMIT_S
    assert raw(berth.port, "/healthz/live") == 200


@pytest.mark.parametrize("port", ["web", "gateway"])
def test_slow_heads_on_internal_ports_time_out(berth: Berth, port: str) -> None:
    number = berth.instance.web_port if port == "web" else berth.instance.gateway_port
    with contextlib.ExitStack() as held:
        lines = [
            held.enter_context(Line(number, "GET /healthz/live HTTP/1.1\r\nHost: localhost\r\nX: "))
            for _ in range(12)
        ]
        # More than there are threads: each times out, and others are served.
        for line in lines:
            assert line.closed()
        assert raw(number, "/healthz/live") == 200


def test_idle_connections_use_no_thread(berth: Berth) -> None:
    number = 40
    # If they used threads until their timeout, no request would be answered within `LIMIT_S`.
    assert number / WEB_THREADS * web_worker.HEAD_TIMEOUT_S > LIMIT_S
    with contextlib.ExitStack() as held:
        for _ in range(number):
            held.enter_context(Line(berth.instance.web_port))
        assert raw(berth.instance.web_port, "/healthz/live") == 200


@pytest.mark.parametrize(
    "length",
    ["Content-Length: 100\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n64\r\n"],
    ids=["length", "chunk"],
)
def test_slow_bodies_through_the_front_door_use_no_thread(berth: Berth, length: str) -> None:
    slow = f"POST /sign-in/ HTTP/1.1\r\nHost: localhost\r\n{length}user"
    with contextlib.ExitStack() as held:
        for _ in range(20):
            held.enter_context(Line(berth.port, slow))
        assert raw(berth.port, "/healthz/live") == 200


def test_chunked_body_is_accepted(berth: Berth) -> None:
    headers = {"Authorization": f"Bearer {berth.tokens['ada']}", "Content-Type": "application/json"}
    parts = [b'{"template": "files", "flavor": "tiny", ', b'"team": "lab", "name": "in-chunks"}']
    url = f"{berth.url}/api/v1/workspaces"
    made = httpx.post(url, content=iter(parts), headers=headers, timeout=LIMIT_S)
    assert (made.status_code, made.json().get("name")) == (201, "in-chunks")
    api = berth.api("ada")
    api.act(made.json()["id"], "delete")
    api.wait(made.json()["id"], "terminated", limit_s=30)
    api.close()
    large = httpx.post(url, content=iter([b"[" * 3_000_000]), headers=headers, timeout=LIMIT_S)
    assert large.status_code == 413


def test_oversized_heads_and_bodies_are_refused(berth: Berth) -> None:
    assert raw(berth.port, "/", "X-Large: " + "x" * 200_000) == 431
    large = httpx.post(f"{berth.url}/api/v1/workspaces", content=b"[" * 6_000_000, timeout=LIMIT_S)
    assert large.status_code == 413
    port = berth.instance.gateway_port
    with Line(port, "GET / HTTP/1.1\r\nHost: localhost\r\n") as line, contextlib.suppress(ConnectionError):
        for _ in range(gateway_protocol.MAX_HEAD_BYTES // 1024 + 64):
            line.send("X-Large: " + "x" * 1024 + "\r\n")
        assert line.closed()
    assert raw(berth.instance.web_port, "/", "X-Large: " + "x" * 200_000) in {400, 431, 0}


def test_event_stream_is_exempt_from_the_request_timeout(berth: Berth) -> None:
    api = berth.api("ada")
    body = {"template": "files", "flavor": "tiny", "team": "lab", "name": "streamed"}
    workspace = api.json("POST", "workspaces", body)["id"]
    heard_until = time.monotonic() + proxy.BODY_TIMEOUT_S + 2
    headers = {"Authorization": f"Bearer {berth.tokens['ada']}", "Accept": "text/event-stream"}
    path = f"/api/v1/workspaces/{workspace}/events/stream"
    with httpx.stream("GET", berth.url + path, headers=headers, timeout=LIMIT_S) as answered:
        assert answered.status_code == 200
        for _line in answered.iter_lines():
            if time.monotonic() > heard_until:
                break
        else:
            pytest.fail("the stream was cut")
    api.act(workspace, "delete")
    api.wait(workspace, "terminated", limit_s=30)
    api.close()
