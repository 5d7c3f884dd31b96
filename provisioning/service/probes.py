"""Fast readiness probes of services. They return False instead of raising."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from typing import Any

PROBE_TIMEOUT_S = 1.0


def http_status(port: int, path: str, *, host: str | None = None, address: str = "127.0.0.1") -> int:
    """Return the status of one GET request, or 0 if there was no answer in time."""
    connection = http.client.HTTPConnection(address, port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Host": host} if host else {})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def port_open(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether the port accepts connections."""
    try:
        with socket.create_connection((address, port), timeout=PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False


def redis_client(url: str) -> Any:
    """Return a client that fails fast."""
    # Imported here: the library is missing before `make up` has run.
    from provisioning import redis_client as clients

    return clients.client(
        url, socket_timeout=PROBE_TIMEOUT_S, socket_connect_timeout=PROBE_TIMEOUT_S, retry=None
    )


def redis_answers(url: str) -> Callable[[float], bool]:
    """Return a probe that is true once Redis has loaded its data and accepts commands."""

    def probe(_: float) -> bool:
        # Imported here, as above.
        import redis

        try:
            with redis_client(url) as client:
                return bool(client.ping())
        except (redis.RedisError, OSError):
            return False

    return probe


def heartbeat_since(url: str, key: str, name: str) -> Callable[[float], bool]:
    """Return a probe that is true if the process `name` has sent a heartbeat since its start."""

    def probe(started_at: float) -> bool:
        # Imported here, as above.
        import redis

        try:
            with redis_client(url) as client:
                raw = client.hget(key, name)
            return raw is not None and float(json.loads(raw)["at"]) >= started_at
        except (redis.RedisError, OSError, ValueError, KeyError, TypeError):
            return False

    return probe
