"""Rate limits, counted in Redis in fixed windows and shared by all processes.

Each check is one Redis command for all its windows. If Redis is unavailable, nothing is limited and Redis is
not asked again for some seconds: a limit must not take the portal down.

HTTP requests are too frequent for one command each. A process reserves a share of a window: a hundredth of
the remainder, at least 1 and at most 50 requests, and counts it locally. Reserved requests count as used, so
no client exceeds the limit. A user may be refused early by unused shares of other processes, less than a
hundredth of the limit per process (ADR 0037).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

import redis
from django.conf import settings

TIMEOUT_S = 0.25
OUTAGE_PAUSE_S = 5.0
PREFIX = "berth:rate:"
MINUTE_S = 60
HOUR_S = 3600

# Increment each key and start its window at the first use. Returns 0, or the seconds until all limits allow
# it.
_COUNT = """
local wait = 0
for i = 1, #KEYS do
  local n = redis.call('INCR', KEYS[i])
  local left = redis.call('TTL', KEYS[i])
  if left < 0 then
    redis.call('EXPIRE', KEYS[i], ARGV[2 * i])
    left = tonumber(ARGV[2 * i])
  end
  if n > tonumber(ARGV[2 * i - 1]) and left > wait then wait = left end
end
return wait
"""

# Reserve a share of one window and start the window at the first use. Returns the share, 0 if nothing is
# left, and the remaining milliseconds of the window.
_TAKE = """
local limit = tonumber(ARGV[1])
local left = redis.call('PTTL', KEYS[1])
local n = tonumber(redis.call('GET', KEYS[1]) or '0')
local share = 0
if n < limit then
  share = math.min(tonumber(ARGV[4]), math.max(1, math.floor((limit - n) / tonumber(ARGV[3]))))
  redis.call('INCRBY', KEYS[1], share)
end
if left < 0 then
  left = tonumber(ARGV[2]) * 1000
  redis.call('PEXPIRE', KEYS[1], left)
end
return {share, left}
"""
SHARES = 100
MAX_SHARE = 50
"""Maximum share. A share is the remainder divided by `SHARES`."""
_MAX_KEPT = 10_000

log = logging.getLogger(__name__)
_unavailable_until = 0.0
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Limit:
    """Up to `count` per `window_s` seconds. A count of 0 means no limit."""

    count: int
    window_s: int


@dataclass(slots=True)
class _Share:
    """Requests that this process may still admit until `until` (monotonic clock).

    `refuses` if none are left.
    """

    left: int
    until: float
    refuses: bool


# Shares of this process by subject and limit.
_shares: dict[tuple[str, int], _Share] = {}
# Keys for which a thread is currently reserving a share.
_reserving: set[tuple[str, int]] = set()


@lru_cache(maxsize=1)
def connection() -> redis.Redis:
    """Return the Redis client. After its timeouts, requests continue without it."""
    return redis.Redis.from_url(
        settings.BERTH_REDIS_URL, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
    )


def count(subject: str, *limits: Limit) -> int:
    """Count one use of `subject`, such as `starts:<user>`.

    Returns 0 if it is within all limits, else the number of seconds to wait.
    """
    enforced = [limit for limit in limits if limit.count > 0]
    if not enforced or time.monotonic() < _unavailable_until:
        return 0
    keys = [f"{PREFIX}{subject}:{limit.window_s}" for limit in enforced]
    values = [value for limit in enforced for value in (limit.count, limit.window_s)]
    try:
        waits: Any = connection().eval(_COUNT, len(keys), *keys, *map(str, values))
    except (redis.RedisError, OSError) as error:
        _pause_limits(error)
        return 0
    return int(waits)


def count_request(user_id: UUID | None, network: str) -> int:
    """Count a request of a user, or of an anonymous client by network. Returns the seconds to wait, or 0."""
    if user_id is not None:
        return _count_by_share(f"user:{user_id}", settings.BERTH_REQUESTS_PER_MINUTE)
    return _count_by_share(f"address:{network}", settings.BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS)


def policy_of_requests(user_id: UUID | None) -> str:
    """Return the `RateLimit-Policy` header for `count_request`, or "" without a limit."""
    name = "user" if user_id is not None else "address"
    limit = (
        settings.BERTH_REQUESTS_PER_MINUTE
        if user_id is not None
        else settings.BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS
    )
    return f'"{name}";q={limit};w={MINUTE_S}' if limit > 0 else ""


def _count_by_share(subject: str, limit: int) -> int:
    """Count in a window of one minute, with one Redis command per share.

    Returns the seconds to wait, or 0.
    """
    if limit <= 0:
        return 0
    key, now = (subject, limit), time.monotonic()
    with _lock:
        share = _shares.get(key)
        if share is not None and now < share.until:
            if share.left:
                share.left -= 1
                return 0
            if share.refuses:
                return _whole_seconds(share.until - now)
        # One thread reserves the next share. Concurrent threads reserve single requests.
        at_most = 1 if key in _reserving else MAX_SHARE
        if at_most > 1:
            _reserving.add(key)
    new_share = None
    try:
        new_share = _take(subject, limit, at_most)
    finally:
        with _lock:
            if at_most > 1:
                _reserving.discard(key)
            if new_share is not None:
                size, rest_s = new_share
                _keep_share(key, max(0, size - 1), now, now + rest_s, refuses=not size)
    if new_share is None or new_share[0]:
        return 0
    return _whole_seconds(new_share[1])


def _keep_share(key: tuple[str, int], left: int, now: float, until: float, *, refuses: bool) -> None:
    """Add to the existing share if it belongs to the current window."""
    present = _shares.get(key)
    if present is not None and now < present.until:
        left += present.left
    elif len(_shares) >= _MAX_KEPT:
        _shares.clear()
    _shares[key] = _Share(left, until, refuses)


def _take(subject: str, limit: int, at_most: int) -> tuple[int, float] | None:
    """Reserve a share. Returns its size and the seconds left in the window; None if Redis is unavailable."""
    if time.monotonic() < _unavailable_until:
        return None
    key = f"{PREFIX}{subject}:{MINUTE_S}"
    try:
        share: Any = connection().eval(_TAKE, 1, key, *map(str, (limit, MINUTE_S, SHARES, at_most)))
    except (redis.RedisError, OSError) as error:
        _pause_limits(error)
        return None
    return int(share[0]), int(share[1]) / 1000


def _whole_seconds(rest_s: float) -> int:
    return max(1, math.ceil(rest_s))


def _pause_limits(error: Exception) -> None:
    global _unavailable_until
    _unavailable_until = time.monotonic() + OUTAGE_PAUSE_S
    log.warning("Redis unavailable; rate limits are off: %s", error)
