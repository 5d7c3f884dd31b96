"""Quick questions to a service: does it answer? Each returns False rather than raising."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from typing import Any

PROBE_TIMEOUT_S = 1.0


def http_status(port: int, path: str, *, host: str | None = None, address: str = "127.0.0.1") -> int:
    """The status of one GET, or 0 when nothing answered in time."""
    connection = http.client.HTTPConnection(address, port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Host": host} if host else {})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def port_open(port: int, address: str = "127.0.0.1") -> bool:
    """Whether something takes connections on the port."""
    try:
        with socket.create_connection((address, port), timeout=PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False


def redis_client(url: str) -> Any:
    """A client that fails fast. The library is imported here: it is not there before `make up` made it."""
    from provisioning import redis_client as clients

    return clients.client(
        url, socket_timeout=PROBE_TIMEOUT_S, socket_connect_timeout=PROBE_TIMEOUT_S, retry=None
    )


def redis_answers(url: str) -> Callable[[float], bool]:
    """A probe that is true when Redis has loaded its data and takes commands."""

    def probe(_: float) -> bool:
        import redis

        try:
            with redis_client(url) as client:
                return bool(client.ping())
        except (redis.RedisError, OSError):
            return False

    return probe


def pulse_since(url: str, key: str, name: str) -> Callable[[float], bool]:
    """A probe that is true when the process `name` has shown a pulse since it was started."""

    def probe(started_at: float) -> bool:
        import redis

        try:
            with redis_client(url) as client:
                raw = client.hget(key, name)
            return raw is not None and float(json.loads(raw)["at"]) >= started_at
        except (redis.RedisError, OSError, ValueError, KeyError, TypeError):
            return False

    return probe
