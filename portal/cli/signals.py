"""Makes SIGTERM end a command like Ctrl-C, with cleanup."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

EXIT_TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM was received, for example from a cancelled pipeline."""


def _raise(*_: Any) -> None:
    raise Terminated


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM within the block; only works in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def ignore_signals() -> Iterator[None]:
    """Ignore both signals within the block, because CI platforms send both in sequence."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(signum, signal.SIG_IGN) for signum in signals]
    try:
        yield
    finally:
        for signum, handler in zip(signals, before, strict=True):
            signal.signal(signum, handler)
