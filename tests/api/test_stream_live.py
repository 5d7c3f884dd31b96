"""The event stream on real parts: uvicorn, Redis, and a client that comes and goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis as redis_py

from portal.common.actors import SYSTEM
from portal.events import live, services
from portal.workspaces.models import Workspace
from tests.api.conftest import V1
from tests.factories import WorkspaceFactory, make_token
from tests.workspaces.gateway.gateway_support import eventually

pytestmark = [pytest.mark.engine, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def hinted(redis: redis_py.Redis, redis_url: str, settings: Any) -> Iterator[redis_py.Redis]:
    settings.BERTH_REDIS_URL = redis_url
    live.connection.cache_clear()
    yield redis
    live.connection.cache_clear()


@pytest.fixture
def one(bob: Any, team: Any) -> Workspace:
    return WorkspaceFactory(owner=bob, team=team)


def listeners(store: redis_py.Redis, workspace: Workspace) -> int:
    return int(store.pubsub_numsub(live.workspace_channel(workspace.pk))[0][1])


def test_an_event_comes_at_once_and_a_client_that_leaves_is_forgotten(
    server: str,
    hinted: redis_py.Redis,
    bob: Any,
    one: Workspace,
) -> None:
    headers = {"Authorization": f"Bearer {make_token(bob)[1]}", "Accept": "text/event-stream"}
    url = f"{server}{V1}workspaces/{one.pk}/events"
    with httpx.stream("GET", url, headers=headers, timeout=20) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        lines = response.iter_lines()
        assert next(lines) == "retry: 2000"
        eventually(lambda: listeners(hinted, one) == 1 or None)
        # Both looks, before and after the subscription, are over.
        assert [line for line, _ in zip(lines, range(5), strict=False)].count(": still here") == 2

        happened = time.monotonic()
        services.record(actor=SYSTEM, kind="workspace.note", message="now", workspace=one)
        came = next(time.monotonic() for line in lines if '"now"' in line)
        assert came - happened < 1, "the hint was not heard"

    eventually(lambda: listeners(hinted, one) == 0 or None)


def test_many_streams_hold_no_threads(
    server: str,
    hinted: redis_py.Redis,
    bob: Any,
    one: Workspace,
) -> None:
    headers = {"Authorization": f"Bearer {make_token(bob)[1]}", "Accept": "text/event-stream"}
    url = f"{server}{V1}workspaces/{one.pk}/events"
    limits = httpx.Limits(max_connections=60)
    with httpx.Client(headers=headers, timeout=20, limits=limits) as client:
        open_ones = [client.send(client.build_request("GET", url), stream=True) for _ in range(40)]
        assert {response.status_code for response in open_ones} == {200}
        eventually(lambda: listeners(hinted, one) == 40 or None)

        assert client.get(f"{server}{V1}me", headers={"Accept": "application/json"}).status_code == 200
        assert threading.active_count() < 30

        for response in open_ones:
            response.close()
    eventually(lambda: listeners(hinted, one) == 0 or None)
