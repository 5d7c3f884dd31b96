"""A workspace's events as server-sent events. The database is read; Redis only says when to look.

A stream holds no thread and no database connection: between two looks it waits in the event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from asgiref.sync import SyncToAsync, sync_to_async
from django.db import connections
from django.http import StreamingHttpResponse
from rest_framework.renderers import BaseRenderer, JSONRenderer

from portal.events import live

MEDIA_TYPE = "text/event-stream"
# A stream ends after a while, so that a right taken away ends it too; the client connects anew.
STREAM_S = 600
BATCH = 200


@dataclass(frozen=True, slots=True)
class Batch:
    """What one look at the database found: rows as the API shows them, and whether more can come."""

    events: list[dict[str, Any]] = field(default_factory=list)
    over: bool = False


Look = Callable[[int], Batch]


class EventStreamRenderer(BaseRenderer):
    """Lets a client ask for the stream by its `Accept` header; problems still come as JSON."""

    media_type = MEDIA_TYPE
    format = "sse"
    charset = None
    render_style = "binary"

    def render(self, data: Any, accepted_media_type: str | None = None, context: Any = None) -> bytes:
        return JSONRenderer().render(data)


def message(event: dict[str, Any]) -> bytes:
    """One event of the audit log; its id is what `Last-Event-ID` sends back."""
    data = json.dumps(event, separators=(",", ":"), default=str)
    return f"id: {event['id']}\ndata: {data}\n\n".encode()


def last_event_id(header: str) -> int | None:
    """The number in a `Last-Event-ID` header, 0 without one, None when it is not ours."""
    if not header:
        return 0
    return int(header) if header.isascii() and header.isdigit() and len(header) < 19 else None


def response(channel: str, look: Look, *, after: int) -> StreamingHttpResponse:
    """`look(after)` reads the next events, oldest first; it runs in a thread, for a moment only."""
    stream = StreamingHttpResponse(_messages(channel, look, after), content_type=MEDIA_TYPE)
    stream["Cache-Control"] = "no-store"
    stream["X-Accel-Buffering"] = "no"
    return stream


def for_workspace(workspace_id: UUID, look: Look, *, after: int) -> StreamingHttpResponse:
    return response(live.workspace_channel(workspace_id), look, after=after)


def _close_connections() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


async def let_go() -> None:
    """Give back what a request has held so far and a long answer does not need.

    Django's ASGI handler keeps one thread for each request until its answer has ended, and that
    thread keeps its database connection: a hundred open pages would use up PostgreSQL's.
    """
    await sync_to_async(_close_connections)()
    context = SyncToAsync.thread_sensitive_context.get(None)
    executor = SyncToAsync.context_to_thread_executor.pop(context, None) if context else None
    if executor is not None:
        # A new one is made should the request need one again, as at its end.
        executor.shutdown(wait=False)


async def _messages(channel: str, look: Look, after: int) -> AsyncIterator[bytes]:
    def look_and_close(after: int) -> Batch:
        try:
            return look(after)
        finally:
            _close_connections()

    # In a thread of the loop's pool, that all streams share.
    read = sync_to_async(look_and_close, thread_sensitive=False)
    await let_go()
    ends_at = asyncio.get_running_loop().time() + STREAM_S
    # Sent at once, so that proxies and clients see an open stream before anything happens.
    yield b"retry: 2000\n\n"
    async with aclosing(live.hints(channel)) as hints:
        async for _ in hints:
            # Also without a hint: one may have been lost, and the right to look may have gone.
            sent = 0
            while True:
                batch = await read(after)
                for event in batch.events:
                    after = event["id"]
                    yield message(event)
                sent += len(batch.events)
                if batch.over:
                    return
                if len(batch.events) < BATCH:
                    break
            if not sent:
                yield b": still here\n\n"
            if asyncio.get_running_loop().time() > ends_at:
                return
