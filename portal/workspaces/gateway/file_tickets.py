"""Single-use tickets for file transfers on a workspace's origin, which bypass its app.

A ticket is part of the URL, so a page of another origin can link to it and no cookie is needed. Redis holds
only its digest. The file server gets the details of the transfer separately, by the same digest.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

import msgspec
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from portal.workspaces.gateway.hosts import check_external_name
from portal.workspaces.gateway.tickets import indexes
from provisioning.endpoints import SOCKET_NAME

PREFIX = "/.berth/files/"
_KEY = "berth:gw:files:"
_HOME_KEY = "berth:gw:homes:"
"""Prefix of tickets with which a machine reads a whole home in several requests."""
_TICKET = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer: the workspace of the origin, and the address of the file server as in `WorkspaceView`."""

    workspace: str
    socket: str
    gateway: str = ""
    node: str = ""

    def __post_init__(self) -> None:
        check_external_name(self.workspace)
        if not SOCKET_NAME.fullmatch(self.socket):
            raise ValueError(f"{self.socket!r} is not the name of a socket")


def new() -> str:
    """Return a new ticket."""
    return secrets.token_urlsafe(32)


def digest_of(ticket: str) -> str:
    return hashlib.sha256(ticket.encode("ascii", "replace")).hexdigest()


def store_ticket(redis: Redis, ticket: str, transfer: Transfer, *, user_id: str, lifetime_s: int) -> None:
    """Allow one transfer with the ticket.

    The ticket is revoked with the user's other tickets. Raises `RedisError`.
    """
    key = _KEY + digest_of(ticket)
    pipe = redis.pipeline()
    pipe.set(key, msgspec.json.encode(transfer), ex=lifetime_s)
    for index in indexes(transfer.workspace, user_id):
        pipe.sadd(index, key)
        pipe.expire(index, 7 * 86_400)
    pipe.execute()


def store_home_ticket(redis: Redis, ticket: str, transfer: Transfer, *, lifetime_s: int) -> None:
    """Allow another machine to read a home with the ticket, until `end_home`. Raises `RedisError`."""
    redis.set(_HOME_KEY + digest_of(ticket), msgspec.json.encode(transfer), ex=lifetime_s)


def end_home(redis: Redis, ticket: str) -> None:
    """Revoke the ticket of a home. Raises `RedisError`."""
    redis.delete(_HOME_KEY + digest_of(ticket))


def ticket_in_path(path: str) -> str | None:
    """Return the ticket in a path, or `None`."""
    ticket = path.removeprefix(PREFIX)
    return ticket if path.startswith(PREFIX) and _TICKET.fullmatch(ticket) else None


async def redeem_ticket(redis: AsyncRedis, ticket: str, external_name: str) -> Transfer | None:
    """Return and delete the transfer of a ticket of this workspace. Raises `RedisError`."""
    return await _read(redis, external_name, await redis.getdel(_KEY + digest_of(ticket)), ticket)


async def peek_ticket(redis: AsyncRedis, ticket: str, external_name: str) -> Transfer | None:
    """Return the transfer without deleting it, for a CORS preflight request. Raises `RedisError`."""
    return await _read(redis, external_name, await redis.get(_KEY + digest_of(ticket)), ticket)


async def _read(redis: AsyncRedis, external_name: str, data: bytes | None, ticket: str) -> Transfer | None:
    if data is None:
        data = await redis.get(_HOME_KEY + digest_of(ticket))
    if data is None:
        return None
    try:
        transfer = msgspec.json.decode(data, type=Transfer)
    except (msgspec.MsgspecError, ValueError):
        return None
    return transfer if transfer.workspace == external_name else None
