"""One-time tickets, which clients exchange for sessions on a workspace's origin.

Redis holds only SHA-256 digests of tickets and cookie values, so reading it grants no access. Tickets and
sessions are indexed by workspace and by user, so that a revoked right ends them at once. Every step that has
to be atomic is one script.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from portal.workspaces.gateway.hosts import check_external_name

TICKET_TTL_S = 30
SESSION_TTL_S = 12 * 3600
SESSION_MAX_S = 7 * 24 * 3600
RENEW_AFTER_S = 300
MAX_COOKIES = 4
_TICKET = "berth:gw:ticket:"
SESSION_PREFIX = "berth:gw:session:"
_BY_WORKSPACE = "berth:gw:of-ws:"
_BY_USER = "berth:gw:of-user:"

_ISSUE = """
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
for i = 2, 3 do
  redis.call('SADD', KEYS[i], KEYS[1])
  redis.call('EXPIRE', KEYS[i], ARGV[3])
end
return 1
"""

# The ticket is deleted, whether or not it was for this workspace.
_EXCHANGE = """
local data = redis.call('GETDEL', KEYS[1])
if not data then return nil end
local ok, grant = pcall(cjson.decode, data)
if not ok or grant['workspace'] ~= ARGV[1] then return nil end
local of_ws, of_user = ARGV[5] .. grant['workspace'], ARGV[6] .. grant['user']
redis.call('SREM', of_ws, KEYS[1])
redis.call('SREM', of_user, KEYS[1])
local session = cjson.encode(
  {workspace = grant['workspace'], user = grant['user'], since = tonumber(ARGV[2])})
redis.call('SET', KEYS[2], session, 'EX', ARGV[3])
for _, index in ipairs({of_ws, of_user}) do
  redis.call('SADD', index, KEYS[2])
  redis.call('EXPIRE', index, ARGV[4])
end
return grant['user']
"""

_REVOKE = """
local ended = 0
for _, name in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  ended = ended + redis.call('DEL', name)
end
redis.call('DEL', KEYS[1])
return ended
"""


@dataclass(frozen=True, slots=True)
class Session:
    """A user's session in a workspace. `since` is in seconds since the epoch, in UTC."""

    workspace: str
    user: str
    since: int


@dataclass(frozen=True, slots=True)
class CookiePolicy:
    """The session cookie: host-only, `HttpOnly`, and with the prefix `__Host-` if the portal uses HTTPS."""

    secure: bool

    @property
    def name(self) -> str:
        return "__Host-berth_ws" if self.secure else "berth_ws"

    def set_header(self, value: str, *, max_age_s: int = SESSION_MAX_S) -> str:
        """Return the Set-Cookie header.

        The header has no Domain attribute, so other workspaces never see the cookie.
        """
        secure = "; Secure" if self.secure else ""
        return f"{self.name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{secure}"

    def clear_header(self) -> str:
        """Return the Set-Cookie header that removes the cookie."""
        return self.set_header("", max_age_s=0)


def issue(redis: Redis, *, external_name: str, user_id: str) -> str:
    """Return a ticket that admits `user_id` to the workspace once, within `TICKET_TTL_S`.

    The caller has checked that the user may open it. Raises `RedisError`.
    """
    check_external_name(external_name)
    if not user_id:
        raise ValueError("a ticket needs a user id")
    ticket = secrets.token_urlsafe(32)
    grant = msgspec.json.encode({"workspace": external_name, "user": user_id})
    redis.eval(
        _ISSUE,
        3,
        ticket_key(ticket),
        _BY_WORKSPACE + external_name,
        _BY_USER + user_id,
        grant,
        TICKET_TTL_S,
        SESSION_MAX_S,
    )
    return ticket


def revoke_workspace(redis: Redis, external_name: str) -> int:
    """End all sessions and tickets of a workspace, and return their number. Raises `RedisError`."""
    return _revoke(redis, _BY_WORKSPACE + check_external_name(external_name))


def revoke_user(redis: Redis, user_id: str) -> int:
    """End all sessions and tickets of a user, and return their number. Raises `RedisError`."""
    return _revoke(redis, _BY_USER + user_id)


def _revoke(redis: Redis, index: str) -> int:
    return int(str(redis.eval(_REVOKE, 1, index)))


def indexes(external_name: str, user_id: str) -> tuple[str, str]:
    """Return the index keys for a workspace and for a user."""
    return _BY_WORKSPACE + check_external_name(external_name), _BY_USER + user_id


def ticket_key(ticket: str) -> str:
    """Return the Redis key of a ticket."""
    return _TICKET + _digest(ticket)


def session_key(cookie: str) -> str:
    """Return the Redis key of the session with this cookie value."""
    return SESSION_PREFIX + _digest(cookie)


def decode_session(data: Any) -> Session | None:
    """Return a stored session, or `None` if it is missing or damaged."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=Session)
    except msgspec.MsgspecError:
        return None


async def exchange(
    redis: AsyncRedis, *, ticket: str, external_name: str, clock: Callable[[], float] = time.time
) -> str | None:
    """Exchange a ticket of this workspace for a new cookie value, or return `None`. Raises `RedisError`."""
    if not ticket or len(ticket) > 256:
        return None
    cookie = secrets.token_urlsafe(32)
    # redis-py types script results as for both of its clients.
    answer: Any = redis.eval(
        _EXCHANGE,
        2,
        ticket_key(ticket),
        session_key(cookie),
        external_name,
        str(int(clock())),
        str(SESSION_TTL_S),
        str(SESSION_MAX_S),
        _BY_WORKSPACE,
        _BY_USER,
    )
    return cookie if await answer is not None else None


async def end(redis: AsyncRedis, cookie: str) -> None:
    """End one session. Raises `RedisError`."""
    await redis.delete(session_key(cookie))


def renewal_s(session: Session, ttl_s: int, now: float) -> int:
    """Return the new lifetime of an active session in seconds, or 0 to leave it unchanged.

    Sessions are extended to `SESSION_TTL_S` in steps, so that most requests write nothing, but end at most
    `SESSION_MAX_S` after the ticket was exchanged.
    """
    longest = int(session.since + SESSION_MAX_S - now)
    session_ttl_s = min(SESSION_TTL_S, longest)
    return session_ttl_s if session_ttl_s > 0 and session_ttl_s - ttl_s >= RENEW_AFTER_S else 0


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
