"""Limits homes by project quotas, if run as root on a file system that supports them.

Each home is a project of the file system. Its id is kept in `local/.projects/<team>:<owner>` as long as
anything of the home exists. The kernel's limits on bytes and files are 10 % above the measured limits. So the
measured limits act first, which warn in advance and lose no data (ADR 0070, 0071). A new home is limited on
creation. The files of an older one join its project while homes are measured.
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

PROJECT_IDS = range(0x42000000, 0x42100000)
"""Project ids used by Berth. Ids in the administrator's files or already in use are skipped."""
ADMINISTRATORS = (Path("/etc/projid"), Path("/etc/projects"))
RECORDS = ".projects"
LIMIT = ".limit"
KERNEL_LIMIT_PCT = 110
"""The kernel's limits, in percent of the measured limits."""
MIN_FILES = 10_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class QuotaRecord:
    """Project id of a home, and the inode of the folder whose files all belong to it (0: none yet)."""

    project: int
    folder_inode: int = 0


class HomeQuotas:
    """Quotas of the homes in a folder. `base` is the local driver's folder."""

    def __init__(self, base: Path, homes: Path) -> None:
        self.folder = base / RECORDS
        self.homes = homes

    def are_supported(self) -> bool:
        """Return whether the kernel can enforce quotas on homes here."""
        if os.geteuid() != 0:
            return False
        try:
            with _open_descriptor(self.homes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as homes:
                return project_quota.is_enforced(homes)
        except OSError:
            return False

    def store_limit(self, limit_mib: int) -> None:
        """Store the limit per home that the portal sent. Raises `OSError`."""
        if limit_mib != self.limit_mib():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.folder / LIMIT, f"{limit_mib}\n".encode())

    def limit_mib(self) -> int:
        """Return the stored limit; 0 means no limit."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self.folder / LIMIT).read_text())
        return 0

    def most_files(self) -> int:
        """Return the maximum number of files per home; 0 means no limit. Raises `OSError`."""
        limit_mib, disk = self.limit_mib(), os.statvfs(self.homes)
        if not limit_mib or not disk.f_files:
            return 0
        return files_of(limit_mib, disk.f_blocks * disk.f_frsize, disk.f_files)

    def limit_home(self, home: str) -> QuotaRecord | None:
        """Enforce the limit on the existing home `<team>/<owner>`; return None if that is not possible.

        Raises `OSError`.
        """
        limit_mib, record = self.limit_mib(), self._read(home)
        if (not limit_mib and record is None) or not self.are_supported():
            return None
        with _open_descriptor(self.homes / home, _FOLDER) as folder:
            if record is None:
                record = self._assign_project(home, folder)
            self._limit(folder, record.project, limit_mib)
            if record.folder_inode and project_quota.project_of(folder) != record.project:
                # Another folder took its place, for example after a restore.
                record = replace(record, folder_inode=0)
                self._write(home, record)
            project_quota.assign(folder, record.project, folder=True)
        return record

    def enforce(self, homes: Sequence[str]) -> Generator[None, None, None]:
        """Enforce limits on these homes, assign their files to their projects, and forget deleted homes.

        Raises `OSError`.
        """
        if not self.are_supported():
            return
        for home in homes:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                record = self.limit_home(home)
                inode = (self.homes / home).lstat().st_ino
                if record is not None and record.folder_inode != inode:
                    yield from _assign_all(self.homes / home, record.project)
                    self._write(home, replace(record, folder_inode=inode))
            yield
        self._forget(homes)

    def _limit(self, folder: int, project: int, limit_mib: int) -> None:
        # Use the parent of all homes: inside a home, statvfs reports the project's limit as the disk.
        disk = os.statvfs(self.homes)
        units = (limit_mib << 20) * KERNEL_LIMIT_PCT // 100 // project_quota.UNIT
        files = min(self.most_files() * KERNEL_LIMIT_PCT // 100, disk.f_files)
        use = project_quota.use_of(folder, project)
        if (use.limit_bytes, use.limit_files) != (units * project_quota.UNIT, files):
            project_quota.limit(folder, project, limit_bytes=units * project_quota.UNIT, limit_files=files)

    def _assign_project(self, home: str, folder: int) -> QuotaRecord:
        with self._exclusive_lock():
            record = self._read(home)
            if record is not None:
                return record
            used = {*self._projects().values(), *_administrator_ids()}
            unused = project_quota.ProjectUse(0, 0, 0, 0)
            free = (number for number in PROJECT_IDS if number not in used)
            project = next(
                (number for number in free if project_quota.use_of(folder, number) == unused), None
            )
            if project is None:
                raise OSError(errno.ENOSPC, "no project ID is free")
            record = QuotaRecord(project)
            self._write(home, record)
            return record

    def _forget(self, homes: Sequence[str]) -> None:
        """Release project ids of homes with no files left, including those being deleted."""
        obsolete = set(self._projects()) - set(homes)
        if not obsolete:
            return
        with (
            self._exclusive_lock(),
            _open_descriptor(self.homes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as folder,
        ):
            for home in sorted(obsolete):
                record = self._read(home)
                if record is None or os.path.lexists(self.homes / home):
                    continue
                if not project_quota.use_of(folder, record.project).used_files:
                    project_quota.limit(folder, record.project, limit_bytes=0, limit_files=0)
                    self._path(home).unlink()

    def _projects(self) -> dict[str, int]:
        try:
            names = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            return {}
        records = ((name.replace(":", "/"), self._read(name.replace(":", "/"))) for name in names)
        return {home: record.project for home, record in records if record is not None}

    def _path(self, home: str) -> Path:
        return self.folder / home.replace("/", ":")

    def _read(self, home: str) -> QuotaRecord | None:
        try:
            fields = json.loads(self._path(home).read_text())
            return QuotaRecord(int(fields["project"]), int(fields["folder_inode"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None  # a damaged record is created again, and the files move to another project

    def _write(self, home: str, record: QuotaRecord) -> None:
        text = json.dumps({"project": record.project, "folder_inode": record.folder_inode})
        write_atomically(self._path(home), text.encode())

    @contextlib.contextmanager
    def _exclusive_lock(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _open_descriptor(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield


def files_of(limit_mib: int, total_bytes: int, total_files: int) -> int:
    """Return the maximum number of files per home: its share of the disk's, at least `MIN_FILES`."""
    share = (limit_mib << 20) * total_files // max(1, total_bytes)
    return max(MIN_FILES, min(share, total_files))


