"""Measure the disk use of home folders, in steps of a few milliseconds.

Counts allocated blocks and inodes, each file once regardless of hard links. Includes unlinked files that a
sandbox process holds open. Links and other file systems are not followed. Folders nested deeper than
`MAX_DEPTH` are not read; the result is then `hidden`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.drivers.local.homes import restore_access
from provisioning.types import HomeUsage

MAX_DEPTH = 200
STEP = 200
"""Entries between two yields."""
PROC = Path("/proc")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512

Steps = Generator[None, None, HomeUsage]


def names(homes: Path) -> list[str]:
    """Return `<team>/<owner>` of every home. Raises `OSError`."""
    result = []
    for team in _folders(homes):
        result += [f"{team.name}/{owner.name}" for owner in _folders(Path(team.path))]
    return sorted(result)


def _folders(path: Path) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return [e for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]


@dataclass(slots=True)
class UnlinkedFiles:
    """Unlinked files of a home that are still open."""

    bytes: int = 0
    files: int = 0


def measure(homes: Path, name: str, unnamed: UnlinkedFiles | None = None, most_files: int = 0) -> Steps:
    """Yield between steps; return the usage including `unnamed`. Raises `OSError` without a home."""
    unnamed = unnamed or UnlinkedFiles()
    walk = _UsageWalk(os.open(homes / name, _FOLDER))
    try:
        yield from walk.steps()
    finally:
        walk.close()
    files = round(walk.files) + unnamed.files
    return HomeUsage(name, (walk.used + unnamed.bytes) >> 20, walk.hidden, files, most_files)


class _UsageWalk:
    """A walk through one home that keeps the folders on its current path open."""

    def __init__(self, home: int) -> None:
        self.open: list[tuple[int, Iterator[os.DirEntry[str]]]] = []
        self.used = 0
        self.files = 0.0
        self.hidden = False
        self.device = os.fstat(home).st_dev
        self._enter(home)

    def steps(self) -> Generator[None, None, None]:
        count = 0
        while self.open:
            folder, entries = self.open[-1]
            entry = next(entries, None)
            if entry is None:
                self._leave()
                continue
            with contextlib.suppress(OSError):  # deleted meanwhile
                self._count_entry(folder, entry.name)
            count += 1
            if count % STEP == 0:
                yield

    def _count_entry(self, folder: int, name: str) -> None:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if info.st_dev != self.device:
            return
        if not stat.S_ISDIR(info.st_mode):
            self.used += info.st_blocks * _BLOCK // max(1, info.st_nlink)
            self.files += 1 / max(1, info.st_nlink)
            return
        if len(self.open) >= MAX_DEPTH:
            self.hidden = True
            return
        try:
            self._enter(os.open(name, _FOLDER, dir_fd=folder))
        except PermissionError:
            # The user removed the permission, which can be restored.
            restore_access(folder, name)
            self._enter(os.open(name, _FOLDER, dir_fd=folder))

    def _enter(self, folder: int) -> None:
        try:
            self.used += os.fstat(folder).st_blocks * _BLOCK
            self.files += 1
            self.open.append((folder, iter(os.scandir(folder))))
        except BaseException:
            os.close(folder)
            raise

    def _leave(self) -> None:
        folder, entries = self.open.pop()
        entries.close()  # type: ignore[attr-defined]
        os.close(folder)

    def close(self) -> None:
        while self.open:
            self._leave()


def unnamed(
    homes: Path, home_names: list[str], pids: list[int]
) -> Generator[None, None, dict[str, UnlinkedFiles]]:
    """Find unlinked files that sandboxes hold open, by home. Yields between steps.

    A process's home is determined from its root folder, not from anything it can set.
    """
    homes_by_place: dict[tuple[int, int], str] = {}
    for name in home_names:
        with contextlib.suppress(OSError):
            place = (homes / name).lstat()
            homes_by_place[place.st_dev, place.st_ino] = name
    by_home: dict[str, UnlinkedFiles] = {}
    counted: set[tuple[int, int]] = set()
    for pid in pids:
        yield
        with contextlib.suppress(OSError):
            home = _home_of(pid, homes_by_place)
            if home is None:
                continue
            device = (homes / home).stat().st_dev
            with os.scandir(PROC / str(pid) / "fd") as descriptors:
                for number, entry in enumerate(descriptors):
                    if number % STEP == STEP - 1:
                        yield
                    with contextlib.suppress(OSError):
                        file = entry.stat()
                        key = file.st_dev, file.st_ino
                        if file.st_dev == device and file.st_nlink == 0 and key not in counted:
                            counted.add(key)
                            usage = by_home.setdefault(home, UnlinkedFiles())
                            usage.bytes += file.st_blocks * _BLOCK
                            usage.files += 1
    return by_home


def _home_of(pid: int, homes_by_place: dict[tuple[int, int], str]) -> str | None:
    with os.scandir(PROC / str(pid) / "root" / "home") as entries:
        for entry in entries:
            place = entry.stat(follow_symlinks=False)
            if home := homes_by_place.get((place.st_dev, place.st_ino)):
                return home
    return None
