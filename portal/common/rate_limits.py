"""How often somebody may do something: counted in Redis for all processes, in windows of fixed length.

Each question is one command to Redis, however many windows it is about. Where Redis is away nobody is
refused, and it is not asked again for some seconds: a limit must not be what ends the portal.
"""

from __future__ import annotations

import logging
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

log = logging.getLogger(__name__)
_away_until = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `count` in `window_s` seconds; 0: as many as one likes."""

    count: int
    window_s: int


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
    global _away_until
    held = [limit for limit in limits if limit.count > 0]
    if not held or time.monotonic() < _away_until:
        return 0
    keys = [f"{PREFIX}{what}:{limit.window_s}" for limit in held]
    values = [value for limit in held for value in (limit.count, limit.window_s)]
    try:
        waits: Any = connection().eval(_COUNT, len(keys), *keys, *map(str, values))
    except (redis.RedisError, OSError) as error:
        _away_until = time.monotonic() + AWAY_S
        log.warning("nothing is limited for a while, as Redis is away: %s", error)
        return 0
    return int(waits)


def of_request(user_id: UUID | None, network: str) -> int:
    """Count a request of a user, or of nobody from a network; after how many seconds another one may come."""
    if user_id is not None:
        return count(f"user:{user_id}", Limit(settings.BERTH_REQUESTS_PER_MINUTE, MINUTE_S))
    return count(f"address:{network}", Limit(settings.BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS, MINUTE_S))
