"""Folders of processes that try something, and what the killed ones of them leave behind.

A folder is made below the local driver's own, which nobody else can write. Its process holds a lock on it
for as long as it lives, so a number that serves another process later is not mistaken for its owner. What
leads out of a network names its folder (`network.py`), and so is found when the folder has no owner.
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
class Swept:
    """What was removed: folders without an owner, and processes (PID and start) that led out of nowhere."""

    folders: tuple[Path, ...] = ()
    processes: tuple[tuple[int, int], ...] = ()


def default_base() -> Path:
    """Where this user's folders are made without a driver: `local` of $BERTH_HOME, else one in the temporary
    folder that nobody else can write.

    Somebody else may have taken that one's name, as a link or a folder of theirs: then it is a new one.
    """
    home = os.environ.get("BERTH_HOME")
    if home:
        return Path(os.path.realpath(home)) / "local"
    path = Path(tempfile.gettempdir(), f"berth-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    return path if _private(path) else Path(tempfile.mkdtemp(prefix="berth-"))


def _private(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


@contextlib.contextmanager
def folder(base: Path, kind: str) -> Iterator[Path]:
    """A new folder for `kind`, held by this process until the end of the block, then removed with all in it.

    Raises `OSError`.
    """
    probes = base / PROBES
    with _alone(probes):
        path = Path(tempfile.mkdtemp(prefix=f"{kind}-{os.getpid()}-", dir=probes))
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
        except OSError:
            os.close(held)
            raise
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(held)


def sweep(base: Path) -> Swept:
    """End what leads out of a workspace or a probe of this driver that has ended, and remove such probes.

    Nothing that a living process owns is touched, however old it is. Raises `OSError`.
    """
    ended = tuple(
        (each.pid, each.start_ticks)
        for each in unowned_ways_out(base)
        if processes.send((each.pid, each.start_ticks), signal.SIGKILL)
    )
    removed = []
    probes = base / PROBES
    if probes.is_dir() and not probes.is_symlink():
        with _alone(probes):
            for path in sorted(probes.iterdir()):
                if path.name != LOCK and _is_left(path):
                    shutil.rmtree(path, ignore_errors=True)
                    removed.append(path)
    return Swept(tuple(removed), ended)


def unowned_ways_out(base: Path) -> list[network.WayOut]:
    """What leads out of a workspace or a probe of this driver that has ended."""
    # Looked for first: what has an owner when it is looked at after that had one before, or is new.
    return [each for each in network.ways_out_below(base) if not _is_owned(base, each.folder)]


def _is_owned(base: Path, path: Path) -> bool:
    """Whether a living process has the folder, or it is none that is known here."""
    if path.parent == base and path.name.startswith(WORKSPACE):
        workspace = WorkspaceDir(base, path.name)
        # An operation may be making it, or ending it: that one sees to its way out.
        return workspace.operation_held() or workspace.alive()
    if path.parent == base / PROBES:
        with _alone(base / PROBES):
            return path.exists() and not _is_left(path)
    return True


def _is_left(path: Path) -> bool:
    """Whether it is a folder of this user's that no process holds. Called while nobody makes any."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False  # gone, or a link, which nothing here makes
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
def _alone(probes: Path) -> Iterator[None]:
    """While no folder is made or removed by another process."""
    probes.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    probes.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(probes / LOCK, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
