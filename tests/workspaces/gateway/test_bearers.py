"""Bearer tokens: concurrent requests share one lookup, and no result outlives a change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from gateway_support import WS_A, Portal, settings
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from test_app import ask

from portal.people.accounts import changes
from portal.workspaces.gateway import bearers, passes
from portal.workspaces.gateway.app import Gateway, build_app
from portal.workspaces.gateway.passes import Pass, Passes

pytestmark = pytest.mark.engine
BEARER = ("authorization", "Bearer good")
KEY = "k" * 64


class Asking:
    """Token lookups of the portal, each answered once `let` is set."""

    def __init__(self, portal: Portal) -> None:
        self.portal = portal
        self.count = 0
        self.broken = False
        self.let = asyncio.Event()
        self.let.set()

    async def authorize(self, token: str, _name: str) -> str | None:
        self.count += 1
        found = self.portal.tokens.get(token)
        await self.let.wait()
        if self.broken:
            raise RuntimeError("the database is gone")
        return found

    async def asked(self, count: int) -> None:
        async with asyncio.timeout(30):
            while self.count < count:
                await asyncio.sleep(0.005)


@pytest.fixture
async def asking(portal: Portal) -> Asking:
    return Asking(portal)


@pytest.fixture
async def gateway(portal: Portal, asking: Asking, redis_async: AsyncRedis) -> AsyncIterator[Gateway]:
    """A gateway that is notified of changes."""
    found = build_app(settings(), redis_async, portal.resolve, asking.authorize, portal.record_entry)
    found.memory.start()
    async with asyncio.timeout(30):
        await found.memory.wait_until_tracking()
    yield found


async def test_requests_at_once_share_one_lookup(
    http: httpx.AsyncClient, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From here on its view and entry are known, and its lookup is not cached.
    monkeypatch.setattr(bearers, "CACHED_S", 0.0)
    assert (await ask(http, BEARER)).status_code == 200
    monkeypatch.setattr(bearers, "CACHED_S", 3600.0)
    asking.let.clear()
    before = asking.count
    answers = [asyncio.create_task(ask(http, BEARER)) for _ in range(20)]
    await asking.asked(before + 1)
    while not all(answer.done() for answer in answers):
        asking.let.set()
        await asyncio.sleep(0.005)
    assert [answer.result().status_code for answer in answers] == [200] * 20
    assert asking.count == before + 1


async def test_lookup_started_before_a_change_is_not_reused(
    http: httpx.AsyncClient, asking: Asking, portal: Portal, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await ask(http, BEARER)).status_code == 200  # its entry is recorded
    redis.incr(changes.REVISION_KEY)
    monkeypatch.setattr(bearers, "CACHED_S", 3600.0)
    asking.let.clear()
    before = asking.count
    early = asyncio.create_task(ask(http, BEARER))
    await asking.asked(before + 1)
    del portal.tokens["good"]
    redis.incr(changes.REVISION_KEY)
    late = asyncio.create_task(ask(http, BEARER))
    await asking.asked(before + 2)
    asking.let.set()
    assert (await early).status_code == 200, "it was asked about before"
    assert (await late).status_code == 401
    assert (await ask(http, BEARER)).status_code == 401, "nobody believes the early answer"


async def test_later_requests_do_not_wait_for_a_slow_lookup(
    http: httpx.AsyncClient, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result may be older than allowed for acceptance."""
    monkeypatch.setattr(bearers, "CACHED_S", 0.0)
    asking.let.clear()
    answers = [asyncio.create_task(ask(http, BEARER)) for _ in range(3)]
    await asking.asked(3)
    asking.let.set()
    assert [(await answer).status_code for answer in answers] == [200] * 3


async def test_cancelled_waiter_does_not_cancel_other_waiters(
    http: httpx.AsyncClient, asking: Asking
) -> None:
    asking.let.clear()
    first = asyncio.create_task(ask(http, BEARER))
    await asking.asked(1)
    second = asyncio.create_task(ask(http, BEARER))
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    asking.let.set()
    assert (await second).status_code == 200


async def test_failed_query_fails_for_all_and_is_retried(http: httpx.AsyncClient, asking: Asking) -> None:
    asking.broken = True
    answers = await asyncio.gather(*(ask(http, BEARER) for _ in range(5)))
    assert all(answer.status_code == 503 for answer in answers)
    asking.broken = False
    assert (await ask(http, BEARER)).status_code == 200


async def test_only_a_continuously_used_token_is_busy(
    gateway: Gateway, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tokens are not looked up without a request."""
    known = bearers.BearerTokens(asking.authorize, gateway.memory)

    async def busy() -> bool:
        assert await known.refresh("good", WS_A) == "7"
        found = known.cached("good", WS_A)
        assert found is not None
        return found[2]

    assert not await busy()
    monkeypatch.setattr(bearers, "PAUSE_S", 3600.0)
    assert await busy()
    monkeypatch.setattr(bearers, "PAUSE_S", -3600.0)
    assert not await busy()
    assert await known.refresh("unknown", WS_A) is None
    assert known.cached("unknown", WS_A) is None


async def test_pass_is_not_extended_beyond_its_maximum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fresh() -> bool:
        return True

    found = Passes(tmp_path / "passes", KEY, fresh)
    found.start()
    async with asyncio.timeout(30):
        while not found.available:
            await asyncio.sleep(0.005)
    one = Pass(WS_A, "t" * 43 + "@127.0.0.1", "1", "n", "", frozenset({"a"}))
    next_start = Pass(WS_A, one.credential, "2", "n", "", frozenset({"a"}))
    assert not found.prolong(one, for_s=1.0), "it does not stand"
    found.add(one, for_s=passes.LONGEST_S)
    assert not found.prolong(next_start, for_s=1.0), "another one stands there"
    assert not found.prolong(one, for_s=passes.LONGEST_S + 0.001)
    assert found.prolong(one, for_s=0.0)
    async with asyncio.timeout(30):
        while found.has(WS_A, one.credential):
            await asyncio.sleep(0.005)
    assert not list((tmp_path / "passes").glob(f"{KEY}/held-*/*/*"))
    found.add(one, for_s=passes.LONGEST_S)
    found.end(next_start)
    assert found.has(WS_A, one.credential)
    found.end(one)
    found.end(one)
    assert not found.has(WS_A, one.credential)
    await found.close()
