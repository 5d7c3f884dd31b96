"""Detects whether a process on this machine uses a Python folder, which then must not be removed."""

from __future__ import annotations

import os
from pathlib import Path
from time import sleep

PROC = Path("/proc")
MAX_ATTEMPTS = 20
RETRY_INTERVAL_S = 0.01
"""Number of attempts, and their interval, for a process without arguments."""


def in_use(folder: Path) -> bool:
    """Return whether a process on this machine refers to the folder, or mounts it in its sandbox.

    Considers the processes that this user may inspect, except this process.
    """
    needle = os.fsencode(folder)
    # A sandbox mounts it at the same path, escaped in its mountinfo.
    shown = os.fsencode(str(folder).replace("\\", "\\134").replace(" ", "\\040") + " ")
    return any(
        needle in _arguments_and_environment(entry) or shown in _read(entry / "mountinfo")
        for entry in PROC.iterdir()
        if entry.name.isdecimal() and int(entry.name) != os.getpid()
    )


def _arguments_and_environment(entry: Path) -> bytes:
    """Return the arguments and the environment of a process.

    During `execve` a process briefly has neither, although the kernel already knows its program: retry then.
    """
    text = b""
    for _ in range(MAX_ATTEMPTS):
        text = _read(entry / "cmdline") + _read(entry / "environ")
        if text or not _has_program(entry):
            break
        sleep(RETRY_INTERVAL_S)
    return text


def _has_program(entry: Path) -> bool:
    """Return False for kernel threads and ended processes."""
    try:
        return bool((entry / "exe").readlink())
    except OSError:
        return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
