"""Whether anything on this machine uses a folder of Python: what is used must not be removed."""

from __future__ import annotations

import os
from pathlib import Path
from time import sleep

PROC = Path("/proc")
LOOKS = 20
LOOK_S = 0.01
"""How often, and after how long, a process is looked at again that has no arguments yet."""


def in_use(folder: Path) -> bool:
    """Whether a process on this machine names the folder, or shows it in its sandbox.

    Seen are the processes that this user may look at. This process itself does not count.
    """
    needle = os.fsencode(folder)
    # A sandbox shows it at its own path, which its list of mounts writes so.
    shown = os.fsencode(str(folder).replace("\\", "\\134").replace(" ", "\\040") + " ")
    return any(
        needle in _words(entry) or shown in _read(entry / "mountinfo")
        for entry in PROC.iterdir()
        if entry.name.isdecimal() and int(entry.name) != os.getpid()
    )


def _words(entry: Path) -> bytes:
    """The arguments and the environment of a process.

    While it is being replaced by a program (`execve`) it has neither for a moment, though the kernel knows
    the program already: it is looked at again.
    """
    words = b""
    for _ in range(LOOKS):
        words = _read(entry / "cmdline") + _read(entry / "environ")
        if words or not _has_program(entry):
            break
        sleep(LOOK_S)
    return words


def _has_program(entry: Path) -> bool:
    """No thread of the kernel, and none that has ended."""
    try:
        return bool((entry / "exe").readlink())
    except OSError:
        return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
