"""Creates a home from a stream of `home_stream`, in a folder that nothing else uses. Standard library only.

`Writing` writes the records below an open folder. It follows no links and removes entries that are in the
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

LOOK_BYTES = 16 << 20
LATER = -1
_WRITE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NoRoom(Exception):
    """Not enough disk space: bytes needed and bytes available."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__("no room")
        self.needed, self.free = needed, free


class Room:
    """Disk space beyond `reserve` bytes."""

    def __init__(self, folder: int, reserve: int) -> None:
        self.folder, self.reserve = folder, reserve
        self.unlooked = LOOK_BYTES

    def free(self) -> int:
        disk = os.fstatvfs(self.folder)
        return max(0, disk.f_bavail * disk.f_frsize - self.reserve)

    def require(self, needed: int, entries: int = 0) -> None:
        """Raise `NoRoom` unless that many bytes and entries fit."""
        free = self.free()
        disk = os.fstatvfs(self.folder)
        if needed > free or (disk.f_files and entries > disk.f_favail):
            raise NoRoom(needed, free)

    def take(self, count: int) -> None:
        """Account for bytes about to be written. Raises `NoRoom`."""
        self.unlooked += count
        if self.unlooked >= LOOK_BYTES:
            self.unlooked = 0
            self.require(count)


class Writing:
    """Writes records below the open folder `root`."""

    def __init__(self, root: int, room: Room) -> None:
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
        """Return the open folder of these names, created if missing; open until the next call."""
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
                    inner = _made(descriptor, name)
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

    def standing(self, entry: dict[str, Any]) -> int | None:
        """Create an entry without content; return the offset from which a file is still needed, or None.

        Returns `LATER` for a further hard link of a file that is not complete yet.
        """
        kind = entry["t"]
        if kind == "d":
            self.folder(stream.names_of(_text(entry, "p")))
        elif kind == "l":
            self._link(entry)
        elif kind == "f":
            return self._file(entry)
        elif kind != "x":
            raise BadStream("a record is none")
        return None

    def _link(self, entry: dict[str, Any]) -> None:
        folder, name = self.place(entry)
        to = _decoded(_text(entry, "to"))
        if not to or b"\0" in to:
            raise BadStream("a link leads nowhere")
        try:
            there = os.readlink(name, dir_fd=folder)
        except OSError:
            there = None
        if there != to:
            remove(folder, name)
            os.symlink(to, name, dir_fd=folder)
        when = _number(entry, "mt", -stream.MAX_TIME, stream.MAX_TIME)
        os.utime(name, ns=(when, when), dir_fd=folder, follow_symlinks=False)

    def _file(self, entry: dict[str, Any]) -> int | None:
        path, size = _text(entry, "p"), _number(entry, "s", 0, stream.MAX_SIZE)
        folder, name = self.place(entry)
        seen = _seen(folder, name)
        first = self.first.setdefault(entry["i"], path) if isinstance(entry.get("i"), str) else path
        if first != path:
            return None if self._named_again(first, folder, name, seen) else LATER
        if seen is None or not stat.S_ISREG(seen.st_mode):
            return 0
        if seen.st_size == size and seen.st_mtime_ns == entry.get("mt"):
            return None
        if seen.st_nlink > 1 or seen.st_size > size or seen.st_mode & 0o600 != 0o600:
            remove(folder, name)
            return 0
        return int(seen.st_size - seen.st_size % stream.BLOCK)

    def _named_again(self, first: str, folder: int, name: bytes, seen: Any) -> bool:
        """Link to the first name of the file if that is complete; return whether it is."""
        names = stream.names_of(first)
        files = tree.Tree.__new__(tree.Tree)
        files.root = self.root
        try:
            with files.folder([os.fsdecode(each) for each in names[:-1]]) as other:
                whole = _seen(other, names[-1])
                if whole is None or not stat.S_ISREG(whole.st_mode):
                    return False
                if seen is not None and (seen.st_dev, seen.st_ino) == (whole.st_dev, whole.st_ino):
                    return True
                remove(folder, name)
                os.link(names[-1], name, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)
        except tree.FileRequestRefused:
            return False
        return True

    def begin(self, entry: dict[str, Any]) -> int:
        """Open a file at the record's offset. Raises `BadStream` if earlier content is missing."""
        folder, name = self.place(entry)
        offset = _number(entry, "o", 0, stream.MAX_SIZE)
        seen = _seen(folder, name)
        if seen is not None and (not stat.S_ISREG(seen.st_mode) or seen.st_nlink > 1 or not offset):
            remove(folder, name)
            seen = None
        if (seen.st_size if seen else 0) < offset:
            raise BadStream("a piece is missing")
        if seen is None:
            return os.open(name, _WRITE | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        return os.open(name, _WRITE, dir_fd=folder)

    def piece(self, file: int, entry: dict[str, Any], record: dict[str, Any], data: bytes) -> None:
        place = _number(record, "o", 0, _number(entry, "s", 0, stream.MAX_SIZE))
        if place + len(data) > entry["s"]:
            raise BadStream("a file is longer than was said")
        self.room.take(len(data))
        view = memoryview(data)
        while view:
            count = os.pwrite(file, view, place)
            place, view = place + count, view[count:]

    def whole(self, file: int, entry: dict[str, Any]) -> None:
        """Finish a complete file: length, mode, attributes, and finally its time."""
        os.ftruncate(file, entry["s"])
        dress(file, entry)

    def remove(self, path: str) -> None:
        """Remove the entry at a path."""
        names = stream.names_of(path)
        remove(self.folder(names[:-1]), names[-1])

    def finish_folder(self, entry: dict[str, Any]) -> None:
        """Set mode and time of a folder whose contents are final."""
        names = stream.names_of(_text(entry, "p"))
        dress(self.folder(names), entry)
        self.close()


def dress(what: int, entry: dict[str, Any]) -> None:
    """Set mode, time and (where supported) attributes of an open file or folder."""
    attributes = entry.get("x")
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if isinstance(name, str) and name.startswith("user.") and isinstance(value, str):
            try:
                os.setxattr(what, name, _decoded(value))
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.EPERM, errno.E2BIG, errno.ERANGE, errno.EINVAL):
                    raise
    os.fchmod(what, _number(entry, "m", 0, 0o7777) & stream.KEPT)
    when = _number(entry, "mt", -stream.MAX_TIME, stream.MAX_TIME)
    os.utime(what, ns=(when, when))


