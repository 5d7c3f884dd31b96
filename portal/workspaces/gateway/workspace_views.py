"""What the gateway knows of a workspace, kept in Redis so that forward-auth needs no database.

The control plane writes a view whenever the workspace or the people who may open it change. A view
lives `VIEW_TTL_S`: what was lost, or written late by a slow worker, heals by being resolved from
the database again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from portal.workspaces.gateway.hosts import check_external_name
from provisioning.endpoints import SOCKET_NAME, host_and_port, is_address

VIEW_TTL_S = 60
UPSTREAM_HEADERS = ("Authorization", "Cookie")
KEY_PREFIX = "berth:gw:ws:"
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,118}[A-Za-z0-9])?", re.ASCII)
_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")

# A late writer must not put an older revision over a newer one.
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

    `state` is the lifecycle's state, in lower case. `user_ids` may enter. `upstream_headers` are set on
    each request on its way to the app: `Authorization` and `Cookie`, nothing else. `service_workers`: whether
    its pages may install them. `revision` grows with every change of the row; a lower one never replaces a
    higher one.

    Where it answers: `socket` is the name of its Unix socket, on this machine or, with `gateway`
    (`host:port`) and `node` (its name), behind the gateway of another one. Without a socket it is `endpoint`,
    an http(s) URL of host and port. All are empty while it answers nowhere.
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
        """Whether there is an app to be let through to."""
        return self.state == "running" and not self.simulated and bool(self.socket or self.endpoint)


def key(external_name: str) -> str:
    """The Redis key of a view."""
    return KEY_PREFIX + external_name


def encode(view: WorkspaceView) -> bytes:
    """The stored form."""
    return msgspec.json.encode(view)


def decode(data: Any) -> WorkspaceView | None:
    """A stored view; None for what is missing or was written by another version."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=WorkspaceView)
    except (msgspec.MsgspecError, ValueError):
        return None


def put(redis: Redis, view: WorkspaceView) -> bool:
    """Store `view`; False when a newer revision stands already. Raises `RedisError`."""
    return bool(redis.eval(_PUT, 1, key(view.external_name), encode(view), VIEW_TTL_S, view.revision))


def drop(redis: Redis, external_name: str) -> None:
    """Forget the workspace; the next request resolves it again. Raises `RedisError`."""
    redis.delete(key(check_external_name(external_name)))


async def heal(redis: AsyncRedis, view: WorkspaceView) -> None:
    """Store a view that was resolved because the key was missing; one written meanwhile stays."""
    await redis.set(key(view.external_name), encode(view), ex=VIEW_TTL_S, nx=True)
