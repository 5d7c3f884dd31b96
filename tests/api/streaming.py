"""Server-sent events in tests: hints sent by the test, and messages one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class Hints:
    """Replaces Redis: the test sends hints."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bool] = asyncio.Queue()
        self.left = asyncio.Event()
        self.channel = self.ends_with = ""

    async def __call__(self, channel: str, *, ends_with: str = "", **_: float) -> AsyncIterator[bool]:
        self.channel, self.ends_with = channel, ends_with
        try:
            yield True
            while True:
                yield await self.queue.get()
        finally:
            self.left.set()


async def take(content: Any, until: bytes) -> list[bytes]:
    """The chunks up to the one that contains `until`."""
    chunks = []
    async with asyncio.timeout(10):
        async for chunk in content:
            chunks.append(chunk)
            if until in chunk:
                return chunks
    raise AssertionError(f"the stream ended without {until!r}: {chunks}")
