"""Gives a home to the user of the machine that works in it from now on, once.

A folder is given after everything in it, so one that has been given is done with, whoever was killed in
between: the next call goes on from there. Links are given themselves, never what they lead to, and other
file systems are left alone. Nobody may use the home meanwhile.
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
LEAST = 2000
"""How many entries a call gives in any case, so that each goes further than the one before."""


class TooDeep(OSError):
    """Folders are nested so deep that they are not walked through."""


def hand_over(home: str | os.PathLike[str], uid: int, *, limit_s: float) -> bool:
    """Whether the home and all that is in it belongs to `uid`; False after `limit_s` seconds. Root only.

    Programs lose their set-user-ID and set-group-ID bits, devices stay root's. Raises `OSError`, also where
    the home is a link.
    """
    descriptor = os.open(home, _FOLDER)
    try:
        if _belongs(os.fstat(descriptor), uid):
            return True
        return _Walk(uid, os.fstat(descriptor).st_dev, time.monotonic() + limit_s).folder(descriptor, 0)
    finally:
        os.close(descriptor)


def _belongs(found: os.stat_result, uid: int) -> bool:
    return found.st_uid == uid and found.st_gid == uid


class _Walk:
    def __init__(self, uid: int, device: int, until: float) -> None:
        self.uid = uid
        self.device = device
        self.until = until
        self.given = 0

    def folder(self, descriptor: int, depth: int) -> bool:
        """Give what is in an open folder, then the folder; False when time was up."""
        if depth > MAX_DEPTH:
            raise TooDeep(f"folders are nested deeper than {MAX_DEPTH}")
        for name in _names(descriptor):
            if not self._entry(descriptor, name, depth):
                return False
        os.fchown(descriptor, self.uid, self.uid)
        self.given += 1
        return True

    def _entry(self, place: int, name: str, depth: int) -> bool:
        if self.given >= LEAST and time.monotonic() >= self.until:
            return False
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=place, follow_symlinks=False)
            if found.st_dev != self.device or _belongs(found, self.uid):
                return True
            if stat.S_ISDIR(found.st_mode):
                inner = os.open(name, _FOLDER, dir_fd=place)
                try:
                    return self.folder(inner, depth + 1)
                finally:
                    os.close(inner)
            if stat.S_ISREG(found.st_mode) and found.st_mode & _SET_ID:
                self._clear(place, name)
            if not (stat.S_ISBLK(found.st_mode) or stat.S_ISCHR(found.st_mode)):
                os.chown(name, self.uid, self.uid, dir_fd=place, follow_symlinks=False)
                self.given += 1
        return True

    def _clear(self, place: int, name: str) -> None:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode):
                os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_SET_ID)
        finally:
            os.close(descriptor)


def _names(descriptor: int) -> Iterator[str]:
    with os.scandir(descriptor) as entries:
        for entry in entries:
            yield entry.name


def owner_of(path: Path) -> int | None:
    """Whose the path is, and not what it leads to; None where there is nothing."""
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return None


def renew(folder: Path, uid: int) -> None:
    """An empty folder of `uid` alone in the place of what is there, whose links are not followed."""
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    os.chown(folder, uid, uid, follow_symlinks=False)
