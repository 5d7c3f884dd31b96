"""SIGTERM ends a command as Ctrl-C does: what it has to clean up, it cleans up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

EXIT_TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM has come, as from a pipeline that was cancelled."""


def _raise(*_: Any) -> None:
    raise Terminated


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """SIGTERM raises `Terminated` inside; only a main thread can have it so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """Neither signal interrupts what is inside: platforms send both, one after the other."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    both = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, signal.SIG_IGN) for each in both]
    try:
        yield
    finally:
        for each, handler in zip(both, before, strict=True):
            signal.signal(each, handler)
