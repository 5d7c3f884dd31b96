"""How often somebody may do something: counted in Redis for all processes, in windows of fixed length.

Each question is one command to Redis, however many windows it is about. Where Redis is away nobody is
refused, and it is not asked again for some seconds: a limit must not be what ends the portal.

Requests are too many to ask Redis about each. A process takes a share of what is left of a window, a
hundredth, at least one request and at most 50, and counts within it by itself. What is taken counts as used
for all, so nobody gets more than the limit. Somebody may be refused before it, by what other processes have
taken and not used: less than a hundredth of the limit for each of them (ADR 0037).
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
AWAY_S = 5.0
PREFIX = "berth:rate:"
MINUTE_S = 60
HOUR_S = 3600

# For each key: count one more, and begin its window with the first. 0, or the seconds until all let it by.
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

# Take a share of what is left of one window, which begins with the first. How many, and the window's rest in
# milliseconds; a share of 0: there is nothing left.
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
"""A share is what is left, divided by `SHARES`, and no more than `MAX_SHARE`."""
_MAX_KEPT = 10_000

log = logging.getLogger(__name__)
_away_until = 0.0
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `count` in `window_s` seconds; 0: as many as one likes."""

    count: int
    window_s: int


@dataclass(slots=True)
class _Share:
    """What this process may still let by until a time of the monotonic clock, or that nothing is left."""

    left: int
    until: float
    refuses: bool


# What is counted and its limit → the share of this process.
_shares: dict[tuple[str, int], _Share] = {}
# For which of them a thread is just taking a share.
_taking: set[tuple[str, int]] = set()


@lru_cache(maxsize=1)
def connection() -> redis.Redis:
    """Redis, with time-outs after which a request goes on without it."""
    return redis.Redis.from_url(
        settings.BERTH_REDIS_URL, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
    )


def count(what: str, *limits: Limit) -> int:
    """Count one more of `what`, for instance `starts:<user>`.

    Returns 0 while all limits hold, or after how many seconds it may be tried again.
    """
    held = [limit for limit in limits if limit.count > 0]
    if not held or time.monotonic() < _away_until:
        return 0
    keys = [f"{PREFIX}{what}:{limit.window_s}" for limit in held]
    values = [value for limit in held for value in (limit.count, limit.window_s)]
    try:
        waits: Any = connection().eval(_COUNT, len(keys), *keys, *map(str, values))
    except (redis.RedisError, OSError) as error:
        _stay_away(error)
        return 0
    return int(waits)


def of_request(user_id: UUID | None, network: str) -> int:
    """Count a request of a user, or of nobody from a network; after how many seconds another one may come."""
    if user_id is not None:
        return _count_by_share(f"user:{user_id}", settings.BERTH_REQUESTS_PER_MINUTE)
    return _count_by_share(f"address:{network}", settings.BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS)


def policy_of_requests(user_id: UUID | None) -> str:
    """What `of_request` holds somebody to, as `RateLimit-Policy` says it; empty without a limit."""
    name = "user" if user_id is not None else "address"
    limit = (
        settings.BERTH_REQUESTS_PER_MINUTE
        if user_id is not None
        else settings.BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS
    )
    return f'"{name}";q={limit};w={MINUTE_S}' if limit > 0 else ""


def _count_by_share(what: str, limit: int) -> int:
    """`count` for a window of a minute, which asks Redis once for each share of it."""
    if limit <= 0:
        return 0
    key, now = (what, limit), time.monotonic()
    with _lock:
        share = _shares.get(key)
        if share is not None and now < share.until:
            if share.left:
                share.left -= 1
                return 0
            if share.refuses:
                return _whole_seconds(share.until - now)
        # One thread takes the next share; those that come meanwhile take what they need themselves.
        at_most = 1 if key in _taking else MAX_SHARE
        if at_most > 1:
            _taking.add(key)
    taken = None
    try:
        taken = _take(what, limit, at_most)
    finally:
        with _lock:
            if at_most > 1:
                _taking.discard(key)
            if taken is not None:
                size, rest_s = taken
                _keep(key, max(0, size - 1), now, now + rest_s, refuses=not size)
    if taken is None or taken[0]:
        return 0
    return _whole_seconds(taken[1])


def _keep(key: tuple[str, int], left: int, now: float, until: float, *, refuses: bool) -> None:
    """Add to the share that is there, if its window is the present one."""
    present = _shares.get(key)
    if present is not None and now < present.until:
        left += present.left
    elif len(_shares) >= _MAX_KEPT:
        _shares.clear()
    _shares[key] = _Share(left, until, refuses)


def _take(what: str, limit: int, at_most: int) -> tuple[int, float] | None:
    """A share of the present minute, and how many seconds that lasts; None where Redis is away."""
    if time.monotonic() < _away_until:
        return None
    key = f"{PREFIX}{what}:{MINUTE_S}"
    try:
        taken: Any = connection().eval(_TAKE, 1, key, *map(str, (limit, MINUTE_S, SHARES, at_most)))
    except (redis.RedisError, OSError) as error:
        _stay_away(error)
        return None
    return int(taken[0]), int(taken[1]) / 1000


def _whole_seconds(rest_s: float) -> int:
    return max(1, math.ceil(rest_s))


def _stay_away(error: Exception) -> None:
    global _away_until
    _away_until = time.monotonic() + AWAY_S
    log.warning("nothing is limited for a while, as Redis is away: %s", error)
