"""Letting go of NVML for a while: no GPU can be reset while a process of this machine has it open.

Whoever resets a GPU holds a file locked, with a deadline in it. The sampler, the watcher and inventory look
at it and keep NVML closed meanwhile; so they do for a moment when their process forks (`forks`). When the
holder ends or is killed, the kernel gives the lock back; when it hangs, the deadline passes. In either case
all take NVML up again by themselves.
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
"""NVML is taken up again after this at the latest, whatever has become of the reset."""
LOOK_S = 0.2
TAKE_S = 0.5
_NAME = "nvml-released"


class Taken(Exception):
    """Another GPU of this machine is being reset."""


class StillAsked(Exception):
    """A GPU of this machine is being reset, for longer than somebody wanted to wait."""


def lock_folder() -> Path:
    """Where the locks of this machine's devices are: the same for every worker process of one user."""
    base = os.environ.get("BERTH_HOME") or tempfile.gettempdir()
    return Path(base) / f"gpu-locks-{os.getuid()}"


@contextmanager
def released(*, lease_s: float = LEASE_S) -> Iterator[int]:
    """Have everybody let go of NVML for the length of the block, and no longer than `lease_s`.

    Gives the descriptor that holds it: a process that has it keeps NVML released when its parent is killed.
    Raises `Taken`.
    """
    folder = lock_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / _NAME).open("a+") as file:
        _take(file)
        file.truncate(0)
        # Monotonic time is the machine's own, and the same for all of its processes. Whole: rounded, it could
        # be later than asked for.
        file.write(repr(time.monotonic() + lease_s))
        file.flush()
        yield file.fileno()


def _take(file: IO[str]) -> None:
    until = time.monotonic() + TAKE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Perhaps only somebody who looks.
            if time.monotonic() > until:
                raise Taken from None
            time.sleep(TAKE_S / 20)
        else:
            return


def is_asked() -> bool:
    """Whether NVML is to be left closed now."""
    return forks.is_asked() or _is_held()


def _is_held() -> bool:
    try:
        file = (lock_folder() / _NAME).open()
    except OSError:
        return False
    with file:
        try:
            # Shared: those who look are not taken for the one who resets by each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return time.monotonic() < _deadline(file.read())
        return False


def wait(limit_s: float = math.inf) -> None:
    """Until NVML may be opened. Raises `StillAsked` when that takes longer than `limit_s`."""
    until = time.monotonic() + limit_s
    while is_asked():
        if time.monotonic() >= until:
            raise StillAsked
        time.sleep(LOOK_S)


def _deadline(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0  # just taken, and not written yet: seen at the next look
