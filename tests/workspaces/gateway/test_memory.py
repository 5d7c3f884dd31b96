"""Cached values of the gateway are dropped by the first request after a change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from gateway_support import WS_A, WS_B, Portal, view
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from test_app import HOST, ask, cookie_for

from portal.people.accounts import changes
from portal.workspaces.gateway import access, bearers, memory, tickets, workspace_views
from portal.workspaces.gateway.app import Gateway
from portal.workspaces.gateway.memory import Memory

pytestmark = pytest.mark.engine
Http = httpx.AsyncClient
BEARER = ("authorization", "Bearer good")


class Looks:
    """Counts Redis reads caused by requests."""

    def __init__(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        script = gateway._access._read_script

        async def counted(*args: object, **kwargs: object) -> object:
            self.count += 1
            return await script(*args, **kwargs)

        monkeypatch.setattr(gateway._access, "_read_script", counted)


@pytest.fixture
async def warm(gateway: Gateway) -> AsyncIterator[Gateway]:
    """A gateway that is notified of changes."""
    gateway.memory.start()
    async with asyncio.timeout(30):
        await gateway.memory.wait_until_tracking()
    yield gateway


async def test_repeated_requests_do_not_query_redis(
    http: Http, warm: Gateway, redis: Redis, redis_async: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = ("cookie", f"berth_ws={await cookie_for(redis, redis_async)}")
    workspace_views.store_view(redis, view())
    looks = Looks(warm, monkeypatch)
    for _ in range(20):
        assert (await ask(http, cookie)).status_code == 200
    # A read before the notification of ticket and view is processed is not cached.
    assert looks.count <= 3
    seen = looks.count
    for _ in range(20):
        assert (await ask(http, cookie)).status_code == 200
    assert looks.count == seen


HARMS: dict[str, Callable[[Redis], object]] = {
    "signed out": lambda redis: tickets.revoke_user(redis, "7"),
    "workspace's sessions ended": lambda redis: tickets.revoke_workspace(redis, WS_A),
    "stopped": lambda redis: workspace_views.store_view(redis, view(state="stopped", revision=5)),
    "given to another": lambda redis: workspace_views.store_view(
        redis, view(user_ids=frozenset({"8"}), revision=5)
    ),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
async def test_revoked_access_applies_to_the_next_request(
    http: Http, warm: Gateway, redis: Redis, redis_async: AsyncRedis, harm: Callable[[Redis], object]
) -> None:
    for _ in range(25):
        redis.flushall()
        workspace_views.store_view(redis, view())
        cookie = ("cookie", f"berth_ws={await cookie_for(redis, redis_async)}")
        for _ in range(4):
            assert (await ask(http, cookie)).status_code == 200
        harm(redis)
        assert (await ask(http, cookie)).status_code != 200


async def test_keys_lost_in_redis_are_dropped_from_memory(
    http: Http, warm: Gateway, redis: Redis, redis_async: AsyncRedis
) -> None:
    workspace_views.store_view(redis, view())
    cookie = ("cookie", f"berth_ws={await cookie_for(redis, redis_async)}")
    for _ in range(4):
        assert (await ask(http, cookie)).status_code == 200
    mark = warm.memory.mark()
    redis.flushall()
    # This notification is sent after the reply to the client that emptied it.
    async with asyncio.timeout(30):
        while warm.memory.mark() == mark:
            await asyncio.sleep(0)
    assert (await ask(http, cookie)).status_code != 200


async def test_leaving_ends_the_session_at_once(
    http: Http, warm: Gateway, redis: Redis, redis_async: AsyncRedis
) -> None:
    workspace_views.store_view(redis, view())
    value = await cookie_for(redis, redis_async)
    cookie = ("cookie", f"berth_ws={value}")
    for _ in range(4):
        assert (await ask(http, cookie)).status_code == 200
    await http.get("/.berth/leave", headers={"host": HOST, "cookie": f"berth_ws={value}"})
    assert (await ask(http, cookie)).status_code != 200


async def test_token_is_dropped_from_memory_when_accounts_change(
    http: Http, warm: Gateway, redis: Redis, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the notification, the token would be accepted for an hour here."""
    monkeypatch.setattr(bearers, "CACHED_S", 3600.0)
    assert access.ACCOUNTS_KEY == changes.REVISION_KEY
    for _ in range(25):
        portal.tokens["good"] = "7"
        redis.incr(changes.REVISION_KEY)
        for _ in range(3):
            assert (await ask(http, BEARER)).status_code == 200
        del portal.tokens["good"]
        assert (await ask(http, BEARER)).status_code == 200, "nobody has told yet"
        redis.incr(changes.REVISION_KEY)
        assert (await ask(http, BEARER)).status_code == 401


async def test_unnotified_gateway_reads_redis(
    http: Http,
    warm: Gateway,
    redis: Redis,
    redis_async: AsyncRedis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "RETRY_S", 3600.0)
    workspace_views.store_view(redis, view())
    cookie = ("cookie", f"berth_ws={await cookie_for(redis, redis_async)}")
    for _ in range(4):
        assert (await ask(http, cookie)).status_code == 200
    [listener] = [each for each in redis.client_list() if each["name"] == memory.CLIENT_NAME]
    redis.client_kill_filter(_id=listener["id"])
    tickets.revoke_user(redis, "7")
    assert (await ask(http, cookie)).status_code != 200


async def test_views_are_sent_again_after_a_lost_connection(warm: Gateway, redis: Redis) -> None:
    [listener] = [each for each in redis.client_list() if each["name"] == memory.CLIENT_NAME]
    redis.client_kill_filter(_id=listener["id"])
    async with asyncio.timeout(30):
        while warm.memory.is_tracking:
            await asyncio.sleep(0)
        await warm.memory.wait_until_tracking()
    assert [each for each in redis.client_list() if each["name"] == memory.CLIENT_NAME]


async def test_result_read_before_a_change_is_not_cached(warm: Gateway, redis: Redis) -> None:
    key = workspace_views.key(WS_B)
    mark = warm.memory.mark()
    workspace_views.store_view(redis, view(WS_B))
    async with asyncio.timeout(30):
        while warm.memory.mark() == mark:
            await asyncio.sleep(0)
    warm.memory.store(key, "from before", for_s=60, mark=mark)
    assert warm.memory.get(key) is None


async def test_keys_expired_in_redis_are_unknown(redis_async: AsyncRedis) -> None:
    now = [100.0]
    kept = Memory(redis_async, ["berth:"], clock=lambda: now[0])
    kept.start()
    async with asyncio.timeout(30):
        await kept.wait_until_tracking()
    kept.store("berth:x", "value", for_s=10, mark=kept.mark())
    now[0] = 109.0
    assert kept.get("berth:x") == ("value", 1.0)
    now[0] = 110.0
    assert kept.get("berth:x") is None
    await kept.close()
