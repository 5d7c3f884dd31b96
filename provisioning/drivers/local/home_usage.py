"""Measures how much the home folders take on their disk, in steps of a few milliseconds.

Counted is what the file system has given away, blocks and inodes, each file once however many names it has,
and files that have no name any more but are held open by a process of a sandbox. Nothing leads out of the
home: no link, no other file system. What cannot be looked into is `hidden`: folders nested deeper than
`MAX_DEPTH`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.drivers.local.homes import let_in
from provisioning.types import HomeUsage

MAX_DEPTH = 200
STEP = 200
"""Entries looked at between two pauses that the caller may make."""
PROC = Path("/proc")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512

Steps = Generator[None, None, HomeUsage]


def names(homes: Path) -> list[str]:
    """`<team>/<owner>` of every home. Raises `OSError`."""
    found = []
    for team in _folders(homes):
        found += [f"{team.name}/{owner.name}" for owner in _folders(Path(team.path))]
    return sorted(found)


def _folders(path: Path) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return [e for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]


@dataclass(slots=True)
class Unnamed:
    """Files of a home that have no name any more."""

    bytes: int = 0
    files: int = 0


def measure(homes: Path, name: str, unnamed: Unnamed | None = None, most_files: int = 0) -> Steps:
    """Yields between steps; returns the usage with `unnamed` added. Raises `OSError` without a home."""
    unnamed = unnamed or Unnamed()
    walk = _Walk(os.open(homes / name, _FOLDER))
    try:
        yield from walk.steps()
    finally:
        walk.close()
    files = round(walk.files) + unnamed.files
    return HomeUsage(name, (walk.used + unnamed.bytes) >> 20, walk.hidden, files, most_files)


class _Walk:
    """A walk through one home, holding open the folders that lead to where it is."""

    def __init__(self, home: int) -> None:
        self.open: list[tuple[int, Iterator[os.DirEntry[str]]]] = []
        self.used = 0
        self.files = 0.0
        self.hidden = False
        self.device = os.fstat(home).st_dev
        self._enter(home)

    def steps(self) -> Generator[None, None, None]:
        seen = 0
        while self.open:
            folder, entries = self.open[-1]
            entry = next(entries, None)
            if entry is None:
                self._leave()
                continue
            with contextlib.suppress(OSError):  # it has gone meanwhile
                self._take(folder, entry.name)
            seen += 1
            if seen % STEP == 0:
                yield

    def _take(self, folder: int, name: str) -> None:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if found.st_dev != self.device:
            return
        if not stat.S_ISDIR(found.st_mode):
            self.used += found.st_blocks * _BLOCK // max(1, found.st_nlink)
            self.files += 1 / max(1, found.st_nlink)
            return
        if len(self.open) >= MAX_DEPTH:
            self.hidden = True
            return
        try:
            self._enter(os.open(name, _FOLDER, dir_fd=folder))
        except PermissionError:
            # Its owner has taken the right away, which hides nothing from who can give it back.
            let_in(folder, name)
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


def unnamed(homes: Path, found: list[str], pids: list[int]) -> Generator[None, None, dict[str, Unnamed]]:
    """Files without a name that sandboxes hold open, by home. Yields between steps.

    Which home a process has is seen from outside, in its root; what it says of itself is not asked.
    """
    homes_by_place: dict[tuple[int, int], str] = {}
    for name in found:
        with contextlib.suppress(OSError):
            place = (homes / name).lstat()
            homes_by_place[place.st_dev, place.st_ino] = name
    held: dict[str, Unnamed] = {}
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
                            seen = held.setdefault(home, Unnamed())
                            seen.bytes += file.st_blocks * _BLOCK
                            seen.files += 1
    return held


def _home_of(pid: int, homes_by_place: dict[tuple[int, int], str]) -> str | None:
    with os.scandir(PROC / str(pid) / "root" / "home") as entries:
        for entry in entries:
            place = entry.stat(follow_symlinks=False)
            if home := homes_by_place.get((place.st_dev, place.st_ino)):
                return home
    return None
