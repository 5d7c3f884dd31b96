"""Close NVML temporarily: no GPU can be reset while a process of this machine has it open.

The process that resets a GPU locks a file that contains a deadline. The sampler, the watcher and inventory
check it and keep NVML closed meanwhile. They also do so briefly when their process forks (`forks`). If the
holder exits or is killed, the kernel releases the lock; if it hangs, the deadline passes. In both cases all
reopen NVML automatically.
"""

from __future__ import annotations

import fcntl
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from provisioning.gpu import forks

LEASE_S = 120.0
"""NVML is reopened after this at the latest, regardless of the state of the reset."""
POLL_INTERVAL_S = 0.2
TAKE_S = 0.5
_NAME = "nvml-released"


class ResetInProgress(Exception):
    """Another GPU of this machine is being reset."""


class ResetNotOver(Exception):
    """A GPU of this machine is being reset, for longer than the caller waits."""


def lock_folder() -> Path:
    """Return the folder of device locks, shared by all worker processes of one user."""
    base = os.environ.get("BERTH_HOME") or tempfile.gettempdir()
    return Path(base) / f"gpu-locks-{os.getuid()}"


@contextmanager
def release_nvml(*, lease_s: float = LEASE_S) -> Iterator[int]:
    """Keep NVML closed in all processes during the block, for at most `lease_s`.

    Yields the lock's descriptor. A process that inherits it keeps NVML closed even if its parent is killed.
    Raises `ResetInProgress`.
    """
    folder = lock_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / _NAME).open("a+") as file:
        _take_lock(file)
        file.truncate(0)
        # Monotonic time is shared by all processes of a machine. Written in full precision: rounding could
        # extend the lease.
        file.write(repr(time.monotonic() + lease_s))
        file.flush()
        yield file.fileno()


def _take_lock(file: IO[str]) -> None:
    until = time.monotonic() + TAKE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Perhaps just a reader that checks.
            if time.monotonic() > until:
                raise ResetInProgress from None
            time.sleep(TAKE_S / 20)
        else:
            return


def is_release_requested() -> bool:
    """Return whether NVML must be kept closed now."""
    return forks.is_close_requested() or _is_held()


def _is_held() -> bool:
    try:
        file = (lock_folder() / _NAME).open()
    except OSError:
        return False
    with file:
        try:
            # A shared lock, so concurrent readers do not mistake each other for a reset.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return time.monotonic() < _deadline(file.read())
        return False


def wait(limit_s: float = math.inf) -> None:
    """Wait until NVML may be opened. Raises `ResetNotOver` after `limit_s`."""
    until = time.monotonic() + limit_s
    while is_release_requested():
        if time.monotonic() >= until:
            raise ResetNotOver
        time.sleep(POLL_INTERVAL_S)


def _deadline(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0  # just locked and not written yet; the next check sees it
