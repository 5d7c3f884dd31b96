"""A lock on this machine's network addresses, for tests with a browser.

Chromium fails a load with ERR_NETWORK_CHANGED when an address of its machine changes. Code that adds or
removes addresses therefore waits for all tests with a browser, and these wait for it.
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
    """Shared lock for tests with a browser. A test that changes addresses must not hold it."""
    with ExitStack() as held:
        with ExitStack() as door:
            door.enter_context(_locked("door", fcntl.LOCK_SH))
            held.enter_context(_locked("addresses", fcntl.LOCK_SH))
        yield


@contextmanager
def changing() -> Iterator[None]:
    """Exclusive lock while addresses change. Tests that start later wait."""
    with _locked("door", fcntl.LOCK_EX), _locked("addresses", fcntl.LOCK_EX):
        yield


@contextmanager
def _locked(name: str, operation: int) -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / f"berth-test-{name}-{os.getuid()}"
    with path.open("a") as file:
        fcntl.flock(file, operation)
        try:
            yield
        finally:
            # Closing alone is not enough: forked processes have it open, too.
            fcntl.flock(file, fcntl.LOCK_UN)
