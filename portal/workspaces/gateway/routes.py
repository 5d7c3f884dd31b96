"""The routes from workspaces' hosts to their endpoints, kept in Redis for the proxy to fetch.

All routes are fields of one hash, changed together with a revision in one transaction, so a reader
sees a state that was wanted at some moment, whole. (Traefik's own Redis provider cannot promise that:
it collects its keys by SCAN, and a router seen without its middleware key is a router without
guard. See `portal.workspaces.gateway.feed` for how Traefik gets them instead.)
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import WatchError

from portal.workspaces.gateway.hosts import check_external_name

ROUTES_KEY = "berth:gw:routes"
REVISION_KEY = "berth:gw:routes:revision"
CHANGED_CHANNEL = "berth:gw:routes:changed"
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)
_SYNC_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Route:
    """Where a workspace answers: `endpoint` is an http(s) URL without path, `domain` the portal's.

    `by_node`: it is the gateway of the workspace's node, to which the front door shows its certificate.
    """

    external_name: str
    endpoint: str
    domain: str
    by_node: bool = False

    def __post_init__(self) -> None:
        check_external_name(self.external_name)
        if not _DOMAIN.fullmatch(self.domain):
            raise ValueError(f"{self.domain!r} is not a lower-case domain name")
        if not is_endpoint(self.endpoint):
            raise ValueError(f"{self.endpoint!r} is not an http or https URL of a host and port")

    @property
    def host(self) -> str:
        """The workspace's host, without port."""
        return f"{self.external_name}.{self.domain}"


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What `sync` changed."""

    added: int
    updated: int
    removed: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All routes at one moment. `revision` is empty when Redis knows of none, not even of no routes."""

    revision: str
    routes: tuple[Route, ...]


def connect(redis_url: str) -> Redis:
    """A client for the functions below, with time-outs."""
    return Redis.from_url(redis_url, socket_timeout=10.0, socket_connect_timeout=2.0)


def publish(redis: Redis, route: Route) -> None:
    """Route the workspace's host to its endpoint, replacing what was there. Raises `RedisError`."""
    with redis.pipeline(transaction=True) as pipe:
        pipe.hset(ROUTES_KEY, route.external_name, _encode(route))
        _changed(pipe)
        pipe.execute()


def withdraw(redis: Redis, external_name: str) -> None:
    """Stop routing to the workspace; its host falls to the page of the portal. Raises `RedisError`."""
    with redis.pipeline(transaction=True) as pipe:
        pipe.hdel(ROUTES_KEY, check_external_name(external_name))
        _changed(pipe)
        pipe.execute()


def sync(redis: Redis, routes: Iterable[Route] | Callable[[], Iterable[Route]]) -> SyncResult:
    """Make Redis hold exactly `routes`; nothing is written when it does already.

    Pass a callable to be safe against `publish` and `withdraw` in other processes: it is called
    once the watch stands, and again when one of them came in between. One read and one write,
    however many routes there are. Raises `RedisError`.
    """
    for _ in range(_SYNC_ATTEMPTS):
        with redis.pipeline(transaction=True) as pipe:
            pipe.watch(REVISION_KEY)  # type: ignore[no-untyped-call]
            loaded = routes() if callable(routes) else routes
            wanted = {route.external_name: _encode(route) for route in loaded}
            # Until `multi`, a watching pipeline answers at once.
            revision: Any = pipe.get(REVISION_KEY)
            found: Any = pipe.hgetall(ROUTES_KEY)
            present = {_text(name): _text(value) for name, value in found.items()}
            changes = {name: value for name, value in wanted.items() if present.get(name) != value}
            gone = present.keys() - wanted.keys()
            if not changes and not gone and revision is not None:
                return SyncResult(0, 0, 0)
            pipe.multi()
            if gone:
                pipe.hdel(ROUTES_KEY, *gone)
            if changes:
                pipe.hset(ROUTES_KEY, mapping=changes)
            _changed(pipe)
            try:
                pipe.execute()
            except WatchError:
                if not callable(routes):
                    raise
                continue
        updated = len(changes.keys() & present.keys())
        return SyncResult(added=len(changes) - updated, updated=updated, removed=len(gone))
    raise WatchError("routes changed faster than they could be read; the next sweep tries again")


async def snapshot(redis: AsyncRedis) -> Snapshot:
    """All routes and their revision, read together. Raises `RedisError`."""
    async with redis.pipeline(transaction=True) as pipe:
        pipe.get(REVISION_KEY)
        pipe.hvals(ROUTES_KEY)
        revision, values = await pipe.execute()
    # Ten thousand take a tenth of a second: not on the event loop.
    found = await asyncio.to_thread(_decode_all, values)
    return Snapshot(_text(revision or ""), found)


def _decode_all(values: Iterable[str | bytes]) -> tuple[Route, ...]:
    found = []
    for value in values:
        try:
            found.append(msgspec.json.decode(value, type=Route))
        except (msgspec.MsgspecError, ValueError):
            # Written by another version; the next sync replaces it.
            continue
    return tuple(sorted(found, key=lambda route: route.external_name))


def _changed(pipe: Any) -> None:
    """A new revision. It is random: a counter would start again where Redis lost its data."""
    revision = secrets.token_hex(12)
    pipe.set(REVISION_KEY, revision)
    pipe.publish(CHANGED_CHANNEL, revision)


def is_endpoint(endpoint: str) -> bool:
    """Whether it is an http or https URL of a host and port and nothing more."""
    if not endpoint.isascii() or not endpoint.isprintable() or " " in endpoint:
        return False
    try:
        url = urlsplit(endpoint)
        port = url.port
    except ValueError:
        return False
    plain = not (url.username or url.password or url.query or url.fragment) and url.path in ("", "/")
    return plain and url.scheme in ("http", "https") and bool(url.hostname) and port != 0


def _encode(route: Route) -> str:
    return msgspec.json.encode(route).decode()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
