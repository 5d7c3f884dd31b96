"""The worker step of a thread that watches the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from celery import bootsteps

STOP_WITHIN_S = 2.0


class Watch(Protocol):
    """A thread, not started yet."""

    def start(self) -> None: ...

    def stop(self, *, timeout_s: float) -> None: ...


class WatchStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Watches while the worker runs, also while the broker is unavailable.

    `watch` returns the thread for a consumer, or None if there is nothing to watch.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)
    watch: Callable[[Any], Watch | None]

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._running: Watch | None = None

    def start(self, consumer: Any) -> None:
        if self._running is None and (watch := self.watch(consumer)) is not None:
            watch.start()
            self._running = watch

    def stop(self, _consumer: Any) -> None:
        """Do nothing when the connection is lost: the watch continues until `shutdown`."""

    def shutdown(self, _consumer: Any) -> None:
        if self._running is not None:
            self._running.stop(timeout_s=STOP_WITHIN_S)
            self._running = None
