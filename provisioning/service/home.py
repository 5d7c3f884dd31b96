"""The folder for the state of services: created, writable, with enough space."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from provisioning.service.console import Problem

DISK_NEEDED_MIB = 1024


def check_platform() -> None:
    """Raise `Problem` unless this is Linux: services are watched through /proc and pidfd."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        raise Problem(
            f"Berth's services need Linux; this is {sys.platform}.",
            "Use compose.yaml (docs/containers.md).",
        )


def prepare(home: Path, *, private: Sequence[str], others: Sequence[str], command: str) -> None:
    """Create the folder with these subfolders, and check that it is writable and has space.

    `private` folders are only accessible to this user; the first is tested by writing. Messages suggest
    `command` with another folder. Raises `Problem`.
    """
    try:
        for folder in (home, *(home / name for name in (*private, *others))):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (home / name for name in private):
            # An installation's log may have created the folder earlier.
            if folder.stat().st_uid == os.geteuid():
                folder.chmod(0o700)
        with tempfile.NamedTemporaryFile(dir=home / private[0], prefix=".write-test-") as probe:
            probe.write(b"x" * 4096)
            probe.flush()
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise Problem(f"The disk under {home} is full.", "Free some space, then try again.") from error
        raise Problem(
            f"BERTH_HOME {home} cannot be written ({error.strerror}).",
            f"Make it writable for this user, or choose another: BERTH_HOME=~/berth {command}",
        ) from error
    free_mib = free_disk_mib(home)
    if free_mib < DISK_NEEDED_MIB:
        raise Problem(
            f"Only {free_mib} MiB are free under {home}; Berth needs {DISK_NEEDED_MIB}.",
            f"Free some space, or choose another folder: BERTH_HOME=/path {command}",
        )


def free_disk_mib(folder: Path) -> int:
    return shutil.disk_usage(folder).free // (1024 * 1024)
