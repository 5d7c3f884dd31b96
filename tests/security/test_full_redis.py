"""Attack: a node fills the shared Redis, to lose sessions and commands. With real servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import AuthenticationError, OutOfMemoryError, RedisError

from portal.common.events.models import Notification
from portal.embedded import configs, health
from portal.embedded.environment import Instance
from portal.embedded.redis_door import BURST_BYTES, BYTES_PER_S, Allowance
from portal.fleet.machines import redis_guard, redis_users, tasks
from portal.workspaces.gateway import tickets, workspace_views
from provisioning import node_users
from provisioning.celery_config import outbox
from tests.ports import free_port
from tests.workspaces.gateway.gateway_support import WS_A, eventually, running, valkey_binary, view

MIB = 1 << 20
LIMIT_MIB = 24
SMALL = {"maxmemory 256mb": f"maxmemory {LIMIT_MIB}mb", "maxmemory-clients 64mb": "maxmemory-clients 6mb"}
"""The server of the tests is smaller than the real one, so that it is full within a moment."""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder, number = tmp_path_factory.mktemp("redis"), free_port()
    instance = Instance.from_environ({"BERTH_HOME": str(folder), "BERTH_REDIS_PORT": str(number)})
    for path in (instance.run_dir, instance.redis_dir):
        path.mkdir(parents=True, exist_ok=True)
    text = configs.redis_conf(instance)
    for full, small in SMALL.items():
        assert full in text
        text = text.replace(full, small)
    (folder / "redis.conf").write_text(text)
    nodes = [configs.RedisNode(name, f"secret-{name}") for name in ("a", "b")]
    (instance.run_dir / "redis.acl").write_text(configs.redis_acl("secret-control", nodes))
    argv = [valkey_binary(), str(folder / "redis.conf")]
    with running(argv, ready="Ready to accept connections", log=folder / "redis.log"):
        yield number


def as_user(port: int, name: str) -> Redis:
    password = f"secret-{name.removeprefix('node-')}"
    return Redis(port=port, username=name, password=password, retry=None)  # type: ignore[arg-type]


@pytest.fixture
def control(port: int, settings: Any) -> Iterator[Redis]:
    settings.BERTH_REDIS_URL = f"redis://control:secret-control@127.0.0.1:{port}/0"
    settings.BERTH_ENGINE_NODES = []
    with as_user(port, "control") as client:
        # Valkey would otherwise free memory in the background, and some tests measure it.
        client.execute_command("FLUSHALL", "SYNC")
        for name in ("a", "b"):
            client.execute_command("ACL", "SETUSER", f"node-{name}", "on")
        yield client


@pytest.fixture
def node(port: int, control: Redis) -> Iterator[Redis]:
    with as_user(port, "node-a") as client:
        yield client


def big_messages(node: Redis) -> None:
    while True:
        node.lpush("berth:q:control.node.a", b"x" * MIB)


def small_messages(node: Redis) -> None:
    while True:
        node.lpush("berth:q:control.node.a", *[b"{}" + b" " * 30] * 10_000)


def own_queue(node: Redis) -> None:
    while True:
        node.rpush("berth:q:node.a", b"x" * MIB)


def held_messages(node: Redis) -> None:
    number = 0
    while True:
        number += 1
        node.hset("berth:q:node.a:unacked", str(number), b"x" * MIB)


def many_replies(node: Redis) -> None:
    number = 0
    while True:
        pipe = node.pipeline(transaction=False)
        for _ in range(2000):
            number += 1
            pipe.rpush(f"berth:reply:node.a:\xff{number}", b"x" * 20)
        pipe.execute()


def many_samples(node: Redis) -> None:
    number = 0
    while True:
        number += 1
        node.hset("berth:q:node.a:samples", f"GPU-{number}", b"x" * MIB)


FLOODS = [big_messages, small_messages, own_queue, held_messages, many_replies, many_samples]


class Guarded:
    """The guard without its thread, with recorded reports."""

    def __init__(self, client: Redis) -> None:
        self.reports: list[dict[str, Any]] = []
        self.guard = redis_guard.Guard(client, self.reports.append)


@pytest.mark.engine
@pytest.mark.parametrize("flood", FLOODS)
def test_sessions_survive_and_the_node_is_paused(control: Redis, node: Redis, port: int, flood: Any) -> None:
    session = tickets.SESSION_PREFIX + "x"
    control.set(session, "somebody", ex=3600)
    ticket = tickets.issue(control, external_name=WS_A, user_id="7")
    # The first key to expire is evicted first, but must not expire on a slow machine.
    control.expire(tickets.ticket_key(ticket), 1800)
    with as_user(port, "node-b") as other:
        other.lpush("berth:q:control.node.b", "of b")
        with pytest.raises(OutOfMemoryError):
            flood(node)
        assert control.get(session) == b"somebody", "nothing is evicted"
        assert health._store()[0].detail.startswith("full: ")

        guarded = Guarded(control)
        guarded.guard.check()
        (report,) = guarded.reports
        assert report["node"] == "a"
        assert report["limit_mib"] == LIMIT_MIB
        # Redis frees memory in the background.
        eventually(lambda: not redis_guard.memory(control).exceeds(redis_guard.NODES_SHARE) or None)
        assert health._store()[0].ok
        assert health._nodes({}).detail == "a: blocked for 60 s after filling Redis"
        with pytest.raises(RedisError):
            node.lpush("berth:q:control.node.a", "more")
        with as_user(port, "node-a") as again, pytest.raises(AuthenticationError):
            again.ping()
        assert control.get(session) == b"somebody"
        assert control.exists(tickets.ticket_key(ticket))
        assert control.lrange("berth:q:control.node.b", 0, -1) == [b"of b"]
        other.lpush("berth:q:control.node.b", "more of b")


def pause(client: Redis, name: str) -> None:
    redis_users.refuse(client, name)
    redis_users.set_refusal_period(client, name, for_s=60)


@pytest.mark.engine
def test_pause_of_a_node_ends(control: Redis, port: int) -> None:
    pause(control, "a")
    guarded = Guarded(control)
    guarded.guard.check()
    assert redis_users.refused_nodes(control) == {"a"}
    control.delete("berth:paused:a")
    guarded.guard.check()
    assert redis_users.refused_nodes(control) == set()
    with as_user(port, "node-a") as again:
        assert again.ping()


@pytest.mark.engine
def test_node_revoked_during_its_pause_is_not_restored(control: Redis) -> None:
    control.execute_command("ACL", "SETUSER", "node-gone", "on", ">x")
    pause(control, "gone")
    guarded = Guarded(control)
    guarded.guard.check()
    control.execute_command("ACL", "DELUSER", "node-gone")
    control.delete("berth:paused:gone")
    guarded.guard.check()
    assert "gone" not in node_users.names(control)


@pytest.mark.engine
def test_memory_not_used_by_a_node_is_reported(control: Redis) -> None:
    for number in range(20):
        control.set(f"berth:gw:{number}", b"x" * MIB)
    guarded = Guarded(control)
    guarded.guard.check()
    guarded.guard.check()
    assert [report["node"] for report in guarded.reports] == [""]
    assert control.strlen("berth:gw:19") == MIB
    assert not redis_users.refused_nodes(control)


@pytest.mark.engine
async def test_users_sign_in_and_out_while_redis_is_full(control: Redis, port: int) -> None:
    """Nothing can be stored: views are read from the database, and ended sessions are deleted."""
    old = view(external_name=WS_A, user_ids=frozenset({"7"}))
    assert workspace_views.store_view(control, old)
    ticket = tickets.issue(control, external_name=WS_A, user_id="7")
    async with AsyncRedis(port=port, username="control", password="secret-control") as store:
        cookie = await tickets.exchange(store, ticket=ticket, external_name=WS_A)
        assert cookie
        fill(control)
        assert tickets.decode_session(await store.get(tickets.session_key(cookie)))
        await store.expire(tickets.session_key(cookie), 100)
        assert workspace_views.store_view(control, replace(old, user_ids=frozenset(), revision=1))
        assert not control.exists(workspace_views.key(WS_A)), "not the old one"
        fill(control)
        await workspace_views.heal(store, old)
        assert tickets.revoke_user(control, "7") == 1
        assert not await store.exists(tickets.session_key(cookie))


def fill(control: Redis) -> None:
    """Use all memory."""
    for size in (MIB, 1000, 1):
        with pytest.raises(OutOfMemoryError):
            while True:
                control.set(f"berth:gw:fill-{uuid.uuid4()}", "x" * size)


@pytest.mark.engine
def test_endless_command_uses_little_memory(control: Redis, port: int) -> None:
    """Bytes of an unfinished command count as memory."""
    with as_user(port, "node-a") as client:
        connection = client.connection_pool.get_connection()
        sock = connection._sock
        with pytest.raises(OSError):
            sock.sendall(b"*3\r\n$5\r\nLPUSH\r\n$22\r\nberth:q:control.node.a\r\n$100000000\r\n")
            for _ in range(200):
                sock.sendall(b"x" * MIB)
        connection.disconnect()
    assert redis_guard.memory(control).used < LIMIT_MIB * MIB / 2


@pytest.mark.django_db
def test_operators_see_the_responsible_node(olga: Any) -> None:
    for node in ("gpu-1", "gpu-1", ""):
        tasks.redis_pressure.run(used_mib=200, limit_mib=256, node=node)
    titles = sorted(Notification.objects.filter(user=olga).values_list("title", flat=True))
    assert titles == ["Redis is nearly full", "gpu-1 used up Redis's memory"]


def test_only_the_control_plane_reports_pressure() -> None:
    assert not tasks.redis_pressure.from_nodes


def test_bytes_per_second_of_a_node_are_limited() -> None:
    allowance = Allowance(at=0.0)
    assert allowance.consume(BURST_BYTES, now=0.0) == 0
    assert allowance.consume(BYTES_PER_S, now=0.0) == pytest.approx(1.0)
    assert allowance.consume(BYTES_PER_S, now=2.0) == 0
    assert allowance.consume(0, now=1e6) == 0
    assert allowance.consume(BURST_BYTES + BYTES_PER_S, now=1e6) == pytest.approx(1.0), "no more is saved up"


@pytest.mark.engine
def test_nodes_are_served_in_turn(control: Redis, port: int) -> None:
    """A control plane worker runs a message of another node although one has sent thousands."""
    from tests.security.test_malformed_envelopes import worker_app

    app = worker_app(f"redis://control:secret-control@127.0.0.1:{port}/0")
    control.lpush("berth:q:" + outbox("a"), *["junk"] * 5000)
    control.lpush("berth:q:" + outbox("b"), "junk")
    dropped: list[str] = []
    app.conf.broker_transport_options["on_undecodable"] = lambda queue, _: dropped.append(queue)
    with app.connection_for_read() as connection, connection.channel() as channel:
        channel.basic_consume("control", False, lambda _: None, "tag")
        for _ in range(4):
            connection.drain_events(timeout=5)
    assert outbox("b") in dropped
