"""Changes the owner of a home to the machine user that works in it from now on.

A folder is changed after its contents, so a changed folder is complete. After a kill, the next call continues
from there. Links themselves are changed, not their targets; other file systems are skipped. Nothing else may
use the home meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SET_ID = stat.S_ISUID | stat.S_ISGID
MAX_DEPTH = 200
MIN_ENTRIES = 2000
"""Minimum number of entries per call, so that every call makes progress."""


class TooDeep(OSError):
    """Folders are nested too deeply to be traversed."""


def hand_over(home: str | os.PathLike[str], uid: int, *, limit_s: float) -> bool:
    """Return True if the home and its contents belong to `uid`; False after `limit_s` seconds. Root only.

    Programs lose their set-user-ID and set-group-ID bits; devices remain root's. Raises `OSError`, also if
    the home is a link.
    """
    descriptor = os.open(home, _FOLDER)
    try:
        if _belongs(os.fstat(descriptor), uid):
            return True
        return _OwnershipWalk(uid, os.fstat(descriptor).st_dev, time.monotonic() + limit_s).folder(
            descriptor, 0
        )
    finally:
        os.close(descriptor)


def _belongs(status: os.stat_result, uid: int) -> bool:
    return status.st_uid == uid and status.st_gid == uid


class _OwnershipWalk:
    def __init__(self, uid: int, device: int, until: float) -> None:
        self.uid = uid
        self.device = device
        self.until = until
        self.handed_over = 0

    def folder(self, descriptor: int, depth: int) -> bool:
        """Change the contents of an open folder, then the folder; return False if the time is up."""
        if depth > MAX_DEPTH:
            raise TooDeep(f"folders are nested deeper than {MAX_DEPTH}")
        for name in _names(descriptor):
            if not self._entry(descriptor, name, depth):
                return False
        os.fchown(descriptor, self.uid, self.uid)
        self.handed_over += 1
        return True

    def _entry(self, place: int, name: str, depth: int) -> bool:
        if self.handed_over >= MIN_ENTRIES and time.monotonic() >= self.until:
            return False
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=place, follow_symlinks=False)
            if status.st_dev != self.device or _belongs(status, self.uid):
                return True
            if stat.S_ISDIR(status.st_mode):
                inner = os.open(name, _FOLDER, dir_fd=place)
                try:
                    return self.folder(inner, depth + 1)
                finally:
                    os.close(inner)
            if stat.S_ISREG(status.st_mode) and status.st_mode & _SET_ID:
                self._clear(place, name)
            if not (stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode)):
                os.chown(name, self.uid, self.uid, dir_fd=place, follow_symlinks=False)
                self.handed_over += 1
        return True

    def _clear(self, place: int, name: str) -> None:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_SET_ID)
        finally:
            os.close(descriptor)


def _names(descriptor: int) -> Iterator[str]:
    with os.scandir(descriptor) as entries:
        for entry in entries:
            yield entry.name


def owner_of(path: Path) -> int | None:
    """Return the owner of a path without following links; None if it does not exist."""
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return None


def renew(folder: Path, uid: int) -> None:
    """Replace a path by an empty, private folder of `uid`, without following links."""
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    os.chown(folder, uid, uid, follow_symlinks=False)
