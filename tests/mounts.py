"""What a test run has mounted and left: a folder in which something is mounted cannot be removed."""

from __future__ import annotations

import os
from pathlib import Path

from provisioning.drivers.local import attach, mount_table

MNT_DETACH = 2


def inside(folder: Path) -> list[Path]:
    """Where something is mounted at or below a folder, innermost first."""
    return sorted((path for path in mount_table.points() if path.is_relative_to(folder)), reverse=True)


def detach(folder: Path) -> None:
    """Take away whatever is mounted at or below a folder, used or not. Silent where that is not allowed."""
    for path in inside(folder.resolve()):
        attach.libc.umount2(os.fsencode(path), MNT_DETACH)


def detach_abandoned(folder: Path) -> None:
    """The same in those of pytest's numbered folders whose runs are over: pytest will want to remove them."""
    for run in {folder / path.relative_to(folder).parts[0] for path in inside(folder) if path != folder}:
        if not _is_running(run):
            detach(run)


def _is_running(run: Path) -> bool:
    # pytest writes its process id into the lock of a run's folder, and takes the lock away at its end.
    try:
        os.kill(int((run / ".lock").read_text()), 0)
    except (OSError, ValueError):
        return False
    return True
