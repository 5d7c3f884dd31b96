"""Limits refused exchanges per address, to slow down guessing and protect the audit log.

Counted in Redis. While it is unavailable, counted in this process only.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from typing import Any

import redis

from portal.common.events import live

MAX_REFUSALS = 30
WINDOW_S = 600
_KEY = "berth:acc:exchange-refusals:"
_MAX_KEPT = 4096

log = logging.getLogger(__name__)
_here: dict[str, tuple[float, int]] = {}
_lock = threading.Lock()


def blocked(address: str) -> bool:
    """Return whether this address has reached the limit of refusals."""
    key = _network(address)
    try:
        count: Any = live.connection().get(_KEY + key)
        return int(count or 0) >= MAX_REFUSALS
    except redis.RedisError:
        began, count = _here.get(key, (0.0, 0))
        return count >= MAX_REFUSALS and time.monotonic() - began < WINDOW_S


def refused(address: str) -> int:
    """Count a refusal. Returns the number in the current window."""
    key = _network(address)
    try:
        with live.connection().pipeline(transaction=True) as pipe:
            pipe.incr(_KEY + key)
            pipe.expire(_KEY + key, WINDOW_S, nx=True)
            return int(pipe.execute()[0])
    except redis.RedisError as error:
        log.warning("a refused token exchange is counted in this process only: %s", error)
        return _count_locally(key)


def _count_locally(key: str) -> int:
    now = time.monotonic()
    with _lock:
        began, count = _here.get(key, (now, 0))
        if now - began >= WINDOW_S:
            began, count = now, 0
        if len(_here) >= _MAX_KEPT and key not in _here:
            _here.clear()
        _here[key] = (began, count + 1)
        return count + 1


def _network(address: str) -> str:
    """Return the key of an address: the IPv4 address, or the /64 network of an IPv6 address."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if ip.version == 4:
        return str(ip)
    return str(ipaddress.ip_network(f"{ip}/64", strict=False).network_address)
