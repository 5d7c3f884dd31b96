"""Connections that last, for as long as whoever has made them may enter the workspace.

Forward-auth is asked when a connection is made. A WebSocket is made once, and a stream of events is answered
once, so nobody would ask again. The front door therefore leads such a request through this process: it gets
a word that is good once, comes with it to a socket of this process, and from there back to itself by
`portal.common.front_door.ONWARD_HEADER`, which leads to the workspace. Between the two only bytes are passed
on. So the one that judges can end what it has let through: it looks again when Redis tells of a change in
what it was decided by, and from time to time, as a token's end may come without a word.
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
from portal.workspaces.gateway.access import ACCOUNTS_KEY, Refused
from portal.workspaces.gateway.request import ClientRequest

Way = list[tuple[bytes, bytes]]
"""The headers that say where a workspace answers."""
Judge = Callable[[str, ClientRequest], Awaitable[Way | None]]
"""Where this client gets in the workspace of that name now, None where nothing answers. Raises `Refused`."""

COME_S = 10.0
"""By then the front door has come with the word that it was given, and with the whole head."""
TOKEN_LOOK_S = 1.0
SESSION_LOOK_S = 30.0
LOOK_TIMEOUT_S = 5.0
LOOKS_AT_ONCE = 32
RETRY_S = 1.0
SILENT_S = 60.0
"""So long a connection goes on while it cannot be found out whether it may."""
MAX_HEAD_BYTES = 128 * 1024
MAX_OF_WORKSPACE = 256
RESERVED_DESCRIPTORS = 512
"""For everything else that this process does; each connection takes two."""
_ENDED = b"\r\n\r\n"

log = logging.getLogger(__name__)


class Full(Exception):
    """As many connections last as may."""


@dataclass(eq=False, slots=True)
class _Lasting:
    """One connection: who has made it, where it leads, and the keys in Redis that this rests on."""

    name: str
    client: ClientRequest
    way: Way
    keys: frozenset[str]
    look_at: float = 0.0
    silent_since: float | None = None
    sides: list[_Side] = field(default_factory=list)

    @property
    def look_every_s(self) -> float:
        return TOKEN_LOOK_S if ACCOUNTS_KEY in self.keys else SESSION_LOOK_S

    @property
    def group(self) -> tuple[object, ...]:
        """Connections of one group are judged alike, except for their origins, which do not change."""
        headers = self.client.headers
        shown = (tuple(headers.get(name, ())) for name in ("cookie", "authorization"))
        return (self.name, self.client.address, *shown)


class Streams:
    """The lasting connections of one process. Of the thread of one event loop.

    `door` is where the front door listens, `token` proves to it who comes back.
    """

    def __init__(self, door: tuple[str, int], token: str, judge: Judge) -> None:
        self._door = door
        self._token = token.encode()
        self._judge = judge
        self._place = ""
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._joining: set[asyncio.Task[None]] = set()
        self._looking: dict[tuple[object, ...], asyncio.Task[None]] = {}
        self._at_once = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._coming: dict[str, tuple[_Lasting, asyncio.TimerHandle]] = {}
        self._open: set[_Lasting] = set()
        self._by_key: dict[str, set[_Lasting]] = {}
        self._of_workspace: Counter[str] = Counter()
        self._most = max(64, (_descriptors() - RESERVED_DESCRIPTORS) // 2)
        self._soon = asyncio.Event()

    async def expect(self, name: str, client: ClientRequest, way: Way, keys: Iterable[str]) -> Way:
        """The headers by which the front door leads this request through here. Raises `Full`, `OSError`."""
        if len(self._open) + len(self._coming) >= self._most or self._of_workspace[name] >= MAX_OF_WORKSPACE:
            raise Full(name)
        await self._start()
        word = secrets.token_hex(32)
        timer = asyncio.get_running_loop().call_later(COME_S, self._forget, word)
        self._coming[word] = (_Lasting(name, client, way, frozenset(keys)), timer)
        self._of_workspace[name] += 1
        return [
            (STREAM_HEADER.lower().encode(), word.encode()),
            (STREAM_PLACE_HEADER.lower().encode(), f"@{self._place}".encode()),
        ]

    def changed(self, keys: Iterable[str] | None) -> None:
        """Look again at what rests on `keys`; at everything where it is None."""
        found = self._open if keys is None else set().union(*(self._by_key.get(key, ()) for key in keys))
        for lasting in found:
            lasting.look_at = 0.0
        if found:
            self._soon.set()

    async def close(self) -> None:
        """End everything."""
        tasks = [*self._joining, *self._looking.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for word in tuple(self._coming):
            self._coming[word][1].cancel()
            self._forget(word)
        for lasting in tuple(self._open):
            self._cut(lasting)

    # The way through.

    async def _start(self) -> None:
        if self._server is None:
            place = f"berth-streams-{secrets.token_hex(16)}"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                # Without a file: the front door may be another user, and sees other folders.
                listener.bind(f"\0{place}")
                loop = asyncio.get_running_loop()
                self._server = await loop.create_unix_server(lambda: _Near(self), sock=listener)
            except OSError:
                listener.close()
                raise
            self._place = place
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="berth-streams")

    def come(self, near: _Near, head: bytes, rest: bytes) -> None:
        """The front door has come with a whole head; without a good word it is sent away."""
        lines = head.split(b"\r\n")
        mark = f"{STREAM_HEADER}:".lower().encode()
        words = [line[len(mark) :].strip() for line in lines if line.lower().startswith(mark)]
        found = self._coming.pop(words[0].decode("latin-1"), None) if len(words) == 1 else None
        if found is None:
            near.transport.abort()
            return
        lasting, timer = found
        timer.cancel()
        lasting.sides.append(near)
        near.lasting = lasting
        lasting.look_at = asyncio.get_running_loop().time()
        self._open.add(lasting)
        for key in lasting.keys:
            self._by_key.setdefault(key, set()).add(lasting)
        # What changed while it was on its way is looked at first of all.
        self._soon.set()
        kept = [line for line in lines if not line.lower().startswith(mark)]
        kept.append(ONWARD_HEADER.encode() + b": " + self._token)
        kept += [name + b": " + value for name, value in lasting.way]
        near.hold()
        joining = asyncio.get_running_loop().create_task(
            self._join(lasting, near, b"\r\n".join(kept) + _ENDED + rest)
        )
        self._joining.add(joining)
        joining.add_done_callback(self._joining.discard)

    async def _join(self, lasting: _Lasting, near: _Near, first: bytes) -> None:
        far = _Side(self)
        try:
            async with asyncio.timeout(COME_S):
                await asyncio.get_running_loop().create_connection(lambda: far, *self._door)
        except (OSError, TimeoutError) as error:
            log.warning("the front door does not answer for a connection that lasts: %r", error)
            self._cut(lasting)
            return
        if lasting not in self._open:
            far.transport.abort()
            return
        lasting.sides.append(far)
        far.lasting = lasting
        near.other, far.other = far, near
        far.transport.write(first)
        near.go_on()

    def ended(self, lasting: _Lasting) -> None:
        """One side has closed: what is still to be written to the other one is, and then it closes, too."""
        self._let_go(lasting)
        for side in lasting.sides:
            side.transport.close()

    def _cut(self, lasting: _Lasting) -> None:
        self._let_go(lasting)
        for side in lasting.sides:
            side.transport.abort()

    def _let_go(self, lasting: _Lasting) -> None:
        if lasting not in self._open:
            return
        self._open.discard(lasting)
        for key in lasting.keys:
            self._by_key[key].discard(lasting)
            if not self._by_key[key]:
                del self._by_key[key]
        self._counted_off(lasting.name)

    def _forget(self, word: str) -> None:
        found = self._coming.pop(word, None)
        if found is not None:
            self._counted_off(found[0].name)

    def _counted_off(self, name: str) -> None:
        self._of_workspace[name] -= 1
        if not self._of_workspace[name]:
            del self._of_workspace[name]

    # Whether it may go on.

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            waiting = [each for each in self._open if each.group not in self._looking]
            wait_s = min((each.look_at - loop.time() for each in waiting), default=None)
            if wait_s is None or wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._soon.wait()
            self._soon.clear()
            now = loop.time()
            due: dict[tuple[object, ...], list[_Lasting]] = {}
            for lasting in self._open:
                if lasting.look_at <= now and lasting.group not in self._looking:
                    lasting.look_at = now + lasting.look_every_s
                    due.setdefault(lasting.group, []).append(lasting)
            for group, found in due.items():
                # One that is not answered holds up none of the others.
                self._looking[group] = looking = loop.create_task(self._look(found))
                looking.add_done_callback(functools.partial(self._looked, group))

    def _looked(self, group: tuple[object, ...], _: asyncio.Task[None]) -> None:
        self._looking.pop(group, None)
        self._soon.set()

    async def _look(self, group: list[_Lasting]) -> None:
        """End those of one group that may not go on."""
        try:
            async with self._at_once, asyncio.timeout(LOOK_TIMEOUT_S):
                way = await self._judge(group[0].name, group[0].client)
        except Refused as refused:
            log.info("%d connections to %s are cut: %s", len(group), refused.name, refused.refusal)
            way = None
        except Exception as error:
            # No answer is no refusal, for a while.
            log.debug("whether a connection may last was not found out: %r", error)
            now = asyncio.get_running_loop().time()
            for lasting in group:
                if lasting.silent_since is None:
                    lasting.silent_since = now
                lasting.look_at = min(lasting.look_at, now + RETRY_S)
                if now - lasting.silent_since >= SILENT_S:
                    self._cut(lasting)
            return
        for lasting in group:
            lasting.silent_since = None
            if way != lasting.way:
                self._cut(lasting)


class _Side(asyncio.Protocol):
    """One of two sides of a connection: what comes goes to the other, no faster than that takes it."""

    transport: asyncio.Transport

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.other: _Side | None = None
        self.lasting: _Lasting | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.lasting is not None:
            self.streams.ended(self.lasting)

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


class _Near(_Side):
    """The side of the client, by way of the front door: first of all comes the head of its request."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        self._head: bytes | None = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = asyncio.get_running_loop().call_later(COME_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            super().data_received(data)
            return
        self._head += data
        head, found, rest = self._head.partition(_ENDED)
        if found:
            self._head = None
            self._in_time()
            self.streams.come(self, head, rest)
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
    """How many this process may have open, as many as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Whoever runs this process may have forbidden it to ask for more.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return 65_536 if soft == resource.RLIM_INFINITY else soft
