"""Creates a home from a stream of `home_stream`, in a folder that nothing else uses. Standard library only.

`HomeWriter` writes the records below an open folder. It follows no links and removes entries that are in the
way. A file gets its modification time only when it is complete, so an entry with the time and size of its
record is complete. This is how an interrupted copy resumes. Folders get their modes and times at the end.
"""

# ruff: noqa: PTH208 - pathlib does not support descriptors

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import os
import stat

import home_stream as stream  # type: ignore[import-not-found,unused-ignore]
import tree  # type: ignore[import-not-found,unused-ignore]
from home_stream import BadStream  # type: ignore[import-not-found,unused-ignore]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SPACE_CHECK_BYTES = 16 << 20
LINK_LATER = -1
_WRITE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DiskFull(Exception):
    """Not enough disk space: bytes needed and bytes available."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__("no room")
        self.needed, self.free = needed, free


class DiskRoom:
    """Disk space beyond `reserve` bytes."""

    def __init__(self, folder: int, reserve: int) -> None:
        self.folder, self.reserve = folder, reserve
        self.unchecked_bytes = SPACE_CHECK_BYTES

    def free(self) -> int:
        disk = os.fstatvfs(self.folder)
        return max(0, disk.f_bavail * disk.f_frsize - self.reserve)

    def require(self, needed: int, entries: int = 0) -> None:
        """Raise `DiskFull` unless that many bytes and entries fit."""
        free = self.free()
        disk = os.fstatvfs(self.folder)
        if needed > free or (disk.f_files and entries > disk.f_favail):
            raise DiskFull(needed, free)

    def consume(self, count: int) -> None:
        """Account for bytes about to be written. Raises `DiskFull`."""
        self.unchecked_bytes += count
        if self.unchecked_bytes >= SPACE_CHECK_BYTES:
            self.unchecked_bytes = 0
            self.require(count)


class HomeWriter:
    """Writes records below the open folder `root`."""

    def __init__(self, root: int, room: DiskRoom) -> None:
        self.root, self.room = root, room
        self.first: dict[str, str] = {}
        """Hard links: inode ID → path of the file's first name."""
        self._names: list[bytes] | None = None
        self._folder = -1

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
        self._folder, self._names = -1, None

    def folder(self, names: list[bytes]) -> int:
        """Return the open folder of these names, created if missing. It stays open until the next call."""
        if self._names == names:
            return self._folder
        descriptor = os.dup(self.root)
        try:
            for name in names:
                try:
                    inner = os.open(name, tree.FOLDER, dir_fd=descriptor)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                        raise
                    inner = _make_folder(descriptor, name)
                os.close(descriptor)
                descriptor = inner
                if os.fstat(inner).st_mode & 0o700 != 0o700:
                    os.fchmod(inner, 0o700)  # it gets its final mode at the end
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._folder, self._names = descriptor, list(names)
        return descriptor

    def place(self, entry: dict[str, Any]) -> tuple[int, bytes]:
        names = stream.names_of(_text(entry, "p"))
        return self.folder(names[:-1]), names[-1]

    def create_entry(self, entry: dict[str, Any]) -> int | None:
        """Create an entry without content; return the offset from which a file is still needed, or None.

        Returns `LINK_LATER` for a further hard link of a file that is not complete yet.
        """
        kind = entry["t"]
        if kind == "d":
            self.folder(stream.names_of(_text(entry, "p")))
        elif kind == "l":
            self._link(entry)
        elif kind == "f":
            return self._file(entry)
        elif kind != "x":
            raise BadStream("invalid record")
        return None

    def _link(self, entry: dict[str, Any]) -> None:
        folder, name = self.place(entry)
        to = _decode(_text(entry, "to"))
        if not to or b"\0" in to:
            raise BadStream("a link has no target")
        try:
            target = os.readlink(name, dir_fd=folder)
        except OSError:
            target = None
        if target != to:
            remove(folder, name)
            os.symlink(to, name, dir_fd=folder)
        when = _number(entry, "mt", -stream.MAX_TIME, stream.MAX_TIME)
        os.utime(name, ns=(when, when), dir_fd=folder, follow_symlinks=False)

    def _file(self, entry: dict[str, Any]) -> int | None:
        path, size = _text(entry, "p"), _number(entry, "s", 0, stream.MAX_SIZE)
        folder, name = self.place(entry)
        info = _lstat(folder, name)
        first = self.first.setdefault(entry["i"], path) if isinstance(entry.get("i"), str) else path
        if first != path:
            return None if self._link_to_first(first, folder, name, info) else LINK_LATER
        if info is None or not stat.S_ISREG(info.st_mode):
            return 0
        if info.st_size == size and info.st_mtime_ns == entry.get("mt"):
            return None
        if info.st_nlink > 1 or info.st_size > size or info.st_mode & 0o600 != 0o600:
            remove(folder, name)
            return 0
        return int(info.st_size - info.st_size % stream.BLOCK)

    def _link_to_first(self, first: str, folder: int, name: bytes, info: Any) -> bool:
        """Link to the first name of the file if that is complete; return whether it is."""
        names = stream.names_of(first)
        files = tree.Tree.__new__(tree.Tree)
        files.root = self.root
        try:
            with files.folder([os.fsdecode(part) for part in names[:-1]]) as first_folder:
                first_info = _lstat(first_folder, names[-1])
                if first_info is None or not stat.S_ISREG(first_info.st_mode):
                    return False
                if info is not None and (info.st_dev, info.st_ino) == (first_info.st_dev, first_info.st_ino):
                    return True
                remove(folder, name)
                os.link(names[-1], name, src_dir_fd=first_folder, dst_dir_fd=folder, follow_symlinks=False)
        except tree.FileRequestRefused:
            return False
        return True

    def begin(self, entry: dict[str, Any]) -> int:
        """Open a file at the record's offset. Raises `BadStream` if earlier content is missing."""
        folder, name = self.place(entry)
        offset = _number(entry, "o", 0, stream.MAX_SIZE)
        info = _lstat(folder, name)
        if info is not None and (not stat.S_ISREG(info.st_mode) or info.st_nlink > 1 or not offset):
            remove(folder, name)
            info = None
        if (info.st_size if info else 0) < offset:
            raise BadStream("missing content")
        if info is None:
            return os.open(name, _WRITE | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        return os.open(name, _WRITE, dir_fd=folder)

    def write_piece(self, file: int, entry: dict[str, Any], record: dict[str, Any], data: bytes) -> None:
        place = _number(record, "o", 0, _number(entry, "s", 0, stream.MAX_SIZE))
        if place + len(data) > entry["s"]:
            raise BadStream("a file exceeds its announced size")
        self.room.consume(len(data))
        view = memoryview(data)
        while view:
            count = os.pwrite(file, view, place)
            place, view = place + count, view[count:]

    def finish_file(self, file: int, entry: dict[str, Any]) -> None:
        """Finish a complete file: length, mode, attributes, and finally its time."""
        os.ftruncate(file, entry["s"])
        apply_metadata(file, entry)

    def remove(self, path: str) -> None:
        """Remove the entry at a path."""
        names = stream.names_of(path)
        remove(self.folder(names[:-1]), names[-1])

    def finish_folder(self, entry: dict[str, Any]) -> None:
        """Set the mode and time of a folder whose contents are final."""
        names = stream.names_of(_text(entry, "p"))
        apply_metadata(self.folder(names), entry)
        self.close()


def apply_metadata(descriptor: int, entry: dict[str, Any]) -> None:
    """Set mode, time and (where supported) attributes of an open file or folder."""
    attributes = entry.get("x")
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if isinstance(name, str) and name.startswith("user.") and isinstance(value, str):
            try:
                os.setxattr(descriptor, name, _decode(value))
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.EPERM, errno.E2BIG, errno.ERANGE, errno.EINVAL):
                    raise
    os.fchmod(descriptor, _number(entry, "m", 0, 0o7777) & stream.KEPT)
    when = _number(entry, "mt", -stream.MAX_TIME, stream.MAX_TIME)
    os.utime(descriptor, ns=(when, when))


