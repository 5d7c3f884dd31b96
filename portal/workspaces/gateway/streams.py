"""Long-lived connections, which are closed once the client may no longer enter the workspace.

Forward-auth runs only when a client connects, so a WebSocket or an event stream would never be checked again.
The front door therefore routes such a request through this process: forward-auth returns a single-use token,
which the front door presents at a socket of this process. The request goes back to the front door with
`portal.common.front_door.ONWARD_HEADER`, which leads to the workspace. This process only forwards bytes. It
checks authorization again when Redis reports a relevant change, and periodically, because a token may expire
without a notification.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import resource
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from portal.common.front_door import ONWARD_HEADER, STREAM_HEADER, STREAM_PLACE_HEADER
from portal.workspaces.gateway.access import ACCOUNTS_KEY, EntryRefused
from portal.workspaces.gateway.request import ClientRequest

UpstreamHeaders = list[tuple[bytes, bytes]]
"""Upstream headers of a workspace."""
Reauthorize = Callable[[str, ClientRequest], Awaitable[UpstreamHeaders | None]]
"""Returns a client's current upstream headers for a workspace name, or `None` if its app does not answer.

Raises `EntryRefused`.
"""

CLIENT_CONNECT_S = 10.0
"""Seconds within which the front door has to present its token and the complete request head."""
TOKEN_RECHECK_S = 1.0
SESSION_RECHECK_S = 30.0
RECHECK_TIMEOUT_S = 5.0
MAX_RECHECKS = 32
RETRY_S = 1.0
SILENT_S = 60.0
"""Seconds for which a connection stays open while its authorization cannot be checked."""
MAX_HEAD_BYTES = 128 * 1024
MAX_OF_WORKSPACE = 256
RESERVED_DESCRIPTORS = 512
"""File descriptors reserved for the rest of this process; each connection takes two."""
_ENDED = b"\r\n\r\n"

log = logging.getLogger(__name__)


class ConnectionLimitReached(Exception):
    """The maximum number of long-lived connections is reached."""


@dataclass(eq=False, slots=True)
class _Connection:
    """One connection, and the Redis keys (`keys`) that its authorization depends on."""

    name: str
    client: ClientRequest
    upstream_headers: UpstreamHeaders
    keys: frozenset[str]
    recheck_at: float = 0.0
    silent_since: float | None = None
    sides: list[_Side] = field(default_factory=list)

    @property
    def recheck_interval_s(self) -> float:
        return TOKEN_RECHECK_S if ACCOUNTS_KEY in self.keys else SESSION_RECHECK_S

    @property
    def group(self) -> tuple[object, ...]:
        """The key of connections that are checked together.

        They differ only in their origins, which do not change.
        """
        headers = self.client.headers
        shown = (tuple(headers.get(name, ())) for name in ("cookie", "authorization"))
        return (self.name, self.client.address, *shown)


class Streams:
    """The long-lived connections of one process. Not thread-safe: use it from one event loop.

    `door` is the address of the front door; `token` authenticates this process to it.
    """

    def __init__(self, door: tuple[str, int], token: str, reauthorize: Reauthorize) -> None:
        self._door = door
        self._token = token.encode()
        self._reauthorize = reauthorize
        self._place = ""
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._joining: set[asyncio.Task[None]] = set()
        self._rechecking: dict[tuple[object, ...], asyncio.Task[None]] = {}
        self._at_once = asyncio.Semaphore(MAX_RECHECKS)
        self._coming: dict[str, tuple[_Connection, asyncio.TimerHandle]] = {}
        self._open: set[_Connection] = set()
        self._by_key: dict[str, set[_Connection]] = {}
        self._of_workspace: Counter[str] = Counter()
        self._most = max(64, (_descriptors() - RESERVED_DESCRIPTORS) // 2)
        self._soon = asyncio.Event()

    async def expect(
        self, name: str, client: ClientRequest, upstream_headers: UpstreamHeaders, keys: Iterable[str]
    ) -> UpstreamHeaders:
        """Return headers that make the front door route this request through this process.

        Raises `ConnectionLimitReached`, `OSError`.
        """
        if len(self._open) + len(self._coming) >= self._most or self._of_workspace[name] >= MAX_OF_WORKSPACE:
            raise ConnectionLimitReached(name)
        await self._start()
        token = secrets.token_hex(32)
        timer = asyncio.get_running_loop().call_later(CLIENT_CONNECT_S, self._forget, token)
        self._coming[token] = (_Connection(name, client, upstream_headers, frozenset(keys)), timer)
        self._of_workspace[name] += 1
        return [
            (STREAM_HEADER.lower().encode(), token.encode()),
            (STREAM_PLACE_HEADER.lower().encode(), f"@{self._place}".encode()),
        ]

    def changed(self, keys: Iterable[str] | None) -> None:
        """Check the connections that depend on `keys` again, or all if it is `None`."""
        affected = self._open if keys is None else set().union(*(self._by_key.get(key, ()) for key in keys))
        for connection in affected:
            connection.recheck_at = 0.0
        if affected:
            self._soon.set()

    async def close(self) -> None:
        """Close all connections and stop listening."""
        tasks = [
            *self._joining,
            *self._rechecking.values(),
            *([self._task] if self._task is not None else []),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for token in tuple(self._coming):
            self._coming[token][1].cancel()
            self._forget(token)
        for connection in tuple(self._open):
            self._abort(connection)

    # Forwarding.

    async def _start(self) -> None:
        if self._server is None:
            place = f"berth-streams-{secrets.token_hex(16)}"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                # An abstract socket, because the front door may run as another user and see other folders.
                listener.bind(f"\0{place}")
                loop = asyncio.get_running_loop()
                self._server = await loop.create_unix_server(lambda: _ClientSide(self), sock=listener)
            except OSError:
                listener.close()
                raise
            self._place = place
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="berth-streams")

    def accept(self, near: _ClientSide, head: bytes, rest: bytes) -> None:
        """Accept a connection of the front door, or abort it if its token is invalid."""
        lines = head.split(b"\r\n")
        mark = f"{STREAM_HEADER}:".lower().encode()
        tokens = [line[len(mark) :].strip() for line in lines if line.lower().startswith(mark)]
        expected = self._coming.pop(tokens[0].decode("latin-1"), None) if len(tokens) == 1 else None
        if expected is None:
            near.transport.abort()
            return
        connection, timer = expected
        timer.cancel()
        connection.sides.append(near)
        near.connection = connection
        connection.recheck_at = asyncio.get_running_loop().time()
        self._open.add(connection)
        for key in connection.keys:
            self._by_key.setdefault(key, set()).add(connection)
        # Check first whether something changed since the token was issued.
        self._soon.set()
        headers = [line for line in lines if not line.lower().startswith(mark)]
        headers.append(ONWARD_HEADER.encode() + b": " + self._token)
        headers += [name + b": " + value for name, value in connection.upstream_headers]
        near.hold()
        joining = asyncio.get_running_loop().create_task(
            self._join(connection, near, b"\r\n".join(headers) + _ENDED + rest)
        )
        self._joining.add(joining)
        joining.add_done_callback(self._joining.discard)

    async def _join(self, connection: _Connection, near: _ClientSide, first: bytes) -> None:
        far = _Side(self)
        try:
            async with asyncio.timeout(CLIENT_CONNECT_S):
                await asyncio.get_running_loop().create_connection(lambda: far, *self._door)
        except (OSError, TimeoutError) as error:
            log.warning("no answer from the front door about an open connection: %r", error)
            self._abort(connection)
            return
        if connection not in self._open:
            far.transport.abort()
            return
        connection.sides.append(far)
        far.connection = connection
        near.other, far.other = far, near
        far.transport.write(first)
        near.go_on()

    def ended(self, connection: _Connection) -> None:
        """Close both sides after one has closed, and write pending data first."""
        self._release(connection)
        for side in connection.sides:
            side.transport.close()

    def _abort(self, connection: _Connection) -> None:
        self._release(connection)
        for side in connection.sides:
            side.transport.abort()

    def _release(self, connection: _Connection) -> None:
        if connection not in self._open:
            return
        self._open.discard(connection)
        for key in connection.keys:
            self._by_key[key].discard(connection)
            if not self._by_key[key]:
                del self._by_key[key]
        self._decrement(connection.name)

    def _forget(self, token: str) -> None:
        expected = self._coming.pop(token, None)
        if expected is not None:
            self._decrement(expected[0].name)

    def _decrement(self, name: str) -> None:
        self._of_workspace[name] -= 1
        if not self._of_workspace[name]:
            del self._of_workspace[name]

    # Periodic authorization checks.

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            waiting = [connection for connection in self._open if connection.group not in self._rechecking]
            wait_s = min((connection.recheck_at - loop.time() for connection in waiting), default=None)
            if wait_s is None or wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._soon.wait()
            self._soon.clear()
            now = loop.time()
            due: dict[tuple[object, ...], list[_Connection]] = {}
            for connection in self._open:
                if connection.recheck_at <= now and connection.group not in self._rechecking:
                    connection.recheck_at = now + connection.recheck_interval_s
                    due.setdefault(connection.group, []).append(connection)
            for group, connections in due.items():
                # A separate task, so that a slow check does not delay the others.
                self._rechecking[group] = recheck = loop.create_task(self._recheck(connections))
                recheck.add_done_callback(functools.partial(self._end_recheck, group))

    def _end_recheck(self, group: tuple[object, ...], _: asyncio.Task[None]) -> None:
        self._rechecking.pop(group, None)
        self._soon.set()

    async def _recheck(self, group: list[_Connection]) -> None:
        """Close the connections of one group if they are no longer authorized."""
        try:
            async with self._at_once, asyncio.timeout(RECHECK_TIMEOUT_S):
                upstream_headers = await self._reauthorize(group[0].name, group[0].client)
        except EntryRefused as refused:
            log.info("closing %d connections to %s: %s", len(group), refused.name, refused.refusal)
            upstream_headers = None
        except Exception as error:
            # An error is not a denial, for up to `SILENT_S`.
            log.debug("could not re-authorize an open connection: %r", error)
            now = asyncio.get_running_loop().time()
            for connection in group:
                if connection.silent_since is None:
                    connection.silent_since = now
                connection.recheck_at = min(connection.recheck_at, now + RETRY_S)
                if now - connection.silent_since >= SILENT_S:
                    self._abort(connection)
            return
        for connection in group:
            connection.silent_since = None
            if upstream_headers != connection.upstream_headers:
                self._abort(connection)


class _Side(asyncio.Protocol):
    """One of the two sides of a connection. Forwards data to the other side, with backpressure."""

    transport: asyncio.Transport

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.other: _Side | None = None
        self.connection: _Connection | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.connection is not None:
            self.streams.ended(self.connection)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.hold()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.go_on()

    def hold(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def go_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()


class _ClientSide(_Side):
    """The client's side, through the front door. First receives the head of the request."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        self._head: bytes | None = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = asyncio.get_running_loop().call_later(CLIENT_CONNECT_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            super().data_received(data)
            return
        self._head += data
        head, end, rest = self._head.partition(_ENDED)
        if end:
            self._head = None
            self._in_time()
            self.streams.accept(self, head, rest)
        elif len(self._head) > MAX_HEAD_BYTES:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _descriptors() -> int:
    """Raise the limit of open file descriptors, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < target:
        # The operator may have forbidden a higher limit.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    return 65_536 if soft == resource.RLIM_INFINITY else soft
