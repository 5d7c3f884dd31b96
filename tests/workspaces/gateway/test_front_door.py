"""Guarantees of the front door: headers, paths, bodies, routing and pages."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_support import (
    PAGE,
    SECRET,
    WS_A,
    Stack,
    echo,
    eventually,
    free_port,
    run_caddy,
    started,
)

from portal.common import front_door
from portal.embedded import outage, proxy
from portal.workspaces.gateway import workspace_views
from provisioning.endpoints import SOCKET_HEADER
from provisioning.node_gateway import Certificates, caddy_config, node_name
from tests.certificates import Authority

pytestmark = pytest.mark.engine
TOKEN = front_door.token_of(SECRET)
ID = "11111111-2222-3333-4444-555555555555"
LARGE_BYTES = 5 * 10**9


@pytest.fixture
def door(stack: Stack) -> Stack:
    """An empty store and one running workspace."""
    stack.redis.flushall()
    stack.portal.views = {WS_A: stack.view()}
    stack.portal.tokens = {"good": "7"}
    stack.portal.broken = False
    return stack


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A front door behind a trusted HTTPS proxy, with test certificates."""
    folder = tmp_path_factory.mktemp("behind")
    authority = Authority(folder / "authority")
    with started(
        folder, https=True, trusted_proxies=["127.0.0.1"], certificates=authority.front_door()
    ) as found:
        found.portal.views = {WS_A: found.view()}
        found.portal.tokens = {"good": "7"}
        found.authority = authority
        yield found


def raw(stack: Stack, *lines: str) -> bytes:
    """Send a raw request on a new connection. Returns the whole response."""
    with socket.create_connection(("127.0.0.1", stack.proxy_port), timeout=20) as line:
        line.sendall("\r\n".join((*lines, "Connection: close", "", "")).encode())
        found = b""
        while more := line.recv(65536):
            found += more
    return found


def portal_headers(stack: Stack, **headers: str) -> dict[str, str]:
    """Return the headers that reach the portal."""
    url = f"http://127.0.0.1:{stack.proxy_port}/told"
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    answer = httpx.get(url, headers={"host": "localhost", **sent})
    assert answer.status_code == 200
    return dict(answer.json()["headers"])


def app_headers(stack: Stack, **headers: str) -> dict[str, str]:
    answer = stack.get("/x", authorization="Bearer good", **headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["headers"])


# --- headers --------------------------------------------------------------------------------------


def test_only_the_front_door_sets_user_headers(door: Stack) -> None:
    found = portal_headers(
        door,
        x_berth_front_door="0" * 64,
        x_berth_socket="ws-1.1",
        x_forwarded_for="203.0.113.9",
        x_forwarded_host="evil.example",
        x_forwarded_proto="https",
        x_forwarded_prefix="/x",
        x_real_ip="203.0.113.9",
        forwarded="for=203.0.113.9",
    )
    # The gateway process removes its token; this stack has none.
    assert found["x-forwarded-for"] == "127.0.0.1"
    assert (found["x-forwarded-host"], found["x-forwarded-proto"]) == ("localhost", "http")
    for name in ("x-forwarded-prefix", "x-real-ip", "forwarded", SOCKET_HEADER.lower()):
        assert name not in found
    assert found[front_door.TOKEN_HEADER.lower()] == TOKEN


@pytest.mark.parametrize("listed", [front_door.TOKEN_HEADER, "x-berth-front-door, close", "X-Forwarded-For"])
def test_client_cannot_remove_front_door_headers_as_hop_by_hop(door: Stack, listed: str) -> None:
    """Otherwise a request would appear internal, like those of agents."""
    found = portal_headers(door, connection=listed)
    assert found[front_door.TOKEN_HEADER.lower()] == TOKEN
    assert found["x-forwarded-for"] == "127.0.0.1"


@pytest.mark.parametrize(
    "name", ["X_Forwarded_For", "X-Forwarded_For", "x_forwarded-for", "X.Forwarded.For", "X_Berth_Front_Door"]
)
def test_other_spellings_of_a_header_are_dropped(door: Stack, name: str) -> None:
    for host, path in (("localhost", "/told"), (door.host(), "/x")):
        answer = raw(
            door,
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            "Authorization: Bearer good",
            f"{name}: 203.0.113.9",
        )
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"203.0.113.9" not in answer


