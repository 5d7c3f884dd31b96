"""Entries by token are audited once, before the first request is forwarded."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from gateway_support import WS_A, Portal, Stack, settings, view
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import OutOfMemoryError
from test_app import Http, ask, code, cookie_for

from portal.workspaces.gateway import access, entries, workspace_views
from portal.workspaces.gateway.app import build_app
from portal.workspaces.gateway.entries import Entry

pytestmark = pytest.mark.engine
BEARER = ("authorization", "Bearer good")
AGENT = ("user-agent", "Nightly/1.0")


def from_address(app: Any, address: str) -> Http:
    transport = httpx.ASGITransport(app=app, client=(address, 4711))
    return Http(transport=transport, base_url="http://127.0.0.1:1")


async def test_entry_records_user_workspace_and_client(http: Http, portal: Portal) -> None:
    assert (await ask(http, BEARER, AGENT, ("x-request-id", "job-00042"))).status_code == 200
    assert portal.entries == [Entry("good", WS_A, "127.0.0.1", "Nightly/1.0", "job-00042")]
    assert "good" not in repr(portal.entries[0])


async def test_repeated_requests_make_one_entry_and_one_redis_call(
    http: Http, portal: Portal, redis: Redis
) -> None:
    await ask(http, BEARER)
    before = redis.info("commandstats")["cmdstat_set"]["calls"]
    for _ in range(200):
        assert (await ask(http, BEARER)).status_code == 200
    assert len(portal.entries) == 1
    assert redis.info("commandstats")["cmdstat_set"]["calls"] == before


async def test_requests_at_once_in_two_processes_make_one_entry(
    portal: Portal, redis_async: AsyncRedis, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The number is tested, not the time: a busy machine may be slow.
    for each in (access, entries):
        monkeypatch.setattr(each, "STORE_TIMEOUT_S", 20)
    apps = [
        build_app(settings(), redis_async, portal.resolve, portal.authorize_bearer, portal.record_entry)
        for _ in range(2)
    ]
    clients = [from_address(app, "192.0.2.7") for app in apps]
    answers = await asyncio.gather(*(ask(clients[number % 2], BEARER) for number in range(40)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(portal.entries) == 1
    for app, client in zip(apps, clients, strict=True):
        await client.aclose()
        await app.close()


async def test_another_address_token_or_hour_makes_a_new_entry(
    gateway: Any, portal: Portal, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    portal.tokens["second"] = "7"
    async with from_address(gateway, "192.0.2.7") as here, from_address(gateway, "2001:db8::1") as there:
        for http, token in ((here, "good"), (there, "good"), (here, "second"), (here, "good")):
            assert (await ask(http, ("authorization", f"Bearer {token}"))).status_code == 200
        assert [(entry.token, entry.address) for entry in portal.entries] == [
            ("good", "192.0.2.7"),
            ("good", "2001:db8::1"),
            ("second", "192.0.2.7"),
        ]
        # The hour has passed, and the process has forgotten the entry.
        for key in redis.scan_iter(f"{entries.KEY_PREFIX}*"):
            assert 0 < redis.ttl(key) <= entries.PERIOD_S
            redis.delete(key)
        monkeypatch.setattr(
            entries.time, "monotonic", lambda now=entries.time.monotonic: now() + entries.REMEMBERED_S
        )
        await ask(here, BEARER)
    assert len(portal.entries) == 4
    await gateway.close()


async def test_browser_session_makes_no_token_entry(
    http: Http, portal: Portal, redis: Redis, redis_async: AsyncRedis
) -> None:
    cookie = ("cookie", f"berth_ws={await cookie_for(redis, redis_async)}")
    assert (await ask(http, cookie, BEARER)).status_code == 200
    assert portal.entries == []


async def test_refused_access_is_not_recorded_as_entry(http: Http, portal: Portal, redis: Redis) -> None:
    assert code(await ask(http, ("authorization", "Bearer other"))) == (403, "forbidden")
    assert code(await ask(http, ("authorization", "Bearer bad"))) == (401, "not_signed_in")
    workspace_views.store_view(redis, view(state="stopped", revision=5))
    assert (await ask(http, BEARER)).status_code == 503
    assert portal.entries == []


async def test_no_entry_without_an_audit_record(http: Http, portal: Portal) -> None:
    await ask(http, ("authorization", "Bearer other"))  # the view is known from here on
    portal.broken = True
    assert (await ask(http, BEARER)).status_code == 503
    portal.broken = False
    assert (await ask(http, BEARER)).status_code == 200
    assert len(portal.entries) == 1


async def test_token_revoked_between_lookup_and_record_is_refused(
    portal: Portal, redis_async: AsyncRedis, redis: Redis
) -> None:
    async def looked_up(token: str, name: str) -> str | None:
        return portal.tokens.pop(token, None)

    app = build_app(settings(), redis_async, portal.resolve, looked_up, portal.record_entry)
    async with from_address(app, "192.0.2.7") as http:
        assert code(await ask(http, BEARER)) == (401, "not_signed_in")
        portal.tokens["good"] = "7"
        # The previous attempt blocks no request.
        assert not list(redis.scan_iter(f"{entries.KEY_PREFIX}*"))
    await app.close()


async def test_claim_of_a_process_killed_while_recording_expires(
    portal: Portal, redis_async: AsyncRedis, redis: Redis
) -> None:
    writing = asyncio.Event()

    async def never(entry: Entry) -> bool:
        writing.set()
        await asyncio.Event().wait()
        return True

    killed = build_app(settings(), redis_async, portal.resolve, portal.authorize_bearer, never)
    alive = build_app(settings(), redis_async, portal.resolve, portal.authorize_bearer, portal.record_entry)
    async with from_address(killed, "192.0.2.7") as first, from_address(alive, "192.0.2.7") as second:
        lost = asyncio.create_task(ask(first, BEARER))
        await writing.wait()
        [claim] = redis.scan_iter(f"{entries.KEY_PREFIX}*")
        assert 0 < redis.ttl(claim) <= entries.CLAIM_S
        assert (await ask(second, BEARER)).status_code == 200
        assert portal.entries == []
        redis.delete(claim)  # like a normal exit
        assert (await ask(second, BEARER)).status_code == 200
        assert len(portal.entries) == 1
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
    await killed.close()
    await alive.close()


@pytest.fixture
def full(redis: Redis) -> Iterator[Callable[[bool], None]]:
    """Make Redis refuse writes that need memory, as when full, or accept them again."""

    def change(is_full: bool) -> None:
        redis.config_set("maxmemory", 1 if is_full else 0)

    yield change
    change(False)


async def test_full_redis_does_not_block_tokens(
    http: Http, portal: Portal, redis: Redis, full: Callable[[bool], None]
) -> None:
    full(True)
    with pytest.raises(OutOfMemoryError):
        redis.set("more", "x")
    # One audit entry, also for concurrent requests.
    answers = await asyncio.gather(*(ask(http, BEARER) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(portal.entries) == 1
    assert code(await ask(http, ("authorization", "Bearer other"))) == (403, "forbidden")
    assert code(await ask(http, ("authorization", "Bearer bad"))) == (401, "not_signed_in")
    assert len(portal.entries) == 1


async def test_entries_before_a_full_redis_are_not_recorded_again(
    portal: Portal, redis: Redis, redis_async: AsyncRedis, full: Callable[[bool], None]
) -> None:
    for _ in range(2):
        app = build_app(settings(), redis_async, portal.resolve, portal.authorize_bearer, portal.record_entry)
        async with from_address(app, "192.0.2.7") as http:
            assert (await ask(http, BEARER)).status_code == 200
        await app.close()
        full(True)
    assert len(portal.entries) == 1


async def test_no_entry_without_an_audit_record_on_full_redis(
    http: Http, portal: Portal, full: Callable[[bool], None]
) -> None:
    await ask(http, ("authorization", "Bearer other"))  # the view is known from here on
    full(True)
    portal.broken = True
    assert (await ask(http, BEARER)).status_code == 503
    portal.broken = False
    assert (await ask(http, BEARER)).status_code == 200
    assert len(portal.entries) == 1


async def test_redis_filling_during_a_record_is_tolerated(
    portal: Portal, redis_async: AsyncRedis, full: Callable[[bool], None]
) -> None:
    async def record(entry: Entry) -> bool:
        full(True)
        return await portal.record_entry(entry)

    app = build_app(settings(), redis_async, portal.resolve, portal.authorize_bearer, record)
    async with from_address(app, "192.0.2.7") as http:
        for _ in range(3):
            assert (await ask(http, BEARER)).status_code == 200
    await app.close()
    assert len(portal.entries) == 1


def test_client_cannot_forge_its_recorded_address(stack: Stack) -> None:
    """Through the front door, forwarding headers of the client are not recorded."""
    stack.portal.views = {WS_A: stack.view()}
    # A token new to this gateway, which remembers recorded entries for a minute.
    token = secrets.token_hex(16)
    stack.portal.tokens = {token: "7"}
    stack.portal.entries.clear()
    stack.redis.flushall()
    forged = {"X-Forwarded-For": "203.0.113.9", "user-agent": "curl"}
    assert stack.get("/lab", authorization=f"Bearer {token}", **forged).status_code == 200
    [entry] = stack.portal.entries
    assert (entry.address, entry.user_agent) == ("127.0.0.1", "curl")
