"""Temporary folders of probes, and cleanup after killed ones.

A folder is created below the local driver's own folder, which no other user can write. Its process holds a
lock on it, so a reused PID is never mistaken for the owner. Egress processes name their folder
(`network.py`), so those whose folder has no owner can be found.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.drivers.local import network, processes
from provisioning.drivers.local.state import WorkspaceDir

PROBES = ".probes"
LOCK = ".lock"
WORKSPACE = "ws-"


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What was removed: folders without an owner, and egress processes as (PID, start ticks)."""

    folders: tuple[Path, ...] = ()
    processes: tuple[tuple[int, int], ...] = ()


def default_base() -> Path:
    """Return the folder for probes without a driver: `local` of $BERTH_HOME, else a private temporary folder.

    If another user occupies that name with a link or folder, a new one is created.
    """
    home = os.environ.get("BERTH_HOME")
    if home:
        return Path(os.path.realpath(home)) / "local"
    path = Path(tempfile.gettempdir(), f"berth-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    return path if _is_private(path) else Path(tempfile.mkdtemp(prefix="berth-"))


def _is_private(path: Path) -> bool:
    info = path.lstat()
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o077


@contextlib.contextmanager
def folder(base: Path, kind: str) -> Iterator[Path]:
    """Create a folder for `kind`, locked by this process; removed with its content at the end of the block.

    Raises `OSError`.
    """
    probes = base / PROBES
    with _exclusive_lock(probes):
        path = Path(tempfile.mkdtemp(prefix=f"{kind}-{os.getpid()}-", dir=probes))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            os.close(descriptor)
            raise
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def sweep(base: Path) -> SweepResult:
    """Kill egress processes of ended workspaces and probes of this driver, and remove ended probes.

    Never touches anything owned by a living process. Raises `OSError`.
    """
    ended = tuple(
        (process.pid, process.start_ticks)
        for process in unowned_egress_processes(base)
        if processes.send((process.pid, process.start_ticks), signal.SIGKILL)
    )
    removed = []
    probes = base / PROBES
    if probes.is_dir() and not probes.is_symlink():
        with _exclusive_lock(probes):
            for path in sorted(probes.iterdir()):
                if path.name != LOCK and _is_left(path):
                    shutil.rmtree(path, ignore_errors=True)
                    removed.append(path)
    return SweepResult(tuple(removed), ended)


def unowned_egress_processes(base: Path) -> list[network.EgressProcess]:
    """Return the egress processes of ended workspaces and probes of this driver."""
    # List processes before owners: then any without an owner has really lost it.
    return [
        process for process in network.egress_processes_below(base) if not _is_owned(base, process.folder)
    ]


def _is_owned(base: Path, path: Path) -> bool:
    """Return whether a living process owns the folder, or it is of unknown kind."""
    if path.parent == base and path.name.startswith(WORKSPACE):
        workspace = WorkspaceDir(base, path.name)
        # An operation in progress may create or end it, and handles its egress.
        return workspace.operation_held() or workspace.alive()
    if path.parent == base / PROBES:
        with _exclusive_lock(base / PROBES):
            return path.exists() and not _is_left(path)
    return True


def _is_left(path: Path) -> bool:
    """Return whether the path is a folder of this user that no process has locked.

    Called while no folders are created.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False  # gone, or a link, which is not ours
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


@contextlib.contextmanager
def _exclusive_lock(probes: Path) -> Iterator[None]:
    """Block other processes from creating or removing folders meanwhile."""
    probes.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    probes.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(probes / LOCK, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
