"""Holds homes to their limit by project quotas, where this is root and the file system has them.

Each home is a project of the file system with a number of its own, kept in `local/.projects/<team>:<owner>`
as long as anything of it is there. The kernel's limits, of bytes and of files, are a tenth above the measured
ones, so that these act first, which warn before and lose nothing (ADR 0070, 0071). A new home is held when it
is made; what lies in an older one is given to its project while homes are measured.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.drivers.local import project_quota
from provisioning.drivers.local.home_usage import MAX_DEPTH, STEP
from provisioning.drivers.local.state import write_atomically

NUMBERS = range(0x42000000, 0x42100000)
"""Our own. One that a file of the administrator's names, or that the kernel counts for, is left alone."""
ADMINISTRATORS = (Path("/etc/projid"), Path("/etc/projects"))
RECORDS = ".projects"
LIMIT = ".limit"
ABOVE = 110
"""The kernel's limits, in percent of the measured ones."""
LEAST_FILES = 10_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Record:
    """The number of a home's project, and which folder (its inode) all is given of; 0 while there is none."""

    project: int
    given: int = 0


class HomeQuotas:
    """Those of the homes in a folder. `base` is the local driver's."""

    def __init__(self, base: Path, homes: Path) -> None:
        self.folder = base / RECORDS
        self.homes = homes

    def work(self) -> bool:
        """Whether the kernel can hold homes here."""
        if os.geteuid() != 0:
            return False
        try:
            with _opened(self.homes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as homes:
                return project_quota.enforced(homes)
        except OSError:
            return False

    def tell(self, limit_mib: int) -> None:
        """Note what the portal says that a home may hold. Raises `OSError`."""
        if limit_mib != self.limit_mib():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.folder / LIMIT, f"{limit_mib}\n".encode())

    def limit_mib(self) -> int:
        """What the portal said last; 0 for any amount."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self.folder / LIMIT).read_text())
        return 0

    def most_files(self) -> int:
        """How many files a home may have; 0 for any number. Raises `OSError`."""
        limit_mib, disk = self.limit_mib(), os.statvfs(self.homes)
        if not limit_mib or not disk.f_files:
            return 0
        return files_of(limit_mib, disk.f_blocks * disk.f_frsize, disk.f_files)

    def hold(self, home: str) -> Record | None:
        """Let the kernel hold `<team>/<owner>`, which is there, from now on; None where it does not.

        Raises `OSError`.
        """
        limit_mib, record = self.limit_mib(), self._read(home)
        if (not limit_mib and record is None) or not self.work():
            return None
        with _opened(self.homes / home, _FOLDER) as folder:
            if record is None:
                record = self._number(home, folder)
            self._limit(folder, record.project, limit_mib)
            if record.given and project_quota.project_of(folder) != record.project:
                # Another folder has its place, as after a restore.
                record = replace(record, given=0)
                self._write(home, record)
            project_quota.give(folder, record.project, folder=True)
        return record

    def keep(self, homes: Sequence[str]) -> Generator[None, None, None]:
        """Hold all of these, give what is in them to their projects, forget what has gone.

        Raises `OSError`.
        """
        if not self.work():
            return
        for home in homes:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                record = self.hold(home)
                inode = (self.homes / home).lstat().st_ino
                if record is not None and record.given != inode:
                    yield from _give_all(self.homes / home, record.project)
                    self._write(home, replace(record, given=inode))
            yield
        self._forget(homes)

    def _limit(self, folder: int, project: int, limit_mib: int) -> None:
        # Of the folder of all homes: in a home it is the project that is told of as the disk.
        disk = os.statvfs(self.homes)
        units = (limit_mib << 20) * ABOVE // 100 // project_quota.UNIT
        files = min(self.most_files() * ABOVE // 100, disk.f_files)
        use = project_quota.use_of(folder, project)
        if (use.limit_bytes, use.limit_files) != (units * project_quota.UNIT, files):
            project_quota.limit(folder, project, limit_bytes=units * project_quota.UNIT, limit_files=files)

    def _number(self, home: str, folder: int) -> Record:
        with self._alone():
            record = self._read(home)
            if record is not None:
                return record
            taken = {*self._known().values(), *_administrators()}
            unused = project_quota.Use(0, 0, 0, 0)
            free = (each for each in NUMBERS if each not in taken)
            found = next((each for each in free if project_quota.use_of(folder, each) == unused), None)
            if found is None:
                raise OSError(errno.ENOSPC, "no number of a project is free")
            record = Record(found)
            self._write(home, record)
            return record

    def _forget(self, homes: Sequence[str]) -> None:
        """Give back the numbers of homes of which nothing is left, not even what is being deleted."""
        gone = set(self._known()) - set(homes)
        if not gone:
            return
        with self._alone(), _opened(self.homes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as folder:
            for home in sorted(gone):
                record = self._read(home)
                if record is None or os.path.lexists(self.homes / home):
                    continue
                if not project_quota.use_of(folder, record.project).used_files:
                    project_quota.limit(folder, record.project, limit_bytes=0, limit_files=0)
                    self._path(home).unlink()

    def _known(self) -> dict[str, int]:
        try:
            names = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            return {}
        found = ((name.replace(":", "/"), self._read(name.replace(":", "/"))) for name in names)
        return {home: record.project for home, record in found if record is not None}

    def _path(self, home: str) -> Path:
        return self.folder / home.replace("/", ":")

    def _read(self, home: str) -> Record | None:
        try:
            found = json.loads(self._path(home).read_text())
            return Record(int(found["project"]), int(found["given"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None  # one that was spoilt is made anew, and what it was about given to another project

    def _write(self, home: str, record: Record) -> None:
        text = json.dumps({"project": record.project, "given": record.given})
        write_atomically(self._path(home), text.encode())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opened(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield


def files_of(limit_mib: int, total_bytes: int, total_files: int) -> int:
    """How many files a home may have: its share of the disk's, and no fewer than some thousands."""
    share = (limit_mib << 20) * total_files // max(1, total_bytes)
    return max(LEAST_FILES, min(share, total_files))


