"""Views of workspaces for the gateway, stored in Redis so that forward-auth needs no database.

The portal writes a view whenever the workspace or its users change. A view lives for `VIEW_TTL_S`; a lost or
late view is then resolved from the database again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import OutOfMemoryError

from portal.workspaces.gateway.hosts import check_external_name
from provisioning.endpoints import SOCKET_NAME, host_and_port, is_address

VIEW_TTL_S = 60
UPSTREAM_HEADERS = ("Authorization", "Cookie")
KEY_PREFIX = "berth:gw:ws:"
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,118}[A-Za-z0-9])?", re.ASCII)
_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")

# A late writer must not replace a newer revision.
_PUT = """
local old = redis.call('GET', KEYS[1])
if old then
  local ok, view = pcall(cjson.decode, old)
  if ok and type(view) == 'table' and (tonumber(view['revision']) or 0) > tonumber(ARGV[3]) then
    return 0
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
"""


@dataclass(frozen=True, slots=True)
class WorkspaceView:
    """A workspace as forward-auth sees it.

    `state` is the lifecycle state in lower case. `user_ids` are the users who may enter. `upstream_headers`
    are set on each request to the app: only `Authorization` and `Cookie`. `service_workers` allows its pages
    to install service workers. `revision` grows with every change of the row; a lower revision never replaces
    a higher one.

    `socket` is the name of the workspace's Unix socket: on this machine or, with `gateway` (`host:port`) and
    `node` (its name), behind the gateway of another machine. Without a socket, `endpoint` is an http(s) URL
    of host and port. All are empty while the workspace does not answer.
    """

    external_name: str
    name: str
    state: str
    user_ids: frozenset[str]
    upstream_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    simulated: bool = False
    socket: str = ""
    gateway: str = ""
    node: str = ""
    endpoint: str = ""
    service_workers: bool = False
    revision: int = 0

    def __post_init__(self) -> None:
        check_external_name(self.external_name)
        if self.socket and not SOCKET_NAME.fullmatch(self.socket):
            raise ValueError(f"{self.socket!r} is not the name of a workspace's socket")
        if self.gateway and not (self.socket and _NODE.fullmatch(self.node) and is_address(self.gateway)):
            raise ValueError(f"{self.gateway!r} of {self.node!r} is not the gateway of a node")
        if self.endpoint and host_and_port(self.endpoint) is None:
            raise ValueError(f"{self.endpoint!r} is not an http or https URL of a host and port")
        for header, value in self.upstream_headers.items():
            if header not in UPSTREAM_HEADERS:
                raise ValueError(f"upstream header {header!r} is not one of {', '.join(UPSTREAM_HEADERS)}")
            if not _HEADER_VALUE.fullmatch(value):
                raise ValueError(f"the value of upstream header {header!r} is not printable ASCII")

    @property
    def reachable(self) -> bool:
        """Whether requests can be forwarded to an app."""
        return self.state == "running" and not self.simulated and bool(self.socket or self.endpoint)


def key(external_name: str) -> str:
    """Return the Redis key of a view."""
    return KEY_PREFIX + external_name


def encode(view: WorkspaceView) -> bytes:
    """Return the stored form of a view."""
    return msgspec.json.encode(view)


def decode(data: Any) -> WorkspaceView | None:
    """Return a stored view, or `None` if it is missing or was written by another version."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=WorkspaceView)
    except (msgspec.MsgspecError, ValueError):
        return None


def store_view(redis: Redis, view: WorkspaceView) -> bool:
    """Store `view`. Returns `False` if a newer revision exists. Raises `RedisError`.

    If Redis is full, the outdated view is deleted; the next request resolves it again.
    """
    try:
        return bool(redis.eval(_PUT, 1, key(view.external_name), encode(view), VIEW_TTL_S, view.revision))
    except OutOfMemoryError:
        drop(redis, view.external_name)
        return True


def drop(redis: Redis, external_name: str) -> None:
    """Delete the view; the next request resolves it again. Raises `RedisError`."""
    redis.delete(key(check_external_name(external_name)))


async def heal(redis: AsyncRedis, view: WorkspaceView) -> None:
    """Store a view that was missing in Redis, unless another process has written it meanwhile.

    If Redis is full, nothing is stored, so that users can still enter with their sessions.
    """
    with suppress(OutOfMemoryError):
        await redis.set(key(view.external_name), encode(view), ex=VIEW_TTL_S, nx=True)
