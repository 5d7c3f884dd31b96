"""Access to files below one folder without following links. Standard library only.

Paths in wire form are relative and use `/` between names. `%` and every byte that is not printable UTF-8 are
written as `%XX`, so any file name can be expressed.
"""

# ruff: noqa: PTH208 - pathlib does not support descriptors

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import stat
import time
from urllib.parse import unquote_to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` is slow to import
    from collections.abc import Iterator
    from typing import Any

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
UPLOAD = ".berth-upload-"
TRASH = ".berth-deleting-"
OWN = (UPLOAD, TRASH)
"""Prefixes of partial uploads and of deleted folders; hidden from listings."""
STALE_S = 6 * 3600.0
MAX_DEPTH = 200
MAX_NAME = 255
MAX_LISTED = 200_000
RENAME_NOREPLACE = 1
KINDS = {stat.S_IFDIR: "folder", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


class FileRequestRefused(Exception):
    """A failed request. `code` is the reason; `name` is the affected name in wire form."""

    def __init__(self, code: str, name: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.name = name


def wire(name: str) -> str:
    """Return a name in wire form: `%` and characters that are not printable are percent-encoded."""
    parts = (
        char if char.isprintable() and char != "%" else "".join(f"%{byte:02X}" for byte in os.fsencode(char))
        for char in name
    )
    return "".join(parts)


def wire_path(names: list[str]) -> str:
    return "/".join(wire(name) for name in names)


def parts_of(path: str) -> list[str]:
    """Parse a path in wire form. Raises `FileRequestRefused` unless it is below the root."""
    if _PERCENT.search(path):
        raise FileRequestRefused("bad_name")
    names = [os.fsdecode(unquote_to_bytes(part)) for part in path.split("/")] if path else []
    for name in names:
        require_name(name)
    if len(names) > MAX_DEPTH:
        raise FileRequestRefused("too_deep")
    return names


def require_name(name: str) -> None:
    """Raise `FileRequestRefused` unless `name` is a valid file name."""
    if not name or name in (".", "..") or "/" in name or "\0" in name or len(os.fsencode(name)) > MAX_NAME:
        raise FileRequestRefused("bad_name")
    if name.startswith(OWN):
        raise FileRequestRefused("reserved_name")


class Tree:
    """Everything below the folder `root`."""

    def __init__(self, root: str) -> None:
        self.root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _open_root(self) -> int:
        """Reopen the root, because duplicated descriptors share their read position."""
        try:
            return os.open(".", FOLDER, dir_fd=self.root)
        except OSError as error:
            raise refused(error, "") from error

    @contextlib.contextmanager
    def folder(self, names: list[str]) -> Iterator[int]:
        """Open a folder. Raises `FileRequestRefused` if one of the names is missing or a link."""
        descriptor = self._open_root()
        try:
            for name in names:
                try:
                    inner = os.open(name, FOLDER, dir_fd=descriptor)
                except OSError as error:
                    raise refused(error, name) from error
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def open_parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the parent folder of a path; yield its descriptor and the path's last name."""
        names = parts_of(path)
        if not names:
            raise FileRequestRefused("bad_name")
        with self.folder(names[:-1]) as descriptor:
            yield descriptor, names[-1]

    def listing(self, path: str, *, offset: int, limit: int) -> dict[str, Any]:
        """Return one page of a folder: folders first, then by name. Counts all, lists up to `MAX_LISTED`."""
        with self.folder(parts_of(path)) as descriptor:
            candidates: list[tuple[bool, str, str]] = []
            total = 0
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if entry.name.startswith(OWN):
                        continue
                    total += 1
                    if len(candidates) < MAX_LISTED:
                        folder = entry.is_dir(follow_symlinks=False)
                        candidates.append((not folder, entry.name.casefold(), entry.name))
            candidates.sort()
            rows = [self._row(descriptor, name) for _, _, name in candidates[offset : offset + limit]]
        return {"entries": [row for row in rows if row], "total": total}

    def _row(self, descriptor: int, name: str) -> dict[str, Any] | None:
        try:
            info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except OSError:
            return None
        kind = KINDS.get(stat.S_IFMT(info.st_mode), "other")
        return {"id": wire(name), "kind": kind, "size": info.st_size, "changed": info.st_mtime}

    def kind(self, path: str) -> str:
        """Return the kind of an entry. Raises `FileRequestRefused`."""
        if not path:
            return "folder"
        with self.open_parent(path) as (descriptor, name):
            row = self._row(descriptor, name)
        if row is None:
            raise FileRequestRefused("not_found", wire(name))
        return str(row["kind"])

    def open_file(self, path: str) -> tuple[int, os.stat_result, str]:
        """Open a regular file for reading; return descriptor, stat result and name. Refuses anything else."""
        with self.open_parent(path) as (descriptor, name):
            # Without O_NONBLOCK, opening a pipe blocks until it has a writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            if not stat.S_ISREG(self._mode(descriptor, name)):
                raise FileRequestRefused("not_a_file", wire(name))
            try:
                opened = os.open(name, flags, dir_fd=descriptor)
            except OSError as error:
                raise refused(error, name) from error
        info = os.fstat(opened)
        if not stat.S_ISREG(info.st_mode):
            os.close(opened)
            raise FileRequestRefused("not_a_file", wire(name))
        return opened, info, name

    def _mode(self, descriptor: int, name: str) -> int:
        try:
            return os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
        except OSError as error:
            raise refused(error, name) from error

    def make_folder(self, path: str) -> None:
        with self.open_parent(path) as (descriptor, name):
            try:
                os.mkdir(name, 0o755, dir_fd=descriptor)
            except OSError as error:
                raise refused(error, name) from error

    def rename(self, path: str, to: str) -> None:
        """Rename or move an entry. Never replaces an existing one."""
        if to == path or to.startswith(f"{path}/"):
            raise FileRequestRefused("exists" if to == path else "bad_name")
        with self.open_parent(path) as (source, name), self.open_parent(to) as (target, new):
            move(source, name, target, new)

    def delete(self, path: str) -> None:
        """Delete an entry. A folder disappears immediately; `clear` removes its contents."""
        with self.open_parent(path) as (descriptor, name):
            if not stat.S_ISDIR(self._mode(descriptor, name)):
                try:
                    os.unlink(name, dir_fd=descriptor)
                except OSError as error:
                    raise refused(error, name) from error
                return
            move(descriptor, name, self.root, TRASH + secrets.token_hex(8))

    def clear(self) -> None:
        """Remove deleted folders, even of an earlier server; nested folders are moved up, not entered."""
        with contextlib.suppress(OSError, FileRequestRefused), self.folder([]) as root:
            for name in [child for child in os.listdir(root) if child.startswith(TRASH)]:
                self._clear(name)

    def _clear(self, trash: str) -> None:
        waiting = [trash]
        while waiting:
            name = waiting.pop()
            try:
                os.chmod(name, 0o700, dir_fd=self.root)
                folder = os.open(name, FOLDER, dir_fd=self.root)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self.root)
                continue
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if not entry.is_dir(follow_symlinks=False):
                            os.unlink(entry.name, dir_fd=folder)
                            continue
                        moved = TRASH + secrets.token_hex(8)
                        os.chmod(entry.name, 0o700, dir_fd=folder)
                        os.rename(entry.name, moved, src_dir_fd=folder, dst_dir_fd=self.root)
                        waiting.append(moved)
            except OSError:
                continue  # the next server tries again
            finally:
                os.close(folder)
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=self.root)

    def walk(
        self, path: str, unread: list[str] | None = None
    ) -> Iterator[tuple[list[str], int, str, os.stat_result]]:
        """Yield everything below a folder: parent names, open parent folder, name, and stat result.

        Folders precede their contents. Unreadable and too deeply nested entries are omitted; such folders are
        added to `unread`, in wire form.
        """
        top = parts_of(path)
        waiting: list[list[str]] = [[]]
        while waiting:
            below = waiting.pop()
            try:
                with self.folder(top + below) as descriptor:
                    for name in sorted(os.listdir(descriptor)):
                        if name.startswith(OWN):
                            continue
                        info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                        if stat.S_ISDIR(info.st_mode) and len(top) + len(below) < MAX_DEPTH:
                            waiting.append([*below, name])
                        elif stat.S_ISDIR(info.st_mode) and unread is not None:
                            unread.append(wire_path([*below, name]))
                        yield below, descriptor, name, info
            except (OSError, FileRequestRefused) as error:
                # Entries deleted meanwhile are not reported.
                if unread is not None and getattr(error, "code", "") != "not_found":
                    unread.append(wire_path(below))
                continue

    def sweep(self, descriptor: int) -> None:
        """Remove remains of uploads into a folder that were interrupted hours ago."""
        with contextlib.suppress(OSError):
            for name in os.listdir(descriptor):
                if name.startswith(UPLOAD):
                    with contextlib.suppress(OSError):
                        info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                        if info.st_mtime < time.time() - STALE_S:
                            os.unlink(name, dir_fd=descriptor)


def move(source: int, name: str, target: int, new: str) -> None:
    """Rename between open folders without replacing anything. Raises `FileRequestRefused`."""
    result = _libc.renameat2(source, os.fsencode(name), target, os.fsencode(new), RENAME_NOREPLACE)
    if result == 0:
        return
    number = ctypes.get_errno()
    try:
        if number not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(number, os.strerror(number))
        # The file system does not support RENAME_NOREPLACE.
        with contextlib.suppress(FileNotFoundError):
            os.stat(new, dir_fd=target, follow_symlinks=False)
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        raise refused(error, name) from error


_libc = ctypes.CDLL(None, use_errno=True)
_CODES = {
    errno.ENOENT: "not_found", errno.ENOTDIR: "not_a_folder", errno.ELOOP: "is_a_link",
    errno.EACCES: "not_allowed", errno.EPERM: "not_allowed", errno.EEXIST: "exists",
    errno.ENOTEMPTY: "exists", errno.ENOSPC: "disk_full", errno.EDQUOT: "disk_full",
    errno.ENAMETOOLONG: "bad_name", errno.EROFS: "not_allowed", errno.EXDEV: "other_disk",
    errno.EISDIR: "not_a_file", errno.EFBIG: "too_large",
}  # fmt: skip


def refused(error: OSError, name: str = "") -> FileRequestRefused:
    """Convert a system error to a refusal."""
    return FileRequestRefused(_CODES.get(error.errno or 0, "failed"), wire(name))