def test_app_gets_no_headers_or_cookies_of_berth(door: Stack) -> None:
    found = app_headers(
        door, x_berth_front_door="x", x_berth_proxy_secret="y", x_berth_socket="z", x_berth_http="1.1.1.1:1"
    )
    assert not [name for name in found if name.startswith("x-berth-")]
    assert found["x-forwarded-for"] == "127.0.0.1"
    assert found["x-forwarded-proto"] == "http"


def test_upstream_address_comes_from_forward_auth_only(door: Stack) -> None:
    """A client cannot name another upstream, also for a workspace without one."""
    workspace_views.store_view(door.redis, door.view(endpoint="", revision=2))
    elsewhere = {
        "x_berth_socket": f"{WS_A}.1",
        "x_berth_gateway": f"127.0.0.1:{door.upstream_port}",
        "x_berth_node": "gpu-07",
        "x_berth_http": f"127.0.0.1:{door.upstream_port}",
    }
    answer = door.get("/x", authorization="Bearer good", **elsewhere)
    assert answer.status_code == 503
    assert "x-upstream" not in answer.headers


def test_trusted_proxy_sets_the_client_address(behind: Stack) -> None:
    named = {"x_forwarded_for": "203.0.113.7", "x_forwarded_proto": "https", "x_berth_proxy_secret": "p"}
    found = portal_headers(behind, **named)
    assert found["x-forwarded-for"] == "203.0.113.7, 127.0.0.1"
    assert found["x-forwarded-proto"] == "https"
    assert found[front_door.PROXY_HEADER.lower()] == "p"
    found = app_headers(behind, **named)
    assert found["x-forwarded-for"] == "203.0.113.7, 127.0.0.1"
    assert front_door.PROXY_HEADER.lower() not in found


def test_trusted_proxy_does_not_choose_the_workspace(behind: Stack) -> None:
    """A proxy may forward the client's host header; forward-auth gets the requested host."""
    other = "ws-" + "0" * 32
    answer = behind.get("/x", name=other, authorization="Bearer good", x_forwarded_host=behind.host())
    assert answer.status_code == 403


def test_https_responses_have_one_hsts_header(behind: Stack) -> None:
    url = f"http://127.0.0.1:{behind.proxy_port}"
    answers = [
        behind.get("/x", authorization="Bearer good"),
        behind.get("/x"),
        behind.get("/.berth/page.css"),
        httpx.get(f"{url}/", headers={"host": "localhost"}),
        httpx.get(f"{url}/agent/v1/ready", headers={"host": "localhost"}),
        httpx.get(f"{url}/", headers={"host": proxy.HEALTH_HOST}),
    ]
    for answer in answers:
        expected = ["max-age=31536000; includeSubDomains"]
        assert answer.headers.get_list("strict-transport-security") == expected, answer.url


def test_responses_do_not_name_the_server(door: Stack) -> None:
    url = f"http://127.0.0.1:{door.proxy_port}"
    refused = httpx.get(f"{url}/agent/v1/ready", headers={"host": "localhost"})
    page = httpx.get(f"{url}/", headers={"host": "localhost"})
    app = door.get("/x", authorization="Bearer good")
    assert "server" not in refused.headers
    assert "app" in app.headers["server"]
    for answer in (refused, page, app, door.get("/x")):
        assert "caddy" not in str(answer.headers).lower()


# --- paths ----------------------------------------------------------------------------------------

PATHS = (
    "/files/a%2Fb%20c.ipynb?x=%2F&y=a+b",
    "/a//b///c",
    "/a/%2e%2e/b",
    "/a/./b/../c",
    "/%E2%82%AC/%e2%82%ac",
    "/a%3Fb%23c%25d%5Ce%3bf;g=h",
    "/api/contents/a%252Fb",
    "/lab?next=%2Flab%2Ftree",
    "/a?",
    "/%7Btoken%7D?q={x}",
    "/agent/v1/ready",
    "/gateway/x/auth",
    "/x%00y",
)


