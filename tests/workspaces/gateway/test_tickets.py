"""Tickets and sessions on a real server with a controlled clock."""

from __future__ import annotations

import asyncio

import pytest
from gateway_support import WS_A, WS_B
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from portal.workspaces.gateway import tickets
from portal.workspaces.gateway.tickets import (
    RENEW_AFTER_S,
    SESSION_MAX_S,
    SESSION_TTL_S,
    TICKET_TTL_S,
    CookiePolicy,
    Session,
    renewal_s,
)

NOW = 1_800_000_000


def clock() -> float:
    return float(NOW)


@pytest.mark.engine
class TestTickets:
    async def test_ticket_is_valid_once(self, redis: Redis, redis_async: AsyncRedis) -> None:
        ticket = tickets.issue(redis, external_name=WS_A, user_id="7")
        cookie = await tickets.exchange(redis_async, ticket=ticket, external_name=WS_A, clock=clock)
        assert cookie
        again = await tickets.exchange(redis_async, ticket=ticket, external_name=WS_A, clock=clock)
        assert again is None
        session = tickets.decode_session(redis.get(tickets.session_key(cookie)))
        assert session == Session(WS_A, "7", NOW)
        assert redis.ttl(tickets.session_key(cookie)) in (SESSION_TTL_S - 1, SESSION_TTL_S)

    async def test_concurrent_ticket_exchange_wins_once(self, redis: Redis, redis_async: AsyncRedis) -> None:
        ticket = tickets.issue(redis, external_name=WS_A, user_id="7")
        found = await asyncio.gather(
            *(tickets.exchange(redis_async, ticket=ticket, external_name=WS_A) for _ in range(10))
        )
        assert len([cookie for cookie in found if cookie]) == 1

    async def test_ticket_of_another_workspace_is_refused_and_used_up(
        self, redis: Redis, redis_async: AsyncRedis
    ) -> None:
        ticket = tickets.issue(redis, external_name=WS_A, user_id="7")
        assert await tickets.exchange(redis_async, ticket=ticket, external_name=WS_B) is None
        assert await tickets.exchange(redis_async, ticket=ticket, external_name=WS_A) is None

    @pytest.mark.parametrize("ticket", ["", "x", "é", "\udcff", "x" * 10_000])
    async def test_malformed_ticket_is_refused(self, redis_async: AsyncRedis, ticket: str) -> None:
        assert await tickets.exchange(redis_async, ticket=ticket, external_name=WS_A) is None

    async def test_an_expired_ticket_is_refused(self, redis: Redis, redis_async: AsyncRedis) -> None:
        ticket = tickets.issue(redis, external_name=WS_A, user_id="7")
        assert 0 < redis.ttl(tickets.ticket_key(ticket)) <= TICKET_TTL_S
        redis.pexpire(tickets.ticket_key(ticket), 0)
        assert await tickets.exchange(redis_async, ticket=ticket, external_name=WS_A) is None

    async def test_store_contains_no_secret(self, redis: Redis, redis_async: AsyncRedis) -> None:
        spent = tickets.issue(redis, external_name=WS_A, user_id="7")
        cookie = await tickets.exchange(redis_async, ticket=spent, external_name=WS_A)
        ticket = tickets.issue(redis, external_name=WS_A, user_id="7")
        assert cookie
        names = redis.keys("*")
        text = b" ".join(names) + b" ".join(redis.dump(name) for name in names)
        assert ticket.encode() not in text
        assert cookie.encode() not in text

    async def test_revoking_ends_sessions_and_open_tickets_of_that_user(
        self, redis: Redis, redis_async: AsyncRedis
    ) -> None:
        async def enter(name: str, user: str) -> str:
            ticket = tickets.issue(redis, external_name=name, user_id=user)
            cookie = await tickets.exchange(redis_async, ticket=ticket, external_name=name)
            assert cookie
            return tickets.session_key(cookie)

        mine, other, theirs = await enter(WS_A, "7"), await enter(WS_B, "7"), await enter(WS_A, "8")
        pending = tickets.issue(redis, external_name=WS_A, user_id="7")
        assert tickets.revoke_workspace(redis, WS_A) == 3
        assert redis.exists(mine, theirs) == 0
        assert redis.exists(other) == 1
        assert await tickets.exchange(redis_async, ticket=pending, external_name=WS_A) is None
        assert tickets.revoke_user(redis, "7") == 1
        assert redis.exists(other) == 0
        assert tickets.revoke_user(redis, "7") == 0

    def test_ticket_requires_a_workspace_and_a_user(self, redis: Redis) -> None:
        with pytest.raises(ValueError, match="external name"):
            tickets.issue(redis, external_name="ws-*", user_id="7")
        with pytest.raises(ValueError, match="user id"):
            tickets.issue(redis, external_name=WS_A, user_id="")


def test_session_in_use_is_extended_until_its_last_day() -> None:
    session = Session(WS_A, "7", NOW)
    assert renewal_s(session, SESSION_TTL_S - 10, NOW + 10) == 0
    assert renewal_s(session, SESSION_TTL_S - RENEW_AFTER_S, NOW + RENEW_AFTER_S) == SESSION_TTL_S
    late = NOW + SESSION_MAX_S - 3600
    assert renewal_s(session, 600, late) == 3600
    assert renewal_s(session, 3500, late) == 0
    assert renewal_s(session, 600, NOW + SESSION_MAX_S + 1) == 0


@pytest.mark.parametrize("data", [None, b"", b"{}", b"[1]", b'{"workspace":1,"user":"7","since":1}'])
def test_damaged_session_is_invalid(data: bytes | None) -> None:
    assert tickets.decode_session(data) is None


def test_cookie_is_host_only_and_prefixed_over_https() -> None:
    plain, secure = CookiePolicy(secure=False), CookiePolicy(secure=True)
    for header in (plain.set_header("v"), secure.set_header("v")):
        assert "domain" not in header.lower()
        assert {"Path=/", "HttpOnly", "SameSite=Lax"} <= set(header.split("; "))
    assert plain.set_header("v").startswith("berth_ws=v;")
    assert secure.set_header("v").startswith("__Host-berth_ws=v;")
    assert secure.set_header("v").endswith("; Secure")
    assert "Max-Age=0" in plain.clear_header()
