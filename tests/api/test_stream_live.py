"""The event stream with uvicorn and Redis, and clients that connect and disconnect."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import httpx
import pytest
import redis as redis_py

from portal.common.actors import SYSTEM
from portal.common.events import hub, live, services
from portal.common.events.kinds import AuditKind
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
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams poll less often than any client of these tests waits, so events arrive by hint."""
    hints = live.hints

    def rarely(channel: str, **more: Any) -> Any:
        return hints(channel, **{**more, "every_s": 600.0})

    monkeypatch.setattr(live, "hints", rarely)


@pytest.fixture
def one(bob: Any, team: Any) -> Workspace:
    return WorkspaceFactory(owner=bob, team=team)


def channel_subscribers(store: redis_py.Redis, workspace: Workspace) -> int:
    return int(store.pubsub_numsub(live.workspace_channel(workspace.pk))[0][1])


def hub_connections(store: redis_py.Redis) -> int:
    return sum(client["name"] == hub.CLIENT_NAME for client in store.client_list())


def session_cookie(browser: Any) -> dict[str, str]:
    return {"Cookie": "; ".join(f"{name}={morsel.value}" for name, morsel in browser.cookies.items())}


def test_event_arrives_at_once_and_a_closed_client_is_unsubscribed(
    server: str,
    hinted: redis_py.Redis,
    unhurried: None,
    bob: Any,
    one: Workspace,
) -> None:
    headers = {"Authorization": f"Bearer {make_token(bob)[1]}", "Accept": "text/event-stream"}
    url = f"{server}{V1}workspaces/{one.pk}/events"
    with httpx.stream("GET", url, headers=headers, timeout=20) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        lines = response.iter_lines()
        assert next(lines) == "retry: 2000"
        eventually(lambda: channel_subscribers(hinted, one) == 1 or None)
        # Both polls, before and after the subscription, are done.
        assert list(islice(lines, 5)).count(": still here") == 2

        services.record(actor=SYSTEM, kind=AuditKind.WORKSPACE_LAUNCHED, message="now", workspace=one)
        assert any('"now"' in line for line in lines)

    eventually(lambda: channel_subscribers(hinted, one) == 0 or None)


@pytest.mark.thorough("200 streams")
def test_streams_use_no_threads_and_share_one_redis_connection(
    server: str,
    hinted: redis_py.Redis,
    bob: Any,
    one: Workspace,
) -> None:
    headers = {"Authorization": f"Bearer {make_token(bob)[1]}", "Accept": "text/event-stream"}
    url = f"{server}{V1}workspaces/{one.pk}/events"
    limits = httpx.Limits(max_connections=210)
    threads = threading.active_count()
    with httpx.Client(headers=headers, timeout=20, limits=limits) as client:
        open_ones = [client.send(client.build_request("GET", url), stream=True) for _ in range(200)]
        assert {response.status_code for response in open_ones} == {200}
        eventually(lambda: channel_subscribers(hinted, one) == 1 or None)
        assert hub_connections(hinted) == 1

        assert client.get(f"{server}{V1}me", headers={"Accept": "application/json"}).status_code == 200
        assert threading.active_count() < threads + 30

        services.record(actor=SYSTEM, kind=AuditKind.WORKSPACE_LAUNCHED, message="now", workspace=one)
        for response in open_ones:
            assert any('"now"' in line for line in response.iter_lines())
            response.close()
    eventually(lambda: hub_connections(hinted) == 0 or None)


def test_page_and_program_share_the_connection(
    server: str, hinted: redis_py.Redis, bob: Any, one: Workspace, as_user: Any
) -> None:
    page = session_cookie(as_user(bob))
    program = {"Authorization": f"Bearer {make_token(bob)[1]}", "Accept": "text/event-stream"}
    with (
        httpx.stream("GET", f"{server}/events/", headers=page, timeout=20) as first,
        httpx.stream("GET", f"{server}/workspaces/{one.pk}/events/", headers=page, timeout=20) as second,
        httpx.stream("GET", f"{server}{V1}workspaces/{one.pk}/events", headers=program, timeout=20) as third,
    ):
        assert {first.status_code, second.status_code, third.status_code} == {200}
        eventually(lambda: channel_subscribers(hinted, one) == 1 or None)
        assert hub_connections(hinted) == 1
        # Once at the start, once when Redis has confirmed the channel.
        for response in (first, second):
            lines = response.iter_lines()
            assert list(islice(lines, 8)).count("event: changed") == 2

            services.record(actor=SYSTEM, kind=AuditKind.WORKSPACE_LAUNCHED, message="now", workspace=one)
            assert next(line for line in lines if line) == "event: changed"


def test_streams_per_user_are_limited(
    server: str,
    hinted: redis_py.Redis,
    alice: Any,
    bob: Any,
    one: Workspace,
    as_user: Any,
    settings: Any,
) -> None:
    settings.BERTH_STREAMS_PER_USER = 1
    url = f"{server}{V1}workspaces/{one.pk}/events"

    def program(user: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {make_token(user)[1]}", "Accept": "text/event-stream"}

    page = session_cookie(as_user(bob))
    with httpx.stream("GET", url, headers=program(bob), timeout=20) as response:
        lines = response.iter_lines()
        assert next(lines) == "retry: 2000"
        refused = httpx.get(url, headers=program(bob))
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
        assert int(refused.headers["Retry-After"]) > 0
        assert refused.json()["reason"] == {"code": "too_many_streams", "params": {"limit": 1}}
        assert httpx.get(f"{server}/events/", headers=page).status_code == 429
        with httpx.stream("GET", url, headers=program(alice), timeout=20) as other:
            assert other.status_code == 200

    def again() -> bool | None:
        with httpx.stream("GET", url, headers=program(bob), timeout=20) as response:
            return response.status_code == 200 or None

    eventually(again)