@pytest.mark.parametrize("path", PATHS)
def test_app_gets_the_path_unchanged(door: Stack, path: str) -> None:
    answer = raw(door, f"GET {path} HTTP/1.1", f"Host: {door.host()}", "Authorization: Bearer good")
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["path"].removesuffix("?") == path.removesuffix("?")


@pytest.mark.parametrize(
    "path",
    [
        "/agent/v1/ready", "/AGENT/x", "//agent/v1/ready", "/gateway/x/auth", "/%61gent/v1/ready", "/agent",
        "/a%2fb", "/a%5Cb", "/a;b", "/a%3bb", "/a//b", "/a/../b", "/a/%2e%2e/b", "/a%00", "/a%25b",
        "/a\"%2f..%2fagent/v1/ready",
    ],
)  # fmt: skip
def test_ambiguous_paths_do_not_reach_the_portal(door: Stack, path: str) -> None:
    answer = raw(door, f"GET {path} HTTP/1.1", "Host: localhost")
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400")), answer
    assert b"x-portal" not in answer.lower()


def test_odd_characters_in_a_query_are_accepted(door: Stack) -> None:
    answer = raw(door, "GET /told?next=%2Fa%2F..%2Fb;c//d HTTP/1.1", "Host: localhost")
    assert answer.startswith(b"HTTP/1.1 200")


# --- bodies and streams ---------------------------------------------------------------------------


def test_portal_gets_complete_bodies_within_the_limit(door: Stack) -> None:
    url = f"http://127.0.0.1:{door.proxy_port}/told"
    host = {"host": "localhost", "authorization": "Bearer good"}
    for size in (0, 1, proxy.SMALL_BODY_BYTES, proxy.SMALL_BODY_BYTES + 1, proxy.MAX_BODY_BYTES):
        answer = httpx.post(url, content=b"x" * size, headers=host)
        assert answer.json()["body"] == size
        chunked = httpx.post(url, content=iter([b"x" * size]), headers=host)
        assert chunked.json()["body"] == size
    for content in (b"x" * (proxy.MAX_BODY_BYTES + 1), iter([b"x" * (proxy.MAX_BODY_BYTES + 1)])):
        answer = httpx.post(url, content=content, headers=host)
        assert answer.status_code == 413
        assert answer.json()["code"] == "too_large"


def test_upload_to_a_workspace_is_streamed_without_limit(door: Stack) -> None:
    got = threading.Semaphore(0)
    sizes: list[int] = []

    async def takes(scope: Any, receive: Any, send: Any) -> None:
        size = 0
        while True:
            message = await receive()
            size += len(message["body"])
            got.release()
            if not message.get("more_body"):
                break
        sizes.append(size)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"taken"})

    def parts() -> Iterator[bytes]:
        yield b"x" * 65536
        # The first part arrives before the rest is sent.
        assert got.acquire(timeout=20)
        yield from (b"x" * (1 << 20) for _ in range(16))

    with door.app(takes) as name:
        workspace_views.store_view(door.redis, door.view(socket=name, endpoint="", revision=2))
        url = f"http://127.0.0.1:{door.proxy_port}/upload"
        headers = {"host": door.host(), "authorization": "Bearer good"}
        answer = httpx.post(url, content=parts(), headers=headers, timeout=60)
    assert answer.text == "taken"
    assert sizes == [65536 + (16 << 20)]


@pytest.mark.thorough("5 GB; `make test` has a small upload")
def test_an_upload_of_five_gigabytes_passes(door: Stack, tmp_path: Path) -> None:
    """Streamed to a counter; the file is sparse."""
    file = tmp_path / "large"
    with file.open("wb") as made:
        made.truncate(LARGE_BYTES)
    sizes: list[int] = []

    def count(listener: socket.socket) -> None:
        line, _ = listener.accept()
        with line:
            head = b""
            while b"\r\n\r\n" not in head:
                head += line.recv(65536)
            size = len(head.partition(b"\r\n\r\n")[2])
            room = memoryview(bytearray(1 << 20))
            while size < LARGE_BYTES and (got := line.recv_into(room)):
                size += got
            sizes.append(size)
            line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ntaken")

    home = door.folder / WS_A
    home.mkdir(exist_ok=True)
    place = home / "app.9.sock"
    with contextlib.chdir(home), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place.name)
        listener.listen()
        threading.Thread(target=count, args=(listener,), daemon=True).start()
        workspace_views.store_view(door.redis, door.view(socket=f"{WS_A}.9", endpoint="", revision=2))
        headers = {"host": door.host(), "authorization": "Bearer good"}
        with file.open("rb") as sent:
            url = f"http://127.0.0.1:{door.proxy_port}/upload"
            answer = httpx.put(
                url, content=iter(lambda: sent.read(1 << 20), b""), timeout=300,
                headers={**headers, "content-length": str(LARGE_BYTES)},
            )  # fmt: skip
    place.unlink()
    assert answer.text == "taken" and sizes == [LARGE_BYTES]


