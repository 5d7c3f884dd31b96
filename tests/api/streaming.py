"""Server-sent events in tests: hints that the test gives, and messages one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class Hints:
    """Stands for Redis: the test says when there is one."""

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
    """Chunks up to the one that holds `until`."""
    chunks = []
    async with asyncio.timeout(10):
        async for chunk in content:
            chunks.append(chunk)
            if until in chunk:
                return chunks
    raise AssertionError(f"the stream ended without {until!r}: {chunks}")