def read_home(read: Callable[[int], bytes], root: int, room: Room) -> dict[str, int]:
    """Read a home from a stream of `write_home` into an open, empty folder; return the counts of the stream.

    Raises `BadStream` if the stream was altered, `NoRoom` and `OSError`; the folder is then incomplete.
    """
    reader, writing = stream.Reader(read), Writing(root, room)
    folders: list[dict[str, Any]] = []
    file = -1
    entry: dict[str, Any] = {}
    try:
        for record, data in reader.records():
            kind = record["t"]
            if file >= 0 and kind not in ("b", "e"):
                raise BadStream("a file has no end")
            if kind == "f" and record.get("same"):
                if writing.standing(record) is not None:
                    raise BadStream("a file is not there under its first name")
            elif kind == "f":
                writing.standing(record)
                file, entry = writing.begin(record), record
            elif kind == "b" and file >= 0:
                writing.piece(file, entry, record, data)
            elif kind == "e" and file >= 0:
                writing.whole(file, entry)
                os.close(file)
                file = -1
            elif kind == "end":
                if record.get("g") != reader.digest:
                    raise BadStream("it is not what was written")
                for each in reversed(folders):
                    writing.finish_folder(each)
                return {name: _number(record, name, 0, 1 << 62) for name in ("entries", "bytes")}
            else:
                writing.standing(record)
                if kind == "d":
                    folders.append(record)
    finally:
        if file >= 0:
            os.close(file)
        writing.close()
    raise BadStream("it has no end")


def remove(folder: int, name: bytes | str) -> None:
    """Remove a name of an open folder and everything below it."""
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
        for each in os.listdir(inner):
            remove(inner, each)
    finally:
        os.close(inner)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=folder)


def _made(folder: int, name: bytes) -> int:
    """Create a folder of this name, replacing any other entry."""
    seen = _seen(folder, name)
    if seen is not None and stat.S_ISDIR(seen.st_mode):
        return _opened_up(folder, name)
    remove(folder, name)
    os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, tree.FOLDER, dir_fd=folder)


def _opened_up(folder: int, name: bytes) -> int:
    found = int(stream._enter(folder, name))
    os.fchmod(found, 0o700)
    return found


def _seen(folder: int, name: bytes) -> Any:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _text(entry: dict[str, Any], name: str) -> str:
    found = entry.get(name)
    if not isinstance(found, str):
        raise BadStream("a record is none")
    return found


def _number(entry: dict[str, Any], name: str, least: int, most: int) -> int:
    found = entry.get(name)
    if not isinstance(found, int) or not least <= found <= most:
        raise BadStream("a record is none")
    return int(found)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadStream("a record is none") from error
