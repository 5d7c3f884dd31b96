"""Archives of homes on the disk of this node, and homes restored from them.

Archives are in `<homes>/<team>/.archives-<owner>`. The file server creates and reads them in a sandbox of
their user, without any programs of the user. A restored home replaces the old one in a single rename that
exchanges both. `local/.archives/<home>` records the inode of the new folder, so that a later process can tell
whether a killed one completed the exchange. The old home is deleted only afterwards. Emptying an archived
home works the same way, after a check that it did not change since it was archived.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.drivers.local import attach
from provisioning.drivers.local import homes as home_folders
from provisioning.drivers.local.failures import HomeMissing
from provisioning.drivers.local.file_server import FileServers, Home
from provisioning.drivers.local.home_moves import digest_of, sync
from provisioning.drivers.local.state import write_atomically

RECORDS = ".archives"
RESTORING = "restoring"
PLACING, PLACED = "placing", "placed"
SINCE = ".since"
"""Suffix of the file whose mtime marks the start of an archive after which the home is emptied."""
RENAME_EXCHANGE = 2
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class HomeChanged(Exception):
    """The entry `name` of the home is newer than its archive."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True, slots=True)
class HomeArchives:
    """Archives on this node. The caller holds `HomeMoves.exclusive`."""

    servers: FileServers

    def make(self, home: Home, *, job: str, archive: str, most_bytes: int) -> dict[str, Any]:
        """Create an archive; return the server's answer. See `FileServers.query`."""
        self._prepare(home)
        question = {"do": "archive", "job": job, "archive": archive, "most_bytes": most_bytes}
        return self.servers.query(_store(home), question)

    def restore(self, home: Home, *, job: str, archive: str) -> dict[str, Any]:
        """Restore a home beside the current one; return the server's answer. See `FileServers.query`."""
        self._prepare(home)
        return self.servers.query(_store(home), {"do": "restore", "job": job, "archive": archive})

    def install(self, home: Home, *, job: str) -> None:
        """Exchange the complete new home and the old one. Raises `OSError`."""
        if self.complete_install(home, job=job):
            return
        self.end(home)
        self.servers.end(home)
        new, old = self._new_path(home), self._path(home)
        new.chmod(old.stat().st_mode & 0o777)
        info = new.lstat()
        self._save_record(home, job, PLACING, info.st_ino)
        _exchange_folders(new, old)
        sync(old.parent)
        sync(new.parent)
        self._save_record(home, job, PLACED, info.st_ino)

    def complete_install(self, home: Home, *, job: str) -> bool:
        """Return whether this job's home is in place. Completes an exchange that was interrupted."""
        record = self._record(home)
        if record.get("job") != job:
            return False
        if record.get("state") == PLACED:
            return True
        old, new, previous = self._path(home), self._new_path(home), self._previous_path(home)
        if not old.exists() and new.exists() and previous.exists():
            new.rename(old)  # after two renames, on file systems without exchange
            sync(old.parent)
        with contextlib.suppress(FileNotFoundError):
            if old.lstat().st_ino == record.get("inode"):
                self._save_record(home, job, PLACED, int(record["inode"]))
                return True
        return False

    def begin(self, home: Home, *, archive: str) -> None:
        """Record the start of this archive before any of it is written, and end the file server."""
        self._prepare(home)
        since = self._since_path(home, archive)
        if not since.exists():
            # An empty request starts the server, which gives the home to its user first.
            self.servers.query(_store(home), {"do": "", "job": "", "archive": ""})
            self.servers.end(home)
            since.touch(mode=0o600)
            sync(since.parent)

    def empty(self, home: Home, *, job: str, archive: str) -> None:
        """Replace the home by an empty one, if it did not change since `begin` was called for the archive.

        Raises `FileNotFoundError` without the archive, `HomeChanged` or `OSError`.
        """
        if self.complete_install(home, job=job):
            return
        self.end(home)
        self.servers.end(home)
        store = self._store_path(home)
        (store / f"{archive}.home").lstat()
        # Use its mtime: its ctime is later if the store changed its owner.
        _require_older(self._path(home), self._since_path(home, archive).lstat().st_mtime_ns)
        new, old = self._new_path(home), self._path(home).lstat()
        new.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            new.rmdir()  # left by an interrupted request
        new.mkdir(mode=0o700)
        os.chown(new, old.st_uid, old.st_gid)
        sync(new.parent)
        self.install(home, job=job)

    def clear(self, home: Home, *, limit_s: float) -> bool:
        """Remove unfinished archives and the replaced home; return True once all are gone."""
        record = self._record(home)
        if record.get("job"):
            self.complete_install(home, job=str(record["job"]))
        self.end(home)
        with self._open_store(home) as store:
            if store is None:
                return True
            for name in os.listdir(store):  # noqa: PTH208 - a descriptor
                if name.endswith((".part", SINCE)):
                    os.unlink(name, dir_fd=store)
        team = self.servers.homes / home.team
        if not home_folders.delete(team, _store(home).folder, RESTORING, limit_s=limit_s):
            return False
        (self.servers.base / RECORDS / digest_of(home)).unlink(missing_ok=True)
        return True

    def delete(self, home: Home, *, archive: str) -> None:
        """Delete one archive. Idempotent. Raises `OSError`."""
        self.end(home)
        with self._open_store(home) as store:
            names = (f"{archive}.home", f"{archive}.part", f"{archive}{SINCE}")
            for name in names if store is not None else ():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=store)

    def delete_all(self, home: Home, *, limit_s: float) -> bool:
        """Delete all archives of a deleted home; return True once all are gone."""
        self.end(home)
        return home_folders.delete(self.servers.homes, home.team, _store(home).folder, limit_s=limit_s)

    def end(self, home: Home) -> None:
        """End the file server. It must not outlive its job, since the home may be replaced later."""
        self.servers.end(_store(home))

    def _prepare(self, home: Home) -> None:
        if not self._path(home).is_dir():
            raise HomeMissing("This node no longer has the home. Start a workspace first.")
        self._store_path(home).mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def _open_store(self, home: Home) -> Iterator[int | None]:
        try:
            descriptor = os.open(self._store_path(home), _OPEN_FOLDER)
        except FileNotFoundError:
            yield None
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _path(self, home: Home) -> Path:
        return self.servers.homes / home.team / home.owner

    def _store_path(self, home: Home) -> Path:
        return self.servers.homes / home.team / _store(home).folder

    def _since_path(self, home: Home, archive: str) -> Path:
        return self._store_path(home) / f"{archive}{SINCE}"

    def _new_path(self, home: Home) -> Path:
        return self._store_path(home) / RESTORING / "home"

    def _previous_path(self, home: Home) -> Path:
        """Return where the old home is between two renames."""
        return self._store_path(home) / RESTORING / "old"

    def _record(self, home: Home) -> dict[str, Any]:
        try:
            record = json.loads((self.servers.base / RECORDS / digest_of(home)).read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def _save_record(self, home: Home, job: str, state: str, inode: int) -> None:
        folder = self.servers.base / RECORDS
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"job": job, "state": state, "inode": inode, "home": home.home_key})
        write_atomically(folder / digest_of(home), text.encode())


def _store(home: Home) -> Home:
    return Home(home.team, home.owner, archives=True)


def _require_older(folder: Path, since_ns: int) -> None:
    """Raise `HomeChanged` for the first entry changed since then. Follows no links.

    Compares ctimes, which users cannot set.
    """
    for place, folders, files, descriptor in os.fwalk(folder, onerror=_raise):
        if os.fstat(descriptor).st_ctime_ns >= since_ns:
            raise HomeChanged(_printable_name(os.path.relpath(place, folder)))
        for name in (*folders, *files):
            if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_ctime_ns >= since_ns:
                raise HomeChanged(_printable_name(name))


def _printable_name(name: str) -> str:
    return os.fsencode(name).decode(errors="replace")


def _raise(error: OSError) -> None:
    raise error


def _exchange_folders(new: Path, old: Path) -> None:
    """Exchange two folders; with two renames if the file system has no exchange. Raises `OSError`."""
    cwd = attach.AT_FDCWD
    if attach.libc.renameat2(cwd, os.fsencode(new), cwd, os.fsencode(old), RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(number, os.strerror(number), str(new))
    old.rename(new.with_name("old"))
    new.rename(old)
