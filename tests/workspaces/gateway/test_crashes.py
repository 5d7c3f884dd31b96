"""Killed store and front door, and stopped front doors, with open workspaces."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway_support import WS_A, WS_B, Stack, echo, eventually, free_port, run_caddy, started, valkey, view
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from portal.workspaces.gateway import tickets
from provisioning.node_gateway import caddy_config
from tests.certificates import Authority

pytestmark = pytest.mark.engine


def upstream(stack: Stack, name: str) -> bool | None:
    with contextlib.suppress(httpx.TransportError):
        return "x-upstream" in stack.get(name=name, authorization="Bearer good").headers or None
    return None


def test_killed_store_and_killed_front_door_recover(tmp_path: Path) -> None:
    both = [WS_A, WS_B]
    with started(tmp_path) as stack:
        stack.portal.views = {name: stack.view(name) for name in both}
        stack.portal.tokens = {"good": "7"}
        eventually(lambda: upstream(stack, WS_A))

        stack.store.kill()
        stack.store.wait(20)
        refused = stack.get(authorization="Bearer good")
        assert refused.status_code == 503
        assert refused.json()["code"] == "store_unavailable"

        with valkey(tmp_path, stack.redis_port):
            # After the loss of the store sessions are gone, and a new ticket works.
            for name in both:
                eventually(lambda name=name: upstream(stack, name))
            ticket = tickets.issue(stack.redis, external_name=WS_A, user_id="7")
            cookie = stack.get(f"/.berth/enter?ticket={ticket}").headers["set-cookie"].partition(";")[0]
            assert stack.get(cookie=cookie).headers["x-upstream"] == "echo"

            stack.door.kill()
            stack.door.wait(20)
            with run_caddy(tmp_path):
                for name in both:
                    eventually(lambda name=name: upstream(stack, name))
                assert stack.get(cookie=cookie).status_code == 200


def test_stopped_front_door_ends_websockets_without_a_close_code(tmp_path: Path) -> None:
    """JupyterLab reconnects a kernel after 1006, and leaves it disconnected after 1000 and 1001."""
    authority = Authority(tmp_path / "authority")
    (tmp_path / "own").mkdir()
    with started(tmp_path / "own", certificates=authority.front_door()) as stack:
        port = free_port()
        there = stack.folder / "node-b"
        (there / ".gateway").mkdir(parents=True)
        (there / "gateway.json").write_text(
            caddy_config(
                listen=f"127.0.0.1:{port}",
                certificates=authority.node("node-b"),
                portal_url="http://127.0.0.1:9",
                storage=there / "caddy",
            )
        )
        with (
            run_caddy(there, "gateway") as gateway,
            stack.app(echo, 2, below="node-b") as on_node,
            stack.app(echo, 2, name=WS_B) as here,
        ):
            node = {"gateway": f"127.0.0.1:{port}", "node": "node-b"}
            stack.portal.views = {
                WS_A: view(socket=on_node, endpoint="", **node),
                WS_B: view(WS_B, socket=here, endpoint=""),
            }
            stack.portal.tokens = {"good": "7"}
            for name in stack.portal.views:
                eventually(lambda name=name: upstream(stack, name))
            with websocket(stack, WS_A) as through_node, websocket(stack, WS_B) as through_door:
                for door, channel in ((gateway, through_node), (stack.door, through_door)):
                    door.terminate()
                    with pytest.raises(ConnectionClosed) as closed:
                        channel.recv(timeout=20)
                    assert closed.value.rcvd is None


@contextlib.contextmanager
def websocket(stack: Stack, name: str) -> Iterator[ClientConnection]:
    """Return a WebSocket on which the app has answered."""
    plug = socket.create_connection(("127.0.0.1", stack.proxy_port), timeout=20)
    headers = {"Authorization": "Bearer good"}
    uri = f"ws://{stack.host(name)}/api/kernels/1/channels"
    with connect(uri, sock=plug, additional_headers=headers, ping_interval=None) as channel:
        channel.recv(timeout=20)
        yield channel
