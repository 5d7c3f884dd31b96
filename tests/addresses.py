"""This machine's network addresses, which stay as they are while a browser of the tests loads something.

Chromium ends what it loads with ERR_NETWORK_CHANGED when an address of its machine comes or goes. So whoever
adds or removes one waits for the tests with a browser of all processes, and these wait for it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def staying() -> Iterator[None]:
    """For a test that looks at pages; several at a time. None in one that changes addresses within it."""
    with ExitStack() as held:
        with ExitStack() as door:
            door.enter_context(_locked("door", fcntl.LOCK_SH))
            held.enter_context(_locked("addresses", fcntl.LOCK_SH))
        yield


@contextmanager
def changing() -> Iterator[None]:
    """For the moment in which addresses come or go. Tests that begin later wait at the door meanwhile."""
    with _locked("door", fcntl.LOCK_EX), _locked("addresses", fcntl.LOCK_EX):
        yield


@contextmanager
def _locked(name: str, how: int) -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / f"berth-test-{name}-{os.getuid()}"
    with path.open("a") as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:
            # Not by closing it alone: what was forked meanwhile has it open, too.
            fcntl.flock(file, fcntl.LOCK_UN)
