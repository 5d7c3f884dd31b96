"""The gateway behind the real front door: responses for browsers and programs, and what the app gets."""

from __future__ import annotations

import asyncio
import json
import threading

import httpx
import pytest
from gateway_support import SECRET, WS_A, WS_B, Stack, eventually, view
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from portal.cli.loopback import Connection
from portal.workspaces.gateway import tickets, workspace_views

pytestmark = pytest.mark.engine


@pytest.fixture
def routed(stack: Stack) -> Stack:
    """An empty store and two running workspaces, the second of another user."""
    stack.redis.flushall()
    stack.portal.views = {WS_A: stack.view(), WS_B: stack.view(WS_B, user_ids=frozenset({"8"}))}
    stack.portal.tokens = {"good": "7", "other": "8"}
    stack.portal.broken = False
    arrived(stack)
    return stack


def arrived(stack: Stack, name: str = WS_A) -> httpx.Response:
    def attempt() -> httpx.Response | None:
        answer = stack.get("/", name=name, authorization="Bearer good")
        return answer if answer.headers.get("x-upstream") else None

    return eventually(attempt)


def enter(stack: Stack, name: str = WS_A, user: str = "7", following: str = "/lab") -> str:
    """Return a cookie for a ticket."""
    ticket = tickets.issue(stack.redis, external_name=name, user_id=user)
    answer = stack.get(f"/.berth/enter?ticket={ticket}&next={following}", name=name)
    assert answer.status_code == 303
    assert answer.headers["location"] == following
    return answer.headers["set-cookie"].partition(";")[0]


def seen(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["headers"])


def test_browser_enters_with_a_ticket_and_app_gets_only_its_secret(routed: Stack) -> None:
    cookie = enter(routed)
    answer = routed.get(
        "/lab?x=1",
        cookie=f"_xsrf=abc; {cookie}; theme=dark",
        authorization="token from-the-page",
        x_forwarded_user="root",
        x_forwarded_host="evil.example",
    )
    headers = seen(answer)
    assert headers["authorization"] == "token upstream-secret"
    assert headers["cookie"] == "_xsrf=abc; theme=dark"
    assert headers["host"] == routed.host()
    assert headers["x-forwarded-host"] == routed.host()


def test_bearer_token_never_reaches_the_app(routed: Stack) -> None:
    routed.portal.views[WS_A] = routed.view(upstream_headers={"Cookie": "app=1"}, revision=2)
    workspace_views.drop(routed.redis, WS_A)
    headers = seen(routed.get("/api", authorization="Bearer good"))
    assert "authorization" not in headers
    assert headers["cookie"] == "app=1"


def test_without_cookie_browsers_are_redirected_and_programs_get_401(routed: Stack) -> None:
    page = routed.get("/lab?a=b", accept="text/html")
    assert page.status_code == 302
    assert page.headers["location"] == (
        f"{routed.public_url}/workspaces/11111111-2222-3333-4444-555555555555/open/?next=/lab%3Fa%3Db"
    )
    answer = routed.get("/api")
    assert answer.status_code == 401
    assert answer.json()["code"] == "not_signed_in"
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_spoofed_forwarding_headers_are_ignored(routed: Stack) -> None:
    cookie = enter(routed)
    spoof = {
        "x_forwarded_host": routed.host(WS_A),
        "x_forwarded_uri": "/",
        "x_forwarded_method": "GET",
        "x_forwarded_proto": "https",
        "connection": "X-Forwarded-Host, Cookie",
    }
    eventually(lambda: routed.get(name=WS_B, authorization="Bearer other").headers.get("x-upstream"))
    answer = routed.get("/", name=WS_B, cookie=cookie, **spoof)
    assert answer.status_code == 401
    assert routed.get("/", name=WS_B, authorization="Bearer good", **spoof).status_code == 403


@pytest.mark.parametrize("host", ["{name}.LOCALHOST:{port}", "{name}.localhost.:{port}", "{name}.localhost"])
def test_every_spelling_of_the_host_requires_a_session(routed: Stack, host: str) -> None:
    spelled = host.format(name=WS_A.upper(), port=routed.proxy_port)
    answer = httpx.get(f"http://127.0.0.1:{routed.proxy_port}/api", headers={"host": spelled})
    assert answer.status_code == 401
    answer = httpx.get(
        f"http://127.0.0.1:{routed.proxy_port}/api",
        headers={"host": spelled, "authorization": "Bearer good"},
    )
    assert answer.status_code == 200


def test_every_method_passes_with_its_body_except_head(routed: Stack) -> None:
    cookie = enter(routed)
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = routed.get("/api", method=method, cookie=cookie, origin=routed.origin())
        assert answer.json()["method"] == method
    assert routed.get("/api", method="HEAD", cookie=cookie).status_code == 200
    assert routed.get("/api", method="HEAD").status_code == 401
    assert routed.get("/api", method="OPTIONS", origin=routed.origin(WS_B)).status_code == 401


def test_service_worker_is_registered_only_if_the_template_allows_it(routed: Stack) -> None:
    """It would see every request of later starts of the workspace, with their responses."""
    cookie = enter(routed)
    asked = {"cookie": cookie, "service_worker": "script", "sec_fetch_dest": "serviceworker"}
    answer = routed.get("/files/evil.js", **asked)
    assert (answer.status_code, answer.json()["code"]) == (403, "service_worker_refused")
    assert routed.get("/files/evil.js", cookie=cookie).status_code == 200
    workspace_views.store_view(routed.redis, routed.view(service_workers=True, revision=1))
    assert routed.get("/sw.js", **asked).status_code == 200


