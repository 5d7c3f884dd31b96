"""Counts refused exchanges, to bound the audit log and slow down clients that repeat them.

Valid exchanges are never limited, so no client can lock out a pipeline behind the same address. Refusals of
verified tokens are counted by rule and identity, those during an outage of an issuer by issuer, all others by
address. Counted in Redis; while it is
unavailable, in this process only.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from dataclasses import dataclass

import redis

from portal.common.events import live
from portal.people.accounts.limits import network_of

MAX_REFUSALS = 30
WINDOW_S = 600
_KEY = "berth:acc:exchange-refusals:"
_MAX_KEPT = 4096

log = logging.getLogger(__name__)
_local_counts: dict[str, tuple[float, int]] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Refusals:
    """Number of refusals in the current window, including this one, and the seconds until it ends."""

    count: int
    window_left_s: int

    @property
    def last_recorded(self) -> bool:
        return self.count == MAX_REFUSALS

    @property
    def retry_after_s(self) -> int:
        """Seconds to wait above the limit, or 0."""
        return self.window_left_s if self.count > MAX_REFUSALS else 0


def address_key(address: str) -> str:
    """Return the key of an address, for tokens whose sender is not proven."""
    return f"address:{network_of(address)}"


def identity_key(rule: str, issuer: str, subject: str) -> str:
    """Return the key of a verified identity under a rule. `rule` is empty if none matches."""
    identity = f"{rule}\n{issuer}\n{subject}"
    return f"identity:{hashlib.sha256(identity.encode()).hexdigest()}"


def outage_key(issuer: str) -> str:
    """Return the key of an allowed issuer whose signing keys are unavailable."""
    return f"outage:{hashlib.sha256(issuer.encode()).hexdigest()}"


def count(key: str) -> Refusals:
    """Count a refusal under `key`."""
    try:
        with live.connection().pipeline(transaction=True) as pipe:
            pipe.incr(_KEY + key)
            pipe.expire(_KEY + key, WINDOW_S, nx=True)
            pipe.ttl(_KEY + key)
            number, _set, left_s = pipe.execute()
            return Refusals(int(number), max(1, int(left_s)))
    except redis.RedisError as error:
        log.warning("counting rejected token exchange in this process only: %s", error)
        return _count_locally(key)


def _count_locally(key: str) -> Refusals:
    now = time.monotonic()
    with _lock:
        began, number = _local_counts.get(key, (now, 0))
        if now - began >= WINDOW_S:
            began, number = now, 0
        if len(_local_counts) >= _MAX_KEPT and key not in _local_counts:
            _local_counts.clear()
        _local_counts[key] = (began, number + 1)
        return Refusals(number + 1, max(1, round(WINDOW_S - (now - began))))
