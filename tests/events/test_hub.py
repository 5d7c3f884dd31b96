"""The hub on a real Redis: one shared connection, slow readers, unsubscribing and failures."""

from __future__ import annotations

import asyncio
import signal
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from portal.common.events import hub, live
from tests.workspaces.gateway.gateway_support import free_port, redis, redis_url, valkey

__all__ = ["redis", "redis_url"]
pytestmark = pytest.mark.engine


async def until(holds: Any, timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.01)


def connections(store: Redis) -> int:
    return sum(client["name"] == hub.CLIENT_NAME for client in store.client_list())


def channels(store: Redis) -> set[str]:
    return {name.decode() for name in store.pubsub_channels()}


@pytest.fixture
async def confirmed(redis_url: str, redis: Redis) -> AsyncIterator[hub.Subscription]:
    """A subscribed reader of the channel `a`."""
    with hub.current(redis_url).subscribe("a") as subscription:
        assert await subscription.wait(10)
        assert subscription.connected
        yield subscription
    await until(lambda: connections(redis) == 0)


async def test_many_readers_share_one_connection(redis_url: str, redis: Redis) -> None:
    readers = [hub.current(redis_url).subscribe(f"channel {n % 50}") for n in range(200)]
    assert all(await asyncio.gather(*(reader.wait(10) for reader in readers)))
    assert connections(redis) == 1
    assert len(channels(redis)) == 50

    redis.publish("channel 7", "x")
    assert all(await asyncio.gather(*(readers[n].wait(10) for n in (7, 57, 107, 157))))
    assert not any(await asyncio.gather(*(reader.wait(0.5) for reader in readers))), "nobody else heard"

    for reader in readers[:199]:
        hub.current(redis_url).unsubscribe(reader)
    await until(lambda: channels(redis) == {"channel 49"})
    hub.current(redis_url).unsubscribe(readers[199])
    await until(lambda: connections(redis) == 0)


async def test_second_reader_gets_later_messages(
    confirmed: hub.Subscription, redis_url: str, redis: Redis
) -> None:
    with hub.current(redis_url).subscribe("a") as second:
        redis.publish("a", "x")
        assert await second.wait(10)
        assert await confirmed.wait(10)


async def test_resubscribed_channel_gets_messages(
    confirmed: hub.Subscription, redis_url: str, redis: Redis
) -> None:
    for _ in range(20):
        with hub.current(redis_url).subscribe("b"):
            await asyncio.sleep(0)
    with hub.current(redis_url).subscribe("b") as again:
        await until(lambda: "b" in channels(redis))
        await again.wait(0.5)
        redis.publish("b", "x")
        assert await again.wait(10)
    await until(lambda: channels(redis) == {"a"})


async def test_many_messages_are_one_hint_for_a_slow_reader(
    confirmed: hub.Subscription, redis_url: str, redis: Redis
) -> None:
    with hub.current(redis_url).subscribe("last") as last:
        assert await last.wait(10)
        with redis.pipeline(transaction=False) as pipe:
            for _ in range(5000):
                pipe.publish("a", "x")
            pipe.publish("last", "x")
            pipe.execute()
        assert await last.wait(20)
    assert await confirmed.wait(1)
    assert not await confirmed.wait(0.2)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "RETRY_MAX_S", 0.3)
    monkeypatch.setattr(live, "POLL_S", 0.05)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def hinted_url(port: int, settings: Any, quick: None) -> Iterator[str]:
    settings.BERTH_REDIS_URL = f"redis://127.0.0.1:{port}/0"
    yield settings.BERTH_REDIS_URL


async def test_readers_poll_while_redis_is_unreachable(hinted_url: str, port: int, tmp_path: Path) -> None:
    hints = live.hints("a")
    assert [await anext(hints) for _ in range(3)] == [True, True, True]
    with valkey(tmp_path, port), Redis.from_url(hinted_url) as store:
        own = hub.current(hinted_url)
        await until(lambda: own.connected)
        await asyncio.wait_for(anext(hints), 10)
        store.publish("a", "x")
        async with asyncio.timeout(5):
            assert await anext(hints)

    # Redis has ended: every reader wakes and polls from now on.
    assert [await asyncio.wait_for(anext(hints), 5) for _ in range(3)] == [True, True, True]
    assert not own.connected

    with valkey(tmp_path, port), Redis.from_url(hinted_url) as store:
        await until(lambda: own.connected)
        assert connections(store) == 1
        with own.subscribe("a") as other:
            assert not await other.wait(0.3), "the channel was confirmed before"
            store.publish("a", "x")
            assert await other.wait(5)
        await hints.aclose()
        await until(lambda: connections(store) == 0)