async def test_websockets_pass_with_own_or_no_origin_but_not_another(routed: Stack) -> None:
    cookie = await asyncio.to_thread(enter, routed)
    uri = f"ws://{routed.host()}/api/kernels/1/channels"
    place = {"host": "127.0.0.1", "port": routed.proxy_port}
    for origin in (routed.origin(), None):
        async with connect(uri, origin=origin, additional_headers={"Cookie": cookie}, **place) as socket:
            headers = dict(json.loads(await socket.recv()))
            assert headers["authorization"] == "token upstream-secret"
            assert "cookie" not in headers
            await socket.send("hello")
            assert await socket.recv() == "hello"
    refused = {routed.origin(WS_B): 403, "null": 403, routed.public_url: 403}
    for origin, status in refused.items():
        with pytest.raises(InvalidStatus) as caught:
            async with connect(uri, origin=origin, additional_headers={"Cookie": cookie}, **place):
                pass
        assert caught.value.response.status_code == status
    with pytest.raises(InvalidStatus) as caught:
        async with connect(uri, origin=routed.origin(), **place):
            pass
    assert caught.value.response.status_code == 401


async def test_a_websocket_to_a_stopped_workspace_is_refused(routed: Stack) -> None:
    workspace_views.store_view(routed.redis, routed.view(state="stopped", revision=3))
    for headers, status in (({"Authorization": "Bearer good"}, 503), ({}, 401)):
        with pytest.raises(InvalidStatus) as caught:
            async with connect(
                f"ws://{routed.host()}/x",
                host="127.0.0.1",
                port=routed.proxy_port,
                additional_headers=headers,
            ):
                pass
        assert caught.value.response.status_code == status


async def test_programs_connect_with_the_client(routed: Stack) -> None:
    with Connection(routed.origin(), "good") as connection:
        answer = await asyncio.to_thread(connection.http.get, "/api/kernels")
        assert seen(answer)["host"] == routed.host()
        target = connection.websocket("/api/kernels/1/channels")
        async with connect(
            target.uri, host=target.host, port=target.port, additional_headers=target.headers
        ) as socket:
            assert dict(json.loads(await socket.recv()))["authorization"] == "token upstream-secret"
            await socket.send("1+1")
            assert await socket.recv() == "1+1"


def test_revoking_ends_a_session_at_once(routed: Stack) -> None:
    for revoke in (
        lambda: tickets.revoke_workspace(routed.redis, WS_A),
        lambda: tickets.revoke_user(routed.redis, "7"),
    ):
        cookie = enter(routed)
        assert routed.get("/", cookie=cookie).status_code == 200
        assert revoke() == 1
        assert routed.get("/", cookie=cookie).status_code == 401


def test_internal_paths_of_a_workspace_never_reach_the_app(routed: Stack) -> None:
    for path in ("/.berth/page.css", "/.berth/enter", "/.berth/else", "/.berth/%2e%2e/.berth/else"):
        answer = routed.get(path, authorization="Bearer good")
        assert "x-upstream" not in answer.headers, path


def test_forward_auth_address_requires_the_secret(routed: Stack) -> None:
    for secret in ("", "x", SECRET[:-1], SECRET + "0"):
        answer = httpx.get(
            f"http://127.0.0.1:{routed.proxy_port}/gateway/{secret}/auth",
            headers={"authorization": "Bearer good", "x-forwarded-host": routed.host()},
        )
        assert answer.status_code == 404


def test_lost_store_is_recovered(routed: Stack) -> None:
    cookie = enter(routed)
    assert routed.get("/", cookie=cookie).status_code == 200
    routed.redis.flushall()
    # Redis notifies after its reply to the writer, and a slow store is a 503.
    eventually(lambda: routed.get("/", cookie=cookie).status_code == 401 or None)
    again = enter(routed)
    eventually(lambda: routed.get("/", cookie=again).status_code == 200 or None)


def test_stopped_workspace_has_a_page_and_returns(routed: Stack) -> None:
    def page() -> httpx.Response:
        answer = routed.get("/lab", authorization="Bearer good", accept="text/html")
        assert "x-upstream" not in answer.headers
        assert not [name for name in answer.headers if name.startswith("x-berth-")]
        return answer

    workspace_views.store_view(routed.redis, view(endpoint="", revision=2))
    found = page()
    assert found.status_code == 503
    assert "is almost ready" in found.text
    for state in ("stopping", "stopped", "terminating", "failed"):
        # Its address is still known, but no request is sent to an ending app.
        workspace_views.store_view(routed.redis, routed.view(state=state, revision=3))
        assert page().status_code == 503
    workspace_views.store_view(routed.redis, routed.view(state="stopped", revision=3))
    found = page()
    assert "Ada’s &lt;notebook&gt; is stopped" in found.text
    assert "refresh" not in found.text
    workspace_views.store_view(routed.redis, view(simulated=True, revision=4))
    assert "nothing runs in it" in page().text
    workspace_views.store_view(routed.redis, routed.view(revision=5))
    arrived(routed)


def test_access_is_checked_while_workspaces_start_and_end(routed: Stack) -> None:
    """While views change, no request without credentials is forwarded."""
    names = [f"ws-{number:032x}" for number in range(40)]
    through: list[str] = []
    done = threading.Event()

    def knock() -> None:
        with httpx.Client() as client:
            while not done.is_set():
                for name in names:
                    answer = client.get(
                        f"http://127.0.0.1:{routed.proxy_port}/", headers={"host": routed.host(name)}
                    )
                    if "x-upstream" in answer.headers:
                        through.append(name)

    knocking = threading.Thread(target=knock)
    knocking.start()
    try:
        for _ in range(3):
            for name in names:
                workspace_views.store_view(routed.redis, routed.view(name))
            for name in names:
                workspace_views.drop(routed.redis, name)
    finally:
        done.set()
        knocking.join()
    assert through == []
