"""Front door and node gateways: routes to other machines, their certificates, and hosts without a gateway."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway_support import (
    SECRET,
    WS_A,
    Stack,
    echo,
    eventually,
    free_port,
    run_caddy,
)
from test_front_door import behind as behind
from test_front_door import door as door

from portal.embedded import proxy
from portal.workspaces.gateway import workspace_views
from provisioning.endpoints import SOCKET_HEADER
from provisioning.node_gateway import Certificates, caddy_config, node_name
from tests.certificates import Authority

pytestmark = pytest.mark.engine


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
