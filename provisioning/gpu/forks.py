"""No process is forked while NVML is open here: its child would have every GPU of the machine open as well.

NVML keeps the devices open for as long as it is, and a child that is forked has what its parent has, with
locks of the library that nobody in it gives back. So whoever forks asks for NVML to be closed before
(`prepare`). Those who have it open for long see that as they see a reset (`release`), close it, and open it
again once the child is there. A driver that hangs is not waited for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

WAIT_S = 5.0
"""They look once a second, and have to come back from the driver."""
HOLD_S = 10.0
"""NVML is taken up again after this at the latest: a fork may fail."""


class _Sessions:
    """How many sessions of NVML are open in this process, and until when none may be opened."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.open = 0
        self.closed_until = 0.0

    def is_asked(self) -> bool:
        return time.monotonic() < self.closed_until


_here = _Sessions()


@contextmanager
def session() -> Iterator[None]:
    """Held as long as NVML is open in this process; waits while it is about to fork."""
    here = _here
    with here.changed:
        while here.is_asked():
            here.changed.wait(max(0.0, here.closed_until - time.monotonic()))
        here.open += 1
    try:
        yield
    finally:
        with here.changed:
            here.open -= 1
            here.changed.notify_all()


def is_asked() -> bool:
    """Whether NVML is to be closed, because this process is about to fork."""
    return _here.is_asked()


def prepare(*, wait_s: float = WAIT_S, hold_s: float = HOLD_S) -> bool:
    """Have NVML closed until the next fork; whether it is."""
    here = _here
    with here.changed:
        here.closed_until = time.monotonic() + hold_s
        return here.changed.wait_for(lambda: not here.open, wait_s)


def _go_on() -> None:
    with _here.changed:
        _here.closed_until = 0.0
        _here.changed.notify_all()


def _begin_anew() -> None:
    # Whatever thread held the lock of before is not in the child.
    global _here
    _here = _Sessions()


os.register_at_fork(after_in_parent=_go_on, after_in_child=_begin_anew)