def read_home(read: Callable[[int], bytes], root: int, room: DiskRoom) -> dict[str, int]:
    """Read a home from a stream of `write_home` into an open, empty folder; return the counts of the stream.

    Raises `BadStream` if the stream was altered, `DiskFull` and `OSError`; the folder is then incomplete.
    """
    reader, writer = stream.RecordReader(read), HomeWriter(root, room)
    folders: list[dict[str, Any]] = []
    file = -1
    entry: dict[str, Any] = {}
    try:
        for record, data in reader.records():
            kind = record["t"]
            if file >= 0 and kind not in ("b", "e"):
                raise BadStream("a file has no end")
            if kind == "f" and record.get("same"):
                if writer.create_entry(record) is not None:
                    raise BadStream("the target of a hard link is missing")
            elif kind == "f":
                writer.create_entry(record)
                file, entry = writer.begin(record), record
            elif kind == "b" and file >= 0:
                writer.write_piece(file, entry, record, data)
            elif kind == "e" and file >= 0:
                writer.finish_file(file, entry)
                os.close(file)
                file = -1
            elif kind == "end":
                if record.get("g") != reader.digest:
                    raise BadStream("checksum mismatch")
                for folder in reversed(folders):
                    writer.finish_folder(folder)
                return {name: _number(record, name, 0, 1 << 62) for name in ("entries", "bytes")}
            else:
                writer.create_entry(record)
                if kind == "d":
                    folders.append(record)
    finally:
        if file >= 0:
            os.close(file)
        writer.close()
    raise BadStream("the stream has no end")


def remove(folder: int, name: bytes | str) -> None:
    """Remove an entry of an open folder and everything below it."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
    else:
        return
    inner = stream._enter(folder, os.fsencode(name))
    try:
        os.fchmod(inner, 0o700)
        for child in os.listdir(inner):
            remove(inner, child)
    finally:
        os.close(inner)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=folder)


def _make_folder(folder: int, name: bytes) -> int:
    """Create a folder of this name, replacing any other entry."""
    info = _lstat(folder, name)
    if info is not None and stat.S_ISDIR(info.st_mode):
        return _open_writable(folder, name)
    remove(folder, name)
    os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, tree.FOLDER, dir_fd=folder)


def _open_writable(folder: int, name: bytes) -> int:
    descriptor = int(stream._enter(folder, name))
    os.fchmod(descriptor, 0o700)
    return descriptor


def _lstat(folder: int, name: bytes) -> Any:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _text(entry: dict[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise BadStream("invalid record")
    return value


def _number(entry: dict[str, Any], name: str, minimum: int, maximum: int) -> int:
    value = entry.get(name)
    if not isinstance(value, int) or not minimum <= value <= maximum:
        raise BadStream("invalid record")
    return int(value)


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadStream("invalid record") from error
