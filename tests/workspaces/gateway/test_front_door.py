"""Guarantees of the front door: headers, paths, bodies, routing and pages."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import httpx
import pytest
from gateway_support import (
    SECRET,
    WS_A,
    Stack,
    started,
)

from portal.common import front_door
from portal.embedded import outage, proxy
from portal.workspaces.gateway import workspace_views
from provisioning.endpoints import SOCKET_HEADER
from tests.certificates import Authority

pytestmark = pytest.mark.engine
TOKEN = front_door.token_of(SECRET)


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
