"""Archives of homes on the disk of this machine, and homes that are made anew from them.

They lie in `<homes>/<team>/.archives-<owner>`, made and read by the server of files in the sandbox of their
user, where none of the user's programs are. A home made from one takes the place of the old one in a single
rename that exchanges the two; `local/.archives/<home>` says which folder that is, so that who comes after a
kill knows whether it was done. The old home is deleted only after that. A home that is put away in an archive
gives its place to an empty one in the same way, after it was looked at whether it is as it was archived.
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
from provisioning.drivers.local.failures import HomeNowhere
from provisioning.drivers.local.file_server import FileServers, Home
from provisioning.drivers.local.home_moves import digest_of, sync
from provisioning.drivers.local.state import write_atomically

RECORDS = ".archives"
RESTORING = "restoring"
PLACING, PLACED = "placing", "placed"
SINCE = ".since"
"""The end of the name of a file that is as old as an archive is after which the home is emptied."""
RENAME_EXCHANGE = 2
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class HomeChanged(Exception):
    """Something in the home is newer than the archive of it; `name` says what."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True, slots=True)
class HomeArchives:
    """Those of this machine. The caller holds `HomeMoves.alone`."""

    servers: FileServers

    def make(self, home: Home, *, job: str, archive: str, most_bytes: int) -> dict[str, Any]:
        """What the server says of this archive, which it makes. As `FileServers.ask`."""
        self._prepare(home)
        ask = {"do": "archive", "job": job, "archive": archive, "most_bytes": most_bytes}
        return self.servers.ask(_store(home), ask)

    def restore(self, home: Home, *, job: str, archive: str) -> dict[str, Any]:
        """What the server says of the home that it makes. As `FileServers.ask`."""
        self._prepare(home)
        return self.servers.ask(_store(home), {"do": "restore", "job": job, "archive": archive})

    def place(self, home: Home, *, job: str) -> None:
        """All of the home is there: it and the old one change places. Raises `OSError`."""
        if self.placed(home, job=job):
            return
        self.end(home)
        self.servers.end(home)
        new, old = self._new(home), self._path(home)
        new.chmod(old.stat().st_mode & 0o777)
        found = new.lstat()
        self._note(home, job, PLACING, found.st_ino)
        _exchange(new, old)
        sync(old.parent)
        sync(new.parent)
        self._note(home, job, PLACED, found.st_ino)

    def placed(self, home: Home, *, job: str) -> bool:
        """Whether this job's home is in its place; what a kill has left between is brought to its end."""
        record = self._record(home)
        if record.get("job") != job:
            return False
        if record.get("state") == PLACED:
            return True
        old, new, aside = self._path(home), self._new(home), self._aside(home)
        if not old.exists() and new.exists() and aside.exists():
            new.rename(old)  # where a disk cannot exchange
            sync(old.parent)
        with contextlib.suppress(FileNotFoundError):
            if old.lstat().st_ino == record.get("inode"):
                self._note(home, job, PLACED, int(record["inode"]))
                return True
        return False

    def hold(self, home: Home, *, archive: str) -> None:
        """Note when this archive was begun, before any of it, and let nobody change files who might then."""
        self._prepare(home)
        since = self._since(home, archive)
        if not since.exists():
            # Asked for nothing, so that it has begun: that gives the home to its user, where it is another's.
            self.servers.ask(_store(home), {"do": "", "job": "", "archive": ""})
            self.servers.end(home)
            since.touch(mode=0o600)
            sync(since.parent)

    def empty(self, home: Home, *, job: str, archive: str) -> None:
        """Put an empty home in the place of the one of which this archive was made after `hold`.

        Raises `FileNotFoundError` without the archive, `HomeChanged`, `OSError`.
        """
        if self.placed(home, job=job):
            return
        self.end(home)
        self.servers.end(home)
        store = self._store_path(home)
        (store / f"{archive}.home").lstat()
        # Its own change is later where the store was given to another user.
        _require_older(self._path(home), self._since(home, archive).lstat().st_mtime_ns)
        new, old = self._new(home), self._path(home).lstat()
        new.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            new.rmdir()  # of an order before that was cut off
        new.mkdir(mode=0o700)
        os.chown(new, old.st_uid, old.st_gid)
        sync(new.parent)
        self.place(home, job=job)

    def clear(self, home: Home, *, limit_s: float) -> bool:
        """Take away what is half made, and the home that was replaced; whether all has gone."""
        record = self._record(home)
        if record.get("job"):
            self.placed(home, job=str(record["job"]))
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
        """Take away one archive. One that is missing has gone. Raises `OSError`."""
        self.end(home)
        with self._open_store(home) as store:
            names = (f"{archive}.home", f"{archive}.part", f"{archive}{SINCE}")
            for name in names if store is not None else ():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=store)

    def delete_all(self, home: Home, *, limit_s: float) -> bool:
        """Take away all archives of a home that is deleted; whether all have gone."""
        self.end(home)
        return home_folders.delete(self.servers.homes, home.team, _store(home).folder, limit_s=limit_s)

    def end(self, home: Home) -> None:
        """End the server: none outlives its job, as the home that it sees may be another one then."""
        self.servers.end(_store(home))

    def _prepare(self, home: Home) -> None:
        if not self._path(home).is_dir():
            raise HomeNowhere("There is no home folder on this node any more. Start a workspace first.")
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

    def _since(self, home: Home, archive: str) -> Path:
        return self._store_path(home) / f"{archive}{SINCE}"

    def _new(self, home: Home) -> Path:
        return self._store_path(home) / RESTORING / "home"

    def _aside(self, home: Home) -> Path:
        """Where the old home is between two renames."""
        return self._store_path(home) / RESTORING / "old"

    def _record(self, home: Home) -> dict[str, Any]:
        try:
            found = json.loads((self.servers.base / RECORDS / digest_of(home)).read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _note(self, home: Home, job: str, state: str, inode: int) -> None:
        folder = self.servers.base / RECORDS
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"job": job, "state": state, "inode": inode, "home": home.home_key})
        write_atomically(folder / digest_of(home), text.encode())


def _store(home: Home) -> Home:
    return Home(home.team, home.owner, archives=True)


def _require_older(folder: Path, since_ns: int) -> None:
    """Raise `HomeChanged` for the first that is found in a folder to be changed later; follows nothing.

    What counts is when the disk noted a change, which no user can set.
    """
    for place, folders, files, descriptor in os.fwalk(folder, onerror=_raise):
        if os.fstat(descriptor).st_ctime_ns >= since_ns:
            raise HomeChanged(_plain(os.path.relpath(place, folder)))
        for name in (*folders, *files):
            if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_ctime_ns >= since_ns:
                raise HomeChanged(_plain(name))


def _plain(name: str) -> str:
    return os.fsencode(name).decode(errors="replace")


def _raise(error: OSError) -> None:
    raise error


def _exchange(new: Path, old: Path) -> None:
    """Two folders change places; by two renames where the disk knows no exchange. Raises `OSError`."""
    here = attach.AT_FDCWD
    if attach.libc.renameat2(here, os.fsencode(new), here, os.fsencode(old), RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(number, os.strerror(number), str(new))
    old.rename(new.with_name("old"))
    new.rename(old)