@pytest.mark.parametrize("kind", [b"text/plain", b"text/event-stream"])
def test_app_output_is_not_buffered(door: Stack, kind: bytes) -> None:
    heard = threading.Event()

    async def tells(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        while not heard.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"last"})

    with door.app(tells) as name:
        workspace_views.store_view(door.redis, door.view(socket=name, endpoint="", revision=2))
        headers = {"host": door.host(), "authorization": "Bearer good", "accept-encoding": "gzip"}
        url = f"http://127.0.0.1:{door.proxy_port}/"
        try:
            with httpx.stream("GET", url, headers=headers, timeout=20) as answer:
                parts = answer.iter_raw()
                assert next(parts) == b"first"
                heard.set()
                assert b"".join(parts) == b"last"
        finally:
            heard.set()


def test_portal_streams_are_unbuffered_and_pages_compressed(door: Stack) -> None:
    url = f"http://127.0.0.1:{door.proxy_port}"
    headers = {"host": "localhost", "accept-encoding": "gzip"}
    page = httpx.get(f"{url}/", headers=headers)
    assert (page.headers["content-encoding"], page.content) == ("gzip", PAGE)
    assert "content-encoding" not in httpx.get(f"{url}/", headers={**headers, "accept-encoding": ""}).headers
    for path in (f"/workspaces/{ID}/events/", "/events/"):
        with httpx.stream("GET", f"{url}{path}", headers=headers, timeout=20) as answer:
            assert "content-encoding" not in answer.headers
            assert next(answer.iter_raw()) == b"data: first\n\n"


