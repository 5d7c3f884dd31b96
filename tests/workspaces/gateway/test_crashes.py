"""The store and the front door are killed under open workspaces."""

from __future__ import annotations

import contextlib
from pathlib import Path

import httpx
import pytest
from gateway_support import WS_A, WS_B, Stack, eventually, run_caddy, started, valkey

from portal.workspaces.gateway import tickets

pytestmark = pytest.mark.engine


def upstream(stack: Stack, name: str) -> bool | None:
    with contextlib.suppress(httpx.TransportError):
        return "x-upstream" in stack.get(name=name, authorization="Bearer good").headers or None
    return None


def test_killed_store_and_killed_front_door_come_back_by_themselves(tmp_path: Path) -> None:
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
            # An empty store shuts nobody out for long: a session is gone, a new ticket enters.
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