def _administrators() -> set[int]:
    """The numbers in `name:number` of projid(5) and `number:path` of projects(5)."""
    found = set()
    for path in ADMINISTRATORS:
        with contextlib.suppress(OSError):
            for line in path.read_text(errors="replace").splitlines():
                found |= {int(part) for part in line.split(":") if part.strip().isdecimal()}
    return found


def _give_all(home: Path, project: int) -> Generator[None, None, None]:
    """Give what is in a home to its project: a folder first, then what is in it. Yields between steps.

    No link is followed and no other file system entered. What is made, or moved in, meanwhile is of the
    project by itself. Only files and folders can be given; a link or a pipe that was there takes no room.
    """
    folders: list[tuple[int, Iterator[str]]] = []
    try:
        descriptor = os.open(home, _FOLDER)
        folders.append((descriptor, _names(descriptor)))
        device = os.fstat(descriptor).st_dev
        seen = 0
        while folders:
            place, names = folders[-1]
            name = next(names, None)
            if name is None:
                folders.pop()
                os.close(place)
                continue
            with contextlib.suppress(OSError):  # it has gone meanwhile, or is nothing that can be given
                inner = _given(place, name, project, device)
                if inner is not None:
                    folders.append((inner, _names(inner) if len(folders) < MAX_DEPTH else iter(())))
            seen += 1
            if seen % STEP == 0:
                yield
    finally:
        for place, _rest in folders:
            os.close(place)


def _names(folder: int) -> Iterator[str]:
    """What is in an open folder now. The system's errors are no names."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return iter([entry.name for entry in entries])
    return iter(())


def _given(place: int, name: str, project: int, device: int) -> int | None:
    """Give one entry; a folder stays open and is returned. Raises `OSError`."""
    found = os.stat(name, dir_fd=place, follow_symlinks=False)
    is_folder = stat.S_ISDIR(found.st_mode)
    if found.st_dev != device or not (is_folder or stat.S_ISREG(found.st_mode)):
        return None
    descriptor = os.open(name, _FOLDER if is_folder else _FILE, dir_fd=place)
    try:
        now = os.fstat(descriptor)
        if now.st_dev == device and stat.S_IFMT(now.st_mode) == stat.S_IFMT(found.st_mode):
            project_quota.give(descriptor, project, folder=is_folder)
            if is_folder:
                return os.dup(descriptor)
        return None
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
