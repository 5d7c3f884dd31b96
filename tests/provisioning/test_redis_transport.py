"""A worker whose acknowledgements were lost with the connection fetches messages once Redis is back."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from kombu import Connection
from redis.exceptions import ConnectionError as RedisAway

from portal.celery import app as control_app
from provisioning import redis_transport
from provisioning.celery_config import KEY_PREFIX
from provisioning.node.worker import app as node_app
from tests.security.test_malformed_envelopes import QUEUE, envelope, worker_app
from tests.workspaces.gateway.gateway_support import redis, redis_url  # noqa: F401

TAGS = ("one", "two")


@pytest.fixture
def full_worker(monkeypatch):
    """A worker with a limit of two messages that holds two while Redis is unavailable."""

    def away(*args, **kwargs):
        raise RedisAway

    qos = redis_transport.QoS(SimpleNamespace(), prefetch_count=len(TAGS))
    for tag in TAGS:
        qos._quick_append(tag, SimpleNamespace())
    monkeypatch.setattr(qos, "_remove_from_indices", away)
    monkeypatch.setattr(qos, "restore_by_tag", away)
    yield qos
    qos._flush()
    qos._on_collect.cancel()


@pytest.mark.parametrize("answer", ["ack", "reject", "requeue"])
def test_failed_answer_releases_the_message(full_worker, answer):
    assert not full_worker.can_consume()
    for tag in TAGS:
        with pytest.raises(RedisAway):
            full_worker.ack(tag) if answer == "ack" else full_worker.reject(tag, requeue=answer == "requeue")
    assert full_worker.can_consume()


@pytest.mark.parametrize("app", [control_app, node_app])
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_both_planes_use_the_redis_transport(app, scheme):
    with Connection(f"{scheme}://127.0.0.1:1/0") as connection:
        assert connection.get_transport_cls() is redis_transport.Transport
    with app.connection_for_read() as connection:
        assert connection.get_transport_cls().Channel.QoS is redis_transport.QoS


@pytest.mark.engine
def test_messages_of_a_dead_worker_are_delivered_again(redis, redis_url):  # noqa: F811
    """The timer of the next worker has no message count."""
    app = worker_app(redis_url)
    redis.lpush(QUEUE, json.dumps(envelope()))
    with app.connection_for_read() as dead, dead.channel() as channel:
        channel.basic_consume("control", False, lambda _: None, "tag")
        dead.drain_events(timeout=10)
        index = KEY_PREFIX + channel.unacked_index_key
        (tag,) = redis.zrange(index, 0, -1)
        redis.zadd(index, {tag: 1})
        with app.connection_for_read() as alive, alive.channel() as other:
            redis.delete(KEY_PREFIX + other.unacked_mutex_key)  # like a normal exit
            assert redis.llen(QUEUE) == 0
            other.qos.restore_visible(num=other.unacked_restore_limit)
            assert redis.llen(QUEUE) == 1
            assert redis.zcard(index) == 0
