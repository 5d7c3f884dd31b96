"""The routes in Redis, the views beside them, and the document that Traefik gets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_support import WS_A, WS_B, free_port, view
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import WatchError

from portal.workspaces.gateway import routes, workspace_views
from portal.workspaces.gateway.feed import RoutesFeed, document
from portal.workspaces.gateway.routes import Route, SyncResult

A = Route(WS_A, "http://127.0.0.1:5000", "localhost")
B = Route(WS_B, "http://127.0.0.1:5001", "localhost")


@pytest.mark.parametrize(
    "changes",
    [
        {"external_name": "ws-`) || Host(`"},
        {"domain": "local`host"},
        {"domain": ""},
        {"endpoint": ""},
        {"endpoint": "ftp://127.0.0.1:1"},
        {"endpoint": "http://"},
        {"endpoint": "http://127.0.0.1:0"},
        {"endpoint": "http://127.0.0.1:99999"},
        {"endpoint": "http://user@127.0.0.1:1"},
        {"endpoint": "http://127.0.0.1:1/path"},
        {"endpoint": "http://127.0.0.1:1?x"},
        {"endpoint": "http://127.0.0.1:1\n"},
    ],
)
def test_what_is_no_route_is_refused(changes: dict[str, str]) -> None:
    fields = {"external_name": WS_A, "endpoint": "http://127.0.0.1:5000", "domain": "localhost"}
    with pytest.raises(ValueError, match="is not"):
        Route(**{**fields, **changes})


def test_every_router_has_its_guard_and_no_routes_is_no_empty_document() -> None:
    http = json.loads(document((A, B)))["http"]
    assert set(http["routers"]) == {WS_A, WS_B}
    for name, router in http["routers"].items():
        assert router["middlewares"] == ["ws-strip@file", "ws-auth@file"]
        assert router["rule"] == f"Host(`{name}.localhost`)"
        assert router["service"] == name
    assert http["services"][WS_B]["loadBalancer"]["servers"] == [{"url": "http://127.0.0.1:5001"}]
    none = json.loads(document(()))["http"]
    assert "routers" not in none
    assert none["services"]


@pytest.mark.engine
class TestStore:
    async def test_publish_withdraw_and_publish_again(self, redis: Redis, redis_async: AsyncRedis) -> None:
        assert (await routes.snapshot(redis_async)).revision == ""
        routes.publish(redis, A)
        first = await routes.snapshot(redis_async)
        assert first.routes == (A,)
        moved = Route(WS_A, "http://127.0.0.1:6000", "localhost")
        routes.publish(redis, moved)
        second = await routes.snapshot(redis_async)
        assert second.routes == (moved,)
        routes.withdraw(redis, WS_A)
        routes.withdraw(redis, WS_A)
        third = await routes.snapshot(redis_async)
        assert third.routes == ()
        assert len({first.revision, second.revision, third.revision, ""}) == 4

    async def test_sync_makes_it_exactly_so_and_is_silent_when_it_is(
        self, redis: Redis, redis_async: AsyncRedis
    ) -> None:
        routes.publish(redis, A)
        moved = Route(WS_A, "http://127.0.0.1:6000", "localhost")
        assert routes.sync(redis, [moved, B]) == SyncResult(added=1, updated=1, removed=0)
        found = await routes.snapshot(redis_async)
        assert set(found.routes) == {moved, B}
        assert routes.sync(redis, [B, moved]) == SyncResult(0, 0, 0)
        assert (await routes.snapshot(redis_async)).revision == found.revision
        assert routes.sync(redis, []) == SyncResult(added=0, updated=0, removed=2)

    async def test_after_a_loss_sync_tells_even_of_no_routes(
        self, redis: Redis, redis_async: AsyncRedis
    ) -> None:
        assert routes.sync(redis, []) == SyncResult(0, 0, 0)
        assert (await routes.snapshot(redis_async)).revision != ""

    async def test_sync_reads_again_when_somebody_came_between(
        self, redis: Redis, redis_async: AsyncRedis
    ) -> None:
        calls = 0

        def load() -> Iterator[Route]:
            nonlocal calls
            calls += 1
            if calls == 1:
                routes.publish(redis, B)
                return iter([A])
            return iter([A, B])

        assert routes.sync(redis, load) == SyncResult(added=1, updated=0, removed=0)
        assert calls == 2
        assert set((await routes.snapshot(redis_async)).routes) == {A, B}

    def test_sync_gives_up_where_it_never_gets_through(self, redis: Redis) -> None:
        def load() -> list[Route]:
            routes.publish(redis, B)
            return [A]

        with pytest.raises(WatchError):
            routes.sync(redis, load)

    async def test_what_another_version_wrote_is_passed_over(
        self, redis: Redis, redis_async: AsyncRedis
    ) -> None:
        routes.publish(redis, A)
        redis.hset(routes.ROUTES_KEY, WS_B, "{}")
        assert (await routes.snapshot(redis_async)).routes == (A,)

    async def test_ten_thousand_routes_are_told(
        self, redis: Redis, redis_async: AsyncRedis, capsys: pytest.CaptureFixture[str]
    ) -> None:
        many = [Route(f"ws-{number:032x}", "http://127.0.0.1:5000", "localhost") for number in range(10_000)]
        started = time.perf_counter()
        assert routes.sync(redis, many).added == 10_000
        written = time.perf_counter()
        assert routes.sync(redis, many) == SyncResult(0, 0, 0)
        compared = time.perf_counter()
        found = await routes.snapshot(redis_async)
        size = len(document(found.routes))
        read = time.perf_counter()
        with capsys.disabled():
            print(
                f"\n10,000 routes: written in {(written - started) * 1000:.0f} ms, compared in"
                f" {(compared - written) * 1000:.0f} ms, read and rendered in"
                f" {(read - compared) * 1000:.0f} ms ({size // 1024} KiB)"
            )
        assert len(found.routes) == 10_000


async def never() -> Any:
    await asyncio.Event().wait()


@pytest.mark.engine
class TestFeed:
    async def test_a_new_client_is_answered_at_once_and_a_known_one_when_there_is_news(
        self, redis: Redis, redis_async: AsyncRedis
    ) -> None:
        routes.publish(redis, A)
        feed = RoutesFeed(redis_async, hold_s=20)
        assert await feed.answer("one", never) == document((A,))
        assert await feed.answer("two", never) == document((A,))
        held = asyncio.ensure_future(feed.answer("one", never))
        done, _ = await asyncio.wait({held}, timeout=0.1)
        assert not done
        await asyncio.to_thread(routes.publish, redis, B)
        assert set(json.loads(await asyncio.wait_for(held, 2) or b"")["http"]["routers"]) == {WS_A, WS_B}

    async def test_the_last_document_is_repeated_when_the_time_is_over(
        self, redis: Redis, redis_async: AsyncRedis
    ) -> None:
        routes.publish(redis, A)
        feed = RoutesFeed(redis_async, hold_s=0.2)
        assert await feed.answer("one", never) == await feed.answer("one", never) == document((A,))

    async def test_a_store_that_lost_everything_unroutes_nobody(
        self, redis: Redis, redis_async: AsyncRedis
    ) -> None:
        routes.publish(redis, A)
        feed = RoutesFeed(redis_async, hold_s=0.2)
        await feed.answer("one", never)
        redis.flushall()
        assert await feed.answer("one", never) == document((A,))
        routes.sync(redis, [B])
        assert await feed.answer("one", never) == document((B,))

    async def test_a_client_that_leaves_is_let_go(self, redis: Redis, redis_async: AsyncRedis) -> None:
        routes.publish(redis, A)
        feed = RoutesFeed(redis_async, hold_s=20)
        await feed.answer("one", never)

        async def leaves() -> Any:
            return {"type": "http.disconnect"}

        assert await asyncio.wait_for(feed.answer("one", leaves), 2) is None

    async def test_without_a_store_there_is_nothing_to_say(self) -> None:
        async with AsyncRedis.from_url(f"redis://127.0.0.1:{free_port()}", retry=None) as nowhere:
            assert await RoutesFeed(nowhere, hold_s=0.3).answer("one", never) is None


@pytest.mark.engine
class TestViews:
    def test_an_older_revision_does_not_replace_a_newer_one(self, redis: Redis) -> None:
        assert workspace_views.put(redis, view(revision=2, state="stopped"))
        assert not workspace_views.put(redis, view(revision=1))
        assert workspace_views.decode(redis.get(workspace_views.key(WS_A))) == view(
            revision=2, state="stopped"
        )
        assert workspace_views.put(redis, view(revision=2, state="failed"))
        assert 0 < redis.ttl(workspace_views.key(WS_A)) <= workspace_views.VIEW_TTL_S
        workspace_views.drop(redis, WS_A)
        assert workspace_views.put(redis, view(revision=1))

    async def test_healing_does_not_replace_what_was_written_meanwhile(
        self, redis: Redis, redis_async: AsyncRedis
    ) -> None:
        workspace_views.put(redis, view(state="stopped", revision=2))
        await workspace_views.heal(redis_async, view())
        found = workspace_views.decode(redis.get(workspace_views.key(WS_A)))
        assert found is not None
        assert found.state == "stopped"

    def test_a_damaged_view_is_replaced(self, redis: Redis) -> None:
        redis.set(workspace_views.key(WS_A), "not json")
        assert workspace_views.put(redis, view())
        assert workspace_views.decode(redis.get(workspace_views.key(WS_A))) == view()


@pytest.mark.parametrize("data", [None, b"", b"{}", b'{"external_name":"x"}'])
def test_a_damaged_view_is_none(data: bytes | None) -> None:
    assert workspace_views.decode(data) is None


@pytest.mark.parametrize("headers", [{"Host": "x"}, {"Authorization": "a\r\nb"}, {"Cookie": ""}])
def test_only_the_two_headers_can_be_set_upstream(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="upstream header"):
        view(upstream_headers=headers)


def test_the_secret_stays_out_of_the_representation() -> None:
    assert "upstream-secret" not in repr(view())