def test_a_request_is_never_repeated(door: Stack) -> None:
    """An app that dies of a request gets it once."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def dies() -> None:
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                with line:
                    asked.append(line.recv(65536).split(b"\r\n")[0])

        thread = threading.Thread(target=dies, daemon=True)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        workspace_views.store_view(door.redis, door.view(endpoint=endpoint, revision=2))
        for method in ("POST", "DELETE", "GET"):
            answer = door.get("/run", method=method, authorization="Bearer good", origin=door.origin())
            assert answer.status_code == 502
            assert answer.json()["code"] == "workspace_unavailable"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    assert asked == [b"POST /run HTTP/1.1", b"DELETE /run HTTP/1.1", b"GET /run HTTP/1.1"]


# --- routing --------------------------------------------------------------------------------------


def test_next_start_of_a_workspace_is_reachable_at_once(door: Stack) -> None:
    """Kept connections to the previous start are dead and not reused."""
    for generation in (1, 2, 3):
        with door.app(echo, generation) as name:
            workspace_views.store_view(door.redis, door.view(socket=name, endpoint="", revision=generation))
            for method in ("GET", "POST", "GET"):
                answer = door.get("/x", method=method, authorization="Bearer good", origin=door.origin())
                assert answer.status_code == 200, (generation, method)
        # It has ended, and nothing answers in its place.
        answer = door.get("/x", authorization="Bearer good")
        assert answer.status_code == 502


def test_socket_with_another_name_is_refused(door: Stack) -> None:
    """A view that the portal would not write is rejected."""
    found = json.loads(workspace_views.encode(door.view(endpoint="", socket=f"{WS_A}.1")))
    for name in ("../../run/x.1", "ws-1.1", f"{WS_A}.1/../x", "{env.HOME}"):
        door.redis.set(workspace_views.key(WS_A), json.dumps({**found, "socket": name}))
        door.portal.views = {}
        assert door.get("/x", authorization="Bearer good").status_code == 403


@contextlib.contextmanager
def node(stack: Stack, name: str, certificates: Certificates, authority: Authority) -> Iterator[int]:
    """Run the gateway of another machine, a separate Caddy. Returns its port."""
    folder = stack.folder / name
    (folder / ".gateway").mkdir(parents=True, exist_ok=True)
    port = free_port()
    (folder / "node.json").write_text(
        caddy_config(
            listen=f"127.0.0.1:{port}",
            certificates=certificates,
            portal_url=stack.endpoint,
            storage=folder / "caddy",
        )
    )
    with run_caddy(folder, "node"):

        def listens() -> bool | None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
                return True
            return None

        eventually(listens)
        yield port


def test_a_host_without_its_gateway_process_is_not_alive(door: Stack) -> None:
    def answer(port: int) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{port}/healthz/live", headers={"host": "localhost"})

    assert answer(door.proxy_port).status_code == 200
    folder = door.folder / "gateway-gone"
    (folder / ".gateway").mkdir(parents=True)
    port, gone = free_port(), free_port()
    (folder / "front-door.json").write_text(
        proxy.config(
            listen=f"127.0.0.1:{port}",
            places=proxy.Upstreams(f"127.0.0.1:{door.web_port}", f"127.0.0.1:{gone}", door.endpoint),
            domain="localhost",
            secret=SECRET,
            certificates=Authority(folder / "authority").front_door(),
            storage=folder / "caddy",
        )
    )
    with run_caddy(folder):

        def page() -> bool | None:
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"http://127.0.0.1:{port}/").headers.get("x-portal") == "1" or None
            return None

        eventually(page)
        assert answer(port).status_code == 502


def test_workspace_of_another_node_is_reached_through_its_gateway(behind: Stack) -> None:
    authority: Authority = behind.authority
    with (
        node(behind, "gpu-07", authority.node("gpu-07"), authority) as port,
        behind.app(echo, 3, below="gpu-07") as name,
    ):
        place = {"socket": name, "endpoint": "", "gateway": f"127.0.0.1:{port}", "node": "gpu-07"}
        workspace_views.store_view(behind.redis, behind.view(**place, revision=2))
        for method in ("GET", "POST"):
            answer = behind.get(
                "/files/a%2Fb",
                method=method,
                authorization="Bearer good",
                origin=behind.origin(),
                x_forwarded_for="203.0.113.7",
            )
            assert answer.status_code == 200, answer.text
        found = dict(answer.json()["headers"])
        assert answer.json()["path"] == "/files/a%2Fb"
        assert found["authorization"] == "token upstream-secret"
        assert found["x-forwarded-for"].startswith("203.0.113.7, 127.0.0.1")
        assert found["host"] == behind.host()
        assert not [key for key in found if key.startswith("x-berth-")]


def test_unreachable_app_of_another_node_has_a_page_and_a_problem(behind: Stack) -> None:
    """The answer is that of an app on this machine, not the empty one of the node gateway."""
    with node(behind, "gpu-07", behind.authority.node("gpu-07"), behind.authority) as port:
        place = {"endpoint": "", "gateway": f"127.0.0.1:{port}", "node": "gpu-07"}
        workspace_views.store_view(behind.redis, behind.view(**place, socket=f"{WS_A}.99", revision=2))
        page = behind.get("/lab", authorization="Bearer good", accept="text/html,*/*")
        problem = behind.get("/api", authorization="Bearer good")
        with behind.app(echo, 4, below="gpu-07") as name:
            workspace_views.store_view(behind.redis, behind.view(**place, socket=name, revision=3))
            own = behind.get("/refuses/502", authorization="Bearer good")
    assert (page.status_code, "This workspace does not answer" in page.text) == (502, True)
    assert (problem.status_code, problem.json()["code"]) == (502, "workspace_unavailable")
    assert problem.json()["message"].startswith("The workspace does not answer. ")
    assert (own.status_code, own.text) == (502, "the app's own words")


@pytest.mark.parametrize("shown", ["another node", "the front door", "another authority"])
def test_gateway_with_the_certificate_of_another_node_is_refused(
    behind: Stack, tmp_path: Path, shown: str
) -> None:
    """Another process listens at the gateway of a node, with a valid certificate of Berth."""
    authority: Authority = behind.authority
    pairs = {
        "another node": authority.node("gpu-08"),
        "the front door": authority.front_door(),
        "another authority": Authority(tmp_path / "other").node("gpu-07"),
    }
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(str(pairs[shown].certificate), str(pairs[shown].key))
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def impostor() -> None:
            line, _ = server.accept()
            with contextlib.suppress(OSError), context.wrap_socket(line, server_side=True) as tls:
                heard.append(tls.recv(65536))

        thread = threading.Thread(target=impostor, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        place = {"socket": f"{WS_A}.3", "endpoint": "", "gateway": f"127.0.0.1:{port}", "node": "gpu-07"}
        behind.redis.flushall()
        workspace_views.store_view(behind.redis, behind.view(**place, revision=2))
        answer = behind.get("/secret", authorization="Bearer good")
        thread.join(20)
    assert answer.status_code == 502
    assert b"".join(heard) == b""


def ask_node(port: int, server: str, shown: Certificates, name: str) -> int:
    """Return the status of a request to a node gateway; 0 if TLS refuses."""
    context = ssl.create_default_context(cafile=str(shown.authority))
    context.load_cert_chain(str(shown.certificate), str(shown.key))
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection = http.client.HTTPConnection("ws.localhost", timeout=20)
    try:
        connection.sock = context.wrap_socket(plain, server_hostname=node_name(server))
        connection.request("GET", "/", headers={"Host": "ws.localhost", SOCKET_HEADER: name})
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def test_node_gateway_accepts_only_the_front_door_certificate(behind: Stack, tmp_path: Path) -> None:
    """Every node has a valid certificate of the authority, and one may be stolen."""
    authority: Authority = behind.authority
    with (
        node(behind, "gpu-07", authority.node("gpu-07"), authority) as port,
        behind.app(echo, 4, below="gpu-07") as name,
    ):

        def status(shown: Certificates) -> int:
            return ask_node(port, "gpu-07", shown, name)

        assert status(authority.front_door()) == 200
        for refused in (
            authority.node("gpu-08"),
            authority.node("gpu-07"),
            # A node that chose its own name, regardless of the authority.
            authority.issue("node:x", "front-door.berth.internal"),
            authority.issue("front-door.berth.internal", "x.node.berth.internal"),
            authority.issue(
                "node:front-door.berth.internal", "front-door.berth.internal.node.berth.internal"
            ),
        ):
            assert status(refused) == 403
        other = Authority(tmp_path / "other").front_door()
        assert status(Certificates(authority.path, other.certificate, other.key)) == 0


# --- pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 502, 503, 504])
def test_app_response_is_passed_unchanged(door: Stack, status: int) -> None:
    answer = door.get(f"/refuses/{status}", authorization="Bearer good", accept="text/html")
    assert (answer.status_code, answer.text) == (status, "the app's own words")


def test_unreachable_app_has_a_page_and_a_problem(door: Stack) -> None:
    workspace_views.store_view(door.redis, door.view(endpoint="", socket=f"{WS_A}.99", revision=2))
    page = door.get("/lab", authorization="Bearer good", accept="text/html,*/*")
    assert page.status_code == 502
    assert "This workspace does not answer" in page.text
    assert page.headers["content-type"].startswith("text/html")
    problem = door.get("/api", authorization="Bearer good")
    assert (problem.status_code, problem.json()["code"]) == (502, "workspace_unavailable")
    assert problem.json()["message"].startswith("The workspace does not answer. ")
    assert problem.headers["retry-after"] == str(outage.RETRY_S)


def test_portal_page_can_test_whether_workspaces_are_reachable(door: Stack) -> None:
    """No path of it reaches a server behind the front door."""
    url = f"http://127.0.0.1:{door.proxy_port}"
    for host in ("probe.localhost", f"probe.localhost:{door.proxy_port}"):
        answer = httpx.get(f"{url}/gateway/x", headers={"host": host, "origin": "http://localhost:9000"})
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == "*"


def test_front_door_answers_its_own_health_check(door: Stack) -> None:
    url = f"http://127.0.0.1:{door.proxy_port}/"
    assert httpx.get(url, headers={"host": proxy.HEALTH_HOST}).text == "ok\n"
