"""Views of workspaces: valid content, and storage in Redis."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_support import WS_A, view
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from portal.workspaces.gateway import workspace_views
from provisioning.endpoints import host_and_port


@pytest.mark.parametrize(
    "changes",
    [
        {"external_name": "ws-`) || Host(`"},
        {"socket": "../../etc/passwd"},
        {"socket": f"{WS_A}.0"},
        {"socket": f"{WS_A}.1\n"},
        {"gateway": "10.0.0.5:8646", "node": "gpu-07"},
        {"socket": f"{WS_A}.1", "gateway": "10.0.0.5", "node": "gpu-07"},
        {"socket": f"{WS_A}.1", "gateway": "unix//run/docker.sock", "node": "gpu-07"},
        {"socket": f"{WS_A}.1", "gateway": "10.0.0.5:0", "node": "gpu-07"},
        {"socket": f"{WS_A}.1", "gateway": "10.0.0.5:8646-8650", "node": "gpu-07"},
        {"socket": f"{WS_A}.1", "gateway": "10.0.0.5:99999", "node": "gpu-07"},
        {"socket": f"{WS_A}.1", "gateway": "{env.HOME}:8646", "node": "gpu-07"},
        {"socket": f"{WS_A}.1", "gateway": "10.0.0.5:8646"},
        {"socket": f"{WS_A}.1", "gateway": "10.0.0.5:8646", "node": "gpu 07"},
        {"socket": f"{WS_A}.1", "gateway": "10.0.0.5:8646", "node": "{env.HOME}"},
        {"endpoint": "ftp://127.0.0.1:1"},
        {"endpoint": "http://"},
        {"endpoint": "http://127.0.0.1:0"},
        {"endpoint": "http://127.0.0.1:99999"},
        {"endpoint": "http://user@127.0.0.1:1"},
        {"endpoint": "http://127.0.0.1:1/path"},
        {"endpoint": "http://127.0.0.1:1?x"},
        {"endpoint": "http://127.0.0.1:1\n"},
        {"endpoint": "http://{env.HOME}:1"},
        {"endpoint": "http://-x:1"},
    ],
)
def test_invalid_view_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not"):
        view(**changes)


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [
        ("http://127.0.0.1:5000", ("http", "127.0.0.1:5000")),
        ("http://127.0.0.1:5000/", ("http", "127.0.0.1:5000")),
        ("http://app", ("http", "app:80")),
        ("https://app.example.org", ("https", "app.example.org:443")),
        ("http://[::1]:5000", ("http", "[::1]:5000")),
        ("http://[::1]", ("http", "[::1]:80")),
        ("node:ws-1.1", None),
        ("", None),
    ],
)
def test_address_of_an_endpoint(endpoint: str, found: tuple[str, str] | None) -> None:
    assert host_and_port(endpoint) == found


@pytest.mark.parametrize(
    ("changes", "reachable"),
    [
        ({"endpoint": "http://127.0.0.1:1"}, True),
        ({"endpoint": "", "socket": f"{WS_A}.1"}, True),
        ({"endpoint": "", "socket": f"{WS_A}.1", "gateway": "[fe80::1]:8646", "node": "gpu-07"}, True),
        ({"endpoint": ""}, False),
        ({"state": "stopping"}, False),
        ({"state": "provisioning"}, False),
        ({"simulated": True}, False),
    ],
)
def test_no_access_to_stopped_or_unreachable_workspaces(changes: dict[str, Any], reachable: bool) -> None:
    assert view(**changes).reachable is reachable


@pytest.mark.engine
class TestViews:
    def test_an_older_revision_does_not_replace_a_newer_one(self, redis: Redis) -> None:
        assert workspace_views.store_view(redis, view(revision=2, state="stopped"))
        assert not workspace_views.store_view(redis, view(revision=1))
        assert workspace_views.decode(redis.get(workspace_views.key(WS_A))) == view(
            revision=2, state="stopped"
        )
        assert workspace_views.store_view(redis, view(revision=2, state="failed"))
        assert 0 < redis.ttl(workspace_views.key(WS_A)) <= workspace_views.VIEW_TTL_S
        workspace_views.drop(redis, WS_A)
        assert workspace_views.store_view(redis, view(revision=1))

    async def test_repair_does_not_replace_a_newer_view(self, redis: Redis, redis_async: AsyncRedis) -> None:
        workspace_views.store_view(redis, view(state="stopped", revision=2))
        await workspace_views.heal(redis_async, view())
        found = workspace_views.decode(redis.get(workspace_views.key(WS_A)))
        assert found is not None
        assert found.state == "stopped"

    def test_a_damaged_view_is_replaced(self, redis: Redis) -> None:
        redis.set(workspace_views.key(WS_A), "not json")
        assert workspace_views.store_view(redis, view())
        assert workspace_views.decode(redis.get(workspace_views.key(WS_A))) == view()


@pytest.mark.parametrize("data", [None, b"", b"{}", b'{"external_name":"x"}'])
def test_damaged_view_is_invalid(data: bytes | None) -> None:
    assert workspace_views.decode(data) is None


@pytest.mark.parametrize("headers", [{"Host": "x"}, {"Authorization": "a\r\nb"}, {"Cookie": ""}])
def test_only_two_headers_can_be_set_upstream(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="upstream header"):
        view(upstream_headers=headers)


def test_secret_is_not_in_the_repr() -> None:
    assert "upstream-secret" not in repr(view())
