"""Mounts left by test runs: a folder with a mount in it cannot be removed."""

from __future__ import annotations

import os
from pathlib import Path

from provisioning.drivers.local import attach, mount_table

MNT_DETACH = 2


def inside(folder: Path) -> list[Path]:
    """The mount points at or below a folder, innermost first."""
    return sorted((path for path in mount_table.points() if path.is_relative_to(folder)), reverse=True)


def detach(folder: Path) -> None:
    """Unmount everything at or below a folder, even if in use. Ignores missing permission."""
    for path in inside(folder.resolve()):
        attach.libc.umount2(os.fsencode(path), MNT_DETACH)


def detach_abandoned(folder: Path) -> None:
    """The same in pytest's numbered folders of finished runs, which pytest will remove."""
    for run in {folder / path.relative_to(folder).parts[0] for path in inside(folder) if path != folder}:
        if not _is_running(run):
            detach(run)


def _is_running(run: Path) -> bool:
    # pytest writes its process ID into the lock file of a run's folder, and removes the file at its end.
    try:
        os.kill(int((run / ".lock").read_text()), 0)
    except (OSError, ValueError):
        return False
    return True
