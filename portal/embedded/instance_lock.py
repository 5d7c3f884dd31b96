"""One supervisor per instance: a lock that the kernel gives back however its holder ends."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from portal.embedded import processes
from portal.embedded.console import Problem
from portal.embedded.environment import Instance


def state_path(instance: Instance) -> Path:
    return instance.run_dir / "state.json"


def read_state(instance: Instance) -> dict[str, Any]:
    """What the running supervisor published last; empty when there is nothing to read."""
    try:
        state = json.loads(state_path(instance).read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def is_held(instance: Instance) -> bool:
    """Whether a supervisor of this instance runs now."""
    try:
        handle = os.open(instance.run_dir / "up.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Problem(
            f"{instance.run_dir / 'up.lock'} cannot be opened ({error.strerror}).",
            "Run this as the user who ran `make up`.",
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def supervisor_pid(instance: Instance) -> int | None:
    """The PID of the running supervisor, when the published one is still that process."""
    state = read_state(instance)
    pid, started = state.get("pid"), state.get("pid_started_at")
    if not isinstance(pid, int) or state.get("boot_id") != processes.boot_id():
        return None
    return pid if processes.started_at(pid) == started else None


@contextmanager
def hold(instance: Instance) -> Iterator[None]:
    """Hold the lock; `Problem` when another supervisor does."""
    handle = os.open(instance.run_dir / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            state = read_state(instance)
            url = state.get("url") or instance.public_url
            raise Problem(
                f"Berth already runs from {instance.home}: {url}",
                "See it with `make status`, stop it with `make down`.",
            ) from error
        yield
    finally:
        os.close(handle)
