"""Prevent forks while NVML is open: a child would hold every GPU of the machine open.

NVML keeps devices open, and a forked child inherits them, with library locks that no thread in it releases.
So a process requests that NVML be closed before it forks (`prepare`). Long-lived sessions notice this like a
reset (`release`), close NVML, and reopen it after the fork. A hanging driver is not waited for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

WAIT_S = 5.0
"""Sessions check once per second and must return from the driver."""
HOLD_S = 10.0
"""NVML is reopened after this at the latest, in case the fork fails."""


class _Sessions:
    """The number of NVML sessions open in this process, and until when none may be opened."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.open = 0
        self.closed_until = 0.0

    def is_close_requested(self) -> bool:
        return time.monotonic() < self.closed_until


_process_sessions = _Sessions()


@contextmanager
def session() -> Iterator[None]:
    """Keep NVML open in this process during the block; wait first if a fork is imminent."""
    sessions = _process_sessions
    with sessions.changed:
        while sessions.is_close_requested():
            sessions.changed.wait(max(0.0, sessions.closed_until - time.monotonic()))
        sessions.open += 1
    try:
        yield
    finally:
        with sessions.changed:
            sessions.open -= 1
            sessions.changed.notify_all()


def is_close_requested() -> bool:
    """Return whether NVML must be closed because this process is about to fork."""
    return _process_sessions.is_close_requested()


def prepare(*, wait_s: float = WAIT_S, hold_s: float = HOLD_S) -> bool:
    """Request that NVML be closed until the next fork; return whether it is closed."""
    sessions = _process_sessions
    with sessions.changed:
        sessions.closed_until = time.monotonic() + hold_s
        return sessions.changed.wait_for(lambda: not sessions.open, wait_s)


def _reopen() -> None:
    with _process_sessions.changed:
        _process_sessions.closed_until = 0.0
        _process_sessions.changed.notify_all()


def _reset_in_child() -> None:
    # The thread that held the old lock does not exist in the child.
    global _process_sessions
    _process_sessions = _Sessions()


os.register_at_fork(after_in_parent=_reopen, after_in_child=_reset_in_child)