def _administrator_ids() -> set[int]:
    """Return the ids in `name:id` of projid(5) and `id:path` of projects(5)."""
    ids = set()
    for path in ADMINISTRATORS:
        with contextlib.suppress(OSError):
            for line in path.read_text(errors="replace").splitlines():
                ids |= {int(part) for part in line.split(":") if part.strip().isdecimal()}
    return ids


def _assign_all(home: Path, project: int) -> Generator[None, None, None]:
    """Assign the content of a home to its project, each folder before its content. Yields between steps.

    Follows no links and enters no other file system. Files created or moved in meanwhile join the project
    automatically. Only regular files and folders can be assigned; links and pipes use no space.
    """
    folders: list[tuple[int, Iterator[str]]] = []
    try:
        descriptor = os.open(home, _FOLDER)
        folders.append((descriptor, _names(descriptor)))
        device = os.fstat(descriptor).st_dev
        count = 0
        while folders:
            place, names = folders[-1]
            name = next(names, None)
            if name is None:
                folders.pop()
                os.close(place)
                continue
            with contextlib.suppress(OSError):  # it is gone, or cannot be assigned
                inner = _assign_entry(place, name, project, device)
                if inner is not None:
                    folders.append((inner, _names(inner) if len(folders) < MAX_DEPTH else iter(())))
            count += 1
            if count % STEP == 0:
                yield
    finally:
        for place, _rest in folders:
            os.close(place)


def _names(folder: int) -> Iterator[str]:
    """Return the names in an open folder; empty on errors."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return iter([entry.name for entry in entries])
    return iter(())


def _assign_entry(place: int, name: str, project: int, device: int) -> int | None:
    """Assign one entry; return the open descriptor of a folder. Raises `OSError`."""
    info = os.stat(name, dir_fd=place, follow_symlinks=False)
    is_folder = stat.S_ISDIR(info.st_mode)
    if info.st_dev != device or not (is_folder or stat.S_ISREG(info.st_mode)):
        return None
    descriptor = os.open(name, _FOLDER if is_folder else _FILE, dir_fd=place)
    try:
        opened_info = os.fstat(descriptor)
        if opened_info.st_dev == device and stat.S_IFMT(opened_info.st_mode) == stat.S_IFMT(info.st_mode):
            project_quota.assign(descriptor, project, folder=is_folder)
            if is_folder:
                return os.dup(descriptor)
        return None
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _open_descriptor(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
