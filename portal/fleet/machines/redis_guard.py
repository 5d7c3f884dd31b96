"""Keeps room in Redis for the portal: nodes may use at most half of its memory.

Redis can limit neither the keys nor the bytes of a user. Each worker of the control plane therefore checks
Redis every second in a thread, which needs no queue and works while Redis is full. Above half, the messages
of the nodes that use the most are deleted, and these nodes are refused for a minute. Messages are only hints
(docs/adr/0001-redis-client-and-transport.md), so only time is lost.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import redis
from celery import bootsteps
from django.conf import settings

from portal.fleet.machines import redis_rules, redis_users
from provisioning import node_users
from provisioning.celery_config import ENGINE_QUEUE, KEY_PREFIX, REPLY_PREFIX

CHECK_EVERY_S = 1.0
NODES_SHARE = 0.5
NEARLY_FULL = 0.75
MIN_BYTES = 4 << 20
"""Messages of nodes that use less memory are never deleted."""
MAX_REPLIES = 20_000
"""Nodes with more messages exceed their share regardless of sizes, which would take too long to add up."""
PAUSE_S = 60
REPORT_EVERY_CHECKS = 60
PAGE = 1000
PRESSURE_TASK = "control.redis_pressure"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FloodingNode:
    """A node whose messages were deleted. `held_mib` is their size; None if there were too many."""

    node: str
    held_mib: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of Redis in bytes. A `limit` of 0 means no limit."""

    used: float
    limit: int

    @property
    def used_mib(self) -> int:
        return round(self.used / 2**20)

    def exceeds(self, share: float) -> bool:
        return bool(self.limit) and self.used > share * self.limit


def memory(client: redis.Redis) -> Memory:
    """Return the memory use and limit of Redis. Raises `RedisError`."""
    memory = cast("dict[str, Any]", client.info("memory"))
    return Memory(int(memory["used_memory"]), int(memory["maxmemory"]))


def delete_floods(client: redis.Redis) -> list[FloodingNode]:
    """Delete the messages of the largest nodes until nodes leave room for the portal; return these nodes.

    Raises `RedisError`.
    """
    floods: list[FloodingNode] = []
    left = memory(client)
    for name, held in _held(client).most_common():
        if held < MIN_BYTES or not left.exceeds(NODES_SHARE):
            break
        # Redis frees the memory in the background, so its own figure falls later.
        left = Memory(left.used - held, left.limit)
        nodes = settings.BERTH_ENGINE_NODES if name == ENGINE_QUEUE else [name]
        for node in nodes:
            redis_users.refuse(client, node)
        # Free memory first, because Redis may be too full to store the duration of the pause.
        _delete(client, name)
        for node in nodes:
            redis_users.set_refusal_period(client, node, for_s=PAUSE_S)
        floods.append(FloodingNode(name, None if math.isinf(held) else round(held / 2**20)))
    return floods


def _held(client: redis.Redis) -> Counter[str]:
    """Return the bytes that each node uses. Those of `engine` can belong to any engine worker's node."""
    sizes: defaultdict[str, float] = defaultdict(float)
    keys = [(name, key) for name in node_users.names(client) for key in redis_rules.keys_of(name)]
    keys.append((ENGINE_QUEUE, KEY_PREFIX + ENGINE_QUEUE))
    for first in range(0, len(keys), PAGE):
        _add_sizes(client, sizes, keys[first : first + PAGE])
    replies: Counter[str] = Counter()
    for reply in _replies(client):
        replies.update(name for name, _ in reply)
        _add_sizes(client, sizes, [item for item in reply if replies[item[0]] <= MAX_REPLIES])
    sizes.update((name, math.inf) for name, count in replies.items() if count > MAX_REPLIES)
    return Counter(sizes)


def _add_sizes(client: redis.Redis, sizes: defaultdict[str, float], keys: list[tuple[str, str]]) -> None:
    with client.pipeline(transaction=False) as pipe:
        for _name, key in keys:
            pipe.memory_usage(key, samples=0)
        for (name, _key), size in zip(keys, pipe.execute(), strict=True):
            sizes[name] += size or 0


def _replies(client: redis.Redis) -> Iterator[list[tuple[str, str]]]:
    """Yield pages of nodes and their reply keys."""
    cursor = 0
    while True:
        cursor, raw = cast("tuple[int, list[bytes]]", client.scan(cursor, f"{REPLY_PREFIX}*", PAGE))
        keys = [key.decode(errors="surrogateescape") for key in raw]
        yield [(key.split(":")[2].removeprefix("node."), key) for key in keys]
        if not cursor:
            return


def _delete(client: redis.Redis, name: str) -> None:
    """Delete everything that the node has written. Raises `RedisError`."""
    client.unlink(*(redis_rules.keys_of(name) if name != ENGINE_QUEUE else [KEY_PREFIX + ENGINE_QUEUE]))
    for reply in _replies(client):
        if keys := [key.encode(errors="surrogateescape") for node, key in reply if node == name]:
            client.unlink(*keys)


class Guard:
    """Checks Redis until stopped. `send` reports to the control plane's queue; it may fail."""

    def __init__(self, client: redis.Redis, send: Callable[[dict[str, Any]], object]) -> None:
        self._client = client
        self._send = send
        self._stopped = threading.Event()
        self._paused: set[str] | None = None
        self._quiet_checks = 0
        self._thread = threading.Thread(target=self._run, name="redis-guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(2)

    def _run(self) -> None:
        while not self._stopped.wait(CHECK_EVERY_S):
            try:
                self.check()
            except (redis.RedisError, OSError) as error:
                log.debug("could not check Redis: %s", error)

    def check(self) -> None:
        """Free memory in Redis if necessary, and end pauses. Raises `RedisError`."""
        if self._paused is None:
            self._paused = redis_users.refused_nodes(self._client)
        self._paused = {name for name in self._paused if not redis_users.resume(self._client, name)}
        before = memory(self._client)
        floods = delete_floods(self._client) if before.exceeds(NODES_SHARE) else []
        if floods:
            for flood in floods:
                self._paused |= redis_users.refused_nodes(self._client)
                log.warning(
                    "node %s filled Redis with %s MiB: deleted its messages, blocked it for %d s",
                    *(flood.node, "many" if flood.held_mib is None else flood.held_mib, PAUSE_S),
                )
                self._report(before, flood.node)
            return
        self._quiet_checks -= 1
        if before.exceeds(NEARLY_FULL) and self._quiet_checks < 0:
            self._quiet_checks = REPORT_EVERY_CHECKS
            log.warning("Redis is nearly full: %d of %d MiB", before.used_mib, before.limit >> 20)
            self._report(before, "")

    def _report(self, seen: Memory, node: str) -> None:
        try:
            self._send({"used_mib": seen.used_mib, "limit_mib": seen.limit >> 20, "node": node})
        except Exception as error:
            log.warning("could not report Redis memory: %s", error)


class GuardStep(bootsteps.StartStopStep):
    """Runs the guard in a worker of the control plane."""

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._guard: Guard | None = None

    def start(self, worker: Any) -> None:
        def send(pressure: dict[str, Any]) -> None:
            worker.app.send_task(PRESSURE_TASK, kwargs=pressure, expires=3600)

        self._guard = Guard(redis_users.connection(), send)
        self._guard.start()

    def stop(self, _worker: Any) -> None:
        if self._guard is not None:
            self._guard.stop()
            self._guard = None

    terminate = stop
