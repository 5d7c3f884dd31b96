"""Server-sent events for pages and REST. Events come from the database; Redis only triggers reads.

Between reads a stream waits in the event loop. It holds no thread, database connection or Redis connection.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from asgiref.sync import SyncToAsync, sync_to_async
from django.conf import settings
from django.db import connections
from django.http import StreamingHttpResponse
from rest_framework.renderers import BaseRenderer, JSONRenderer

from portal.common.errors import TooMany
from portal.common.events import live
from portal.common.events.codes import EventCode
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason

MEDIA_TYPE = "text/event-stream"
# Streams end after this time, so that revoked rights take effect. Clients reconnect.
STREAM_S = 600
BATCH = 200
RETRY_AFTER_S = 10
_HEARTBEAT = b": still here\n\n"
_PRELUDE = b"retry: 2000\n\n"


class TooManyStreams(TooMany):
    """The user has reached the limit of open streams per process."""

    code = ProblemCode.TOO_MANY_STREAMS
    title = "Too many streams"


@dataclass(frozen=True, slots=True)
class Batch:
    """Result of one read. `events` are rows as the API shows them.

    `over` ends the stream; `more` means that further rows are available now.
    """

    events: list[dict[str, Any]] = field(default_factory=list)
    over: bool = False
    more: bool = False


# `read(after)` reads the next events, oldest first. Runs in a thread and must be short.
ReadEvents = Callable[[int], Batch]


@dataclass(frozen=True, slots=True)
class _StreamStep:
    """The next messages of a stream. `more` requests another turn immediately; `over` ends the stream."""

    messages: list[bytes] = field(default_factory=list)
    more: bool = False
    over: bool = False


# Called with a hint at the changes since the last turn.
_Source = Callable[[live.Hint], Awaitable[_StreamStep]]


class EventStreamRenderer(BaseRenderer):
    """Lets clients request the stream by `Accept`. Problems are still rendered as JSON."""

    media_type = MEDIA_TYPE
    format = "sse"
    charset = None
    render_style = "binary"

    def render(self, data: Any, accepted_media_type: str | None = None, context: Any = None) -> bytes:
        return JSONRenderer().render(data)


def message(*, data: str = "", event: str = "", number: int | None = None) -> bytes:
    """Return one server-sent event. `data` is one line; `number` becomes the `Last-Event-ID`."""
    lines = [f"event: {event}"] if event else []
    if number is not None:
        lines.append(f"id: {number}")
    lines.append(f"data: {data}" if data else "data:")
    return "\n".join([*lines, "", ""]).encode()


def last_event_id(header: str) -> int | None:
    """Parse a `Last-Event-ID` header. Returns 0 without a header, None if it is invalid."""
    if not header:
        return 0
    return int(header) if header.isascii() and header.isdigit() and len(header) < 19 else None


def response(
    channel: str,
    read: ReadEvents,
    *,
    after: int,
    user_id: UUID,
    every_s: float = live.IDLE_S,
    executor: ThreadPoolExecutor | None = None,
    named_by: str = "",
) -> StreamingHttpResponse:
    """Return a stream of the events after `after`, then of each new event. Raises `TooManyStreams`.

    Reads on each hint, and every `every_s` seconds without one. Pass `executor` if `read` may block. The
    value of an event at the key `named_by` becomes the name of its message.
    """
    return _response(channel, _Rows(read, after, executor, named_by), user_id, every_s)


def changes(channel: str, *, user_id: UUID, measured: bool = False) -> StreamingHttpResponse:
    """Return a stream of `changed` events, which make a page reload. Raises `TooManyStreams`.

    With `measured`, the stream also has `measured` events: running workspaces have new measurements.
    """
    return _response(channel, _named_turn, user_id, measured=measured)


def _response(
    channel: str, source: _Source, user_id: UUID, every_s: float = live.IDLE_S, *, measured: bool = False
) -> StreamingHttpResponse:
    limit = settings.BERTH_STREAMS_PER_USER
    if limit and _open_streams[user_id] >= limit:
        raise TooManyStreams(
            Reason(EventCode.TOO_MANY_STREAMS, {"limit": limit}), retry_after_s=RETRY_AFTER_S
        )
    hints = partial(live.hints, channel, every_s=every_s, measured=measured)
    stream = StreamingHttpResponse(_stream_bytes(hints, source, user_id), content_type=MEDIA_TYPE)
    stream["Cache-Control"] = "no-store"
    stream["X-Accel-Buffering"] = "no"
    return stream


_open_streams: Counter[UUID] = Counter()
_open_streams_lock = threading.Lock()


@contextmanager
def _count_stream(user_id: UUID) -> Iterator[None]:
    """Count a stream as open within the block.

    Streams that start at the same moment may exceed the limit slightly.
    """
    with _open_streams_lock:
        _open_streams[user_id] += 1
    try:
        yield
    finally:
        with _open_streams_lock:
            _open_streams[user_id] -= 1
            if not _open_streams[user_id]:
                del _open_streams[user_id]


async def _named_turn(hint: live.Hint) -> _StreamStep:
    return _StreamStep([message(event=str(flag.name).lower()) for flag in live.Hint if flag in hint])


class _Rows:
    """Reads the rows after the last one.

    Each turn reads even without a hint, because hints may be lost and permissions may change.
    """

    def __init__(
        self, read: ReadEvents, after: int, executor: ThreadPoolExecutor | None = None, named_by: str = ""
    ) -> None:
        self._read_events = read
        self._after = after
        self._named_by = named_by
        # In the given executor, or in the loop's default pool, shared by all streams.
        self._read = sync_to_async(self._read_and_close, thread_sensitive=False, executor=executor)

    def _read_and_close(self) -> Batch:
        try:
            return self._read_events(self._after)
        finally:
            _close_connections()

    async def __call__(self, _hint: live.Hint) -> _StreamStep:
        batch = await self._read()
        messages = []
        for event in batch.events:
            self._after = event["id"]
            data = json.dumps(event, separators=(",", ":"), default=str)
            name = event[self._named_by] if self._named_by else ""
            messages.append(message(data=data, event=name, number=self._after))
        return _StreamStep(messages, more=batch.more or len(messages) >= BATCH, over=batch.over)


def _close_connections() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


async def release_request_resources() -> None:
    """Release the resources of the request that a long response does not need.

    Django's ASGI handler keeps a thread per request until the response ends, and the thread keeps its
    database connection. A hundred open pages would use up PostgreSQL's connections.
    """
    await sync_to_async(_close_connections)()
    context = SyncToAsync.thread_sensitive_context.get(None)
    executor = SyncToAsync.context_to_thread_executor.pop(context, None) if context else None
    if executor is not None:
        # The request gets a new executor if it needs one again, as at its end.
        executor.shutdown(wait=False)


async def _stream_bytes(
    hints_until: Callable[..., AsyncGenerator[live.Hint, None]], source: _Source, user_id: UUID
) -> AsyncIterator[bytes]:
    """Yield the bytes of a stream. Comments keep the connection open and detect a disconnected reader."""
    await release_request_resources()
    ends_at = asyncio.get_running_loop().time() + STREAM_S
    # A disconnect ends this generator. The subscription must end with it, not at garbage collection.
    with _count_stream(user_id):
        # Sent immediately, so that proxies and clients see an open stream.
        yield _PRELUDE
        async with aclosing(hints_until(ends_with=live.account_channel(user_id))) as hints:
            async for hint in hints:
                sent, more = 0, True
                while more:
                    turn = await source(hint)
                    for message in turn.messages:
                        yield message
                    if turn.over:
                        return
                    sent, more = sent + len(turn.messages), turn.more
                if not sent:
                    yield _HEARTBEAT
                if asyncio.get_running_loop().time() > ends_at:
                    return
