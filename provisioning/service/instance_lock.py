"""One supervisor per instance: a lock that the kernel gives back however its holder ends.

`folder` is the instance's `run` folder, which holds the lock and what the supervisor publishes.
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
    """What the running supervisor published last; empty when there is nothing to read."""
    try:
        state = json.loads(state_path(folder).read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def is_held(folder: Path) -> bool:
    """Whether a supervisor of this instance runs now."""
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
    """The PID of the running supervisor, when the published one is still that process."""
    state = read_state(folder)
    pid, started = state.get("pid"), state.get("pid_started_at")
    if not isinstance(pid, int) or state.get("boot_id") != processes.boot_id():
        return None
    return pid if processes.started_at(pid) == started else None


@contextmanager
def hold(folder: Path, *, refusal: Callable[[dict[str, Any]], Problem]) -> Iterator[None]:
    """Hold the lock; when another supervisor does, raise what `refusal` makes of the state it published."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise refusal(read_state(folder)) from error
        yield
    finally:
        os.close(handle)
