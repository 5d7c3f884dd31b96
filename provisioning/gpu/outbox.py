"""Send batches in a separate thread, oldest first; failed batches are retried."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")
RETRY_S = 5.0


class Outbox(Generic[T]):
    """Queue of batches for `sink`, which may raise.

    `what` names the content in logs. Beyond `limit` batches the oldest is dropped.
    """

    def __init__(self, sink: Callable[[list[T]], None], *, content: str, limit: int) -> None:
        self._sink, self._content, self._limit = sink, content, limit
        self._waiting: deque[list[T]] = deque()
        self._ready = threading.Condition()
        self._thread: threading.Thread | None = None
        self._failed = False

    def ensure_running(self, end: threading.Event) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, args=(end,), name=f"gpu-{self._content}", daemon=True
            )
            self._thread.start()

    def wake(self) -> None:
        with self._ready:
            self._ready.notify()

    def put(self, batch: list[T]) -> None:
        with self._ready:
            self._waiting.append(batch)
            if len(self._waiting) > self._limit:
                self._waiting.popleft()
                log.warning("dropped %s: the queue is full", self._content)
            self._ready.notify()

    def flush(self) -> bool:
        """Send waiting batches until the sink fails; return True if none is left."""
        while True:
            with self._ready:
                if not self._waiting:
                    return True
                batch = self._waiting[0]
            try:
                self._sink(batch)
            except Exception as error:
                if not self._failed:
                    log.warning("could not send %s, will retry: %s", self._content, error)
                self._failed = True
                return False
            self._failed = False
            with self._ready:
                if self._waiting and self._waiting[0] is batch:
                    self._waiting.popleft()

    def _run(self, end: threading.Event) -> None:
        while not end.is_set():
            self.flush()
            with self._ready:
                if not self._waiting or self._failed:
                    # A new batch wakes it; otherwise it checks regularly whether to end.
                    self._ready.wait(RETRY_S)