@pytest.mark.thorough("waits for a silence")
async def test_silent_connection_is_closed(
    hinted_url: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SILENT_S", 3.0)
    monkeypatch.setattr(hub, "PING_S", 0.1)
    with valkey(tmp_path, port) as process, hub.current(hinted_url).subscribe("a") as subscription:
        assert await subscription.wait(10)
        # Answered pings keep the connection.
        assert not await subscription.wait(1.5 * hub.SILENT_S)
        assert subscription.connected
        process.send_signal(signal.SIGSTOP)
        try:
            assert await subscription.wait(20)
            assert not subscription.connected
        finally:
            process.send_signal(signal.SIGCONT)
        await until(lambda: subscription.connected)


async def test_hints_distinguish_silence_from_a_lost_connection(
    redis_url: str, redis: Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.BERTH_REDIS_URL = redis_url
    monkeypatch.setattr(live, "POLL_S", 60.0)  # no poll before the channel is subscribed
    hints = live.hints("a", every_s=0.1)
    # The first poll, and the one after the channel was confirmed.
    assert [await anext(hints) for _ in range(4)] == [True, True, False, False]
    await hints.aclose()
    await until(lambda: connections(redis) == 0)


async def test_measurements_are_not_change_hints(redis_url: str, redis: Redis, settings: Any) -> None:
    """Open pages reload their plots only."""
    settings.BERTH_REDIS_URL = redis_url
    hints = live.hints("a", measured=True, every_s=0.1)
    await anext(hints)
    own = hub.current(redis_url)
    await until(lambda: own.connected and channels(redis) == {"a", live.MEASURED_CHANNEL})
    while await anext(hints):
        pass
    for channel, hint in ((live.MEASURED_CHANNEL, live.Hint.MEASURED), ("a", live.Hint.CHANGED)):
        redis.publish(channel, "x")
        async with asyncio.timeout(20):
            while not (heard := await anext(hints)):
                pass
        assert heard == hint
    await hints.aclose()


def test_each_event_loop_has_its_own_hub(redis_url: str, redis: Redis) -> None:
    both = threading.Barrier(2)
    seen: list[int] = []

    async def read() -> None:
        with hub.current(redis_url).subscribe("a") as subscription:
            assert await subscription.wait(10)
            await asyncio.to_thread(both.wait, 10)
            seen.append(connections(redis))
            await asyncio.to_thread(both.wait, 10)
            redis.publish("a", "x")
            assert await subscription.wait(10)

    threads = [threading.Thread(target=asyncio.run, args=(read(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == [2, 2]
    assert connections(redis) == 0

    async def later() -> None:
        hub.current(redis_url)
        assert not any(loop.is_closed() for loop, _ in hub._hubs), "loops that have ended are forgotten"

    asyncio.run(later())


async def test_stream_ends_when_the_account_changes(redis_url: str, redis: Redis, settings: Any) -> None:
    """By a message only; subscribing and lost connections end no stream."""
    settings.BERTH_REDIS_URL = redis_url
    user = uuid.uuid4()
    ended = live.account_channel(user)
    seen: list[bool] = []

    async def read() -> None:
        async for hinted in live.hints("a", ends_with=ended):
            seen.append(hinted)

    reading = asyncio.create_task(read())
    await until(lambda: channels(redis) == {"a", ended} and len(seen) > 1)
    redis.publish("a", "x")
    before = len(seen)
    await until(lambda: len(seen) > before)
    assert not reading.done()
    redis.publish(ended, "account")
    await asyncio.wait_for(reading, 5)
    await until(lambda: connections(redis) == 0)
