"""Allows one supervisor per instance, by a lock that the kernel releases however its holder ends.

`folder` is the instance's `run` folder, with the lock and the supervisor's state file.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provisioning.service import processes
from provisioning.service.console import Problem

LOCK = "up.lock"


def state_path(folder: Path) -> Path:
    return folder / "state.json"


def read_state(folder: Path) -> dict[str, Any]:
    """Return the last state of the running supervisor; empty if there is none."""
    try:
        state = json.loads(state_path(folder).read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def is_held(folder: Path) -> bool:
    """Return whether a supervisor of this instance is running."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Problem(
            f"{folder / LOCK} cannot be opened ({error.strerror}).",
            "Run this as the user who started Berth.",
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def supervisor_pid(folder: Path) -> int | None:
    """Return the PID of the running supervisor, if the recorded process still exists."""
    state = read_state(folder)
    pid, started = state.get("pid"), state.get("pid_started_at")
    if not isinstance(pid, int) or state.get("boot_id") != processes.boot_id():
        return None
    return pid if processes.started_at(pid) == started else None


@contextmanager
def hold(folder: Path, *, refusal: Callable[[dict[str, Any]], Problem]) -> Iterator[None]:
    """Hold the lock; if another supervisor holds it, raise the result of `refusal` for its state."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise refusal(read_state(folder)) from error
        yield
    finally:
        os.close(handle)
