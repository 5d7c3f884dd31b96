"""Heartbeat of every Celery process, stored in Redis, so that a health check is one cheap read.

`celery inspect ping` would use the same broker and wait its full timeout for missing processes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from typing import Any

import redis
from celery import Celery, bootsteps

from provisioning import node_users, redis_client
from provisioning.celery_config import KEY_PREFIX, node_queue

log = logging.getLogger(__name__)

HEARTBEAT_KEY = f"{KEY_PREFIX}heartbeat"
"""A hash of the control plane: process name (`control@host`) → JSON `{"at": Unix time, "pid": …}`.

Each node has a hash of its own with one entry, `node@name`: it must not change those of others."""
HEARTBEAT_INTERVAL_S = 5.0
HEARTBEAT_LATE_S = 20.0
"""A process without a heartbeat for this long counts as not responding."""


def key_of(name: str) -> str:
    """Return the hash in which the process `name` has its heartbeat."""
    role, _, host = name.partition("@")
    return f"{KEY_PREFIX}{node_queue(host)}:heartbeat" if role == "node" else HEARTBEAT_KEY


class Heartbeat:
    """Writes one process's heartbeat. If Redis is unavailable, the heartbeat is late, as intended."""

    def __init__(self, broker_url: str, name: str) -> None:
        self._name = name
        self._client = redis_client.client(broker_url, socket_timeout=2, socket_connect_timeout=2)

    def write(self) -> None:
        """Write the heartbeat now."""
        value = json.dumps({"at": time.time(), "pid": os.getpid()})
        try:
            self._client.hset(key_of(self._name), self._name, value)
        except (redis.RedisError, OSError) as error:
            log.warning("could not send heartbeat: %s", error)

    def withdraw(self) -> None:
        """Delete the heartbeat, because this process ends on purpose."""
        try:
            self._client.hdel(key_of(self._name), self._name)
            self._client.close()
        except (redis.RedisError, OSError) as error:
            log.debug("could not remove heartbeat: %s", error)


class HeartbeatStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Writes the heartbeat from the worker's event loop while it consumes, so a blocked loop writes none."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._timer: Any = None
        self._heartbeat: Heartbeat | None = None

    def start(self, consumer: Any) -> None:
        self._heartbeat = Heartbeat(consumer.app.conf.broker_url, consumer.hostname)
        self._heartbeat.write()
        self._timer = consumer.timer.call_repeatedly(HEARTBEAT_INTERVAL_S, self._heartbeat.write)

    def stop(self, _consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heartbeat is not None:
            self._heartbeat.withdraw()
            self._heartbeat = None

    shutdown = stop


def install(app: Celery) -> None:
    """Add a heartbeat to every worker of `app`."""
    app.steps["consumer"].add(HeartbeatStep)


def read(client: Any) -> dict[str, float]:
    """Return the time of the last heartbeat by process name. Raises `redis.RedisError`.

    Invalid entries are ignored. `client` has the rights of the control plane.
    """
    raw = client.hgetall(HEARTBEAT_KEY)
    heartbeats = {name.decode(): at for name, value in raw.items() if (at := _time_of(value)) is not None}
    nodes = [f"node@{node}" for node in node_users.names(client)]
    with client.pipeline(transaction=False) as pipe:
        for name in nodes:
            pipe.hget(key_of(name), name)
        values = pipe.execute(raise_on_error=False)
    return heartbeats | {
        name: at for name, value in zip(nodes, values, strict=True) if (at := _time_of(value)) is not None
    }


def _time_of(value: object) -> float | None:
    """Return the time of an entry, at most the current time; None if the entry is invalid."""
    try:
        at = min(float(json.loads(value)["at"]), time.time())  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return at if at > 0 else None


def is_fresh(broker_url: str, name: str) -> bool:
    """Return whether the process `name` has a recent heartbeat. Raises `redis.RedisError`."""
    with redis_client.client(broker_url, socket_timeout=2, socket_connect_timeout=2) as client:
        at = _time_of(client.hget(key_of(name), name))
    return time.time() - (at or 0.0) <= HEARTBEAT_LATE_S


def main(role: str) -> int:
    """Check the health of a container: `python -m provisioning.heartbeat control|node|beat`; 0 if healthy."""
    url = os.environ.get("BERTH_NODE_REDIS_URL" if role == "node" else "BERTH_REDIS_URL", "")
    name = f"{role}@{os.environ.get('BERTH_NODE_NAME') or socket.gethostname()}"
    try:
        is_alive = is_fresh(url, name)
    except (redis.RedisError, OSError, ValueError) as error:
        print(f"{name}: Redis does not answer ({type(error).__name__})", file=sys.stderr)
        return 1
    print(f"{name}: {'healthy' if is_alive else 'no recent heartbeat'}")
    return 0 if is_alive else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
