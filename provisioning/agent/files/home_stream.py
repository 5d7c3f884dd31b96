"""A home as a resumable stream of records. Standard library only.

A record is four bytes (its length, big-endian), JSON of that length, and `n` more bytes if it has `n`. The
stream begins with `MAGIC`. Kinds (`t`): `d` folder, `l` link, `f` file, `x` omitted (`why`); the last record
is `end`, or `more` if the time limit was reached. A file that is sent is followed by `b` (bytes at offset
`o`) and `e` (its end); by `g` (digests) in a check. `same` in `f` means that its content was sent under
another name (`i`). Paths (`p`) are in the wire form of `tree`. Folders precede their contents; names are
sorted by bytes.

Links are never followed: every name is opened relative to its open folder. Files keep their holes: blocks of
zeros are not sent. Extended attributes are limited to `user.*`, modes to the bits of `KEPT`.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import os
import stat
import struct
import time

import tree  # type: ignore[import-not-found,unused-ignore]

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` is slow to import
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

MAGIC = b"berth-home 1\n"
LENGTH = struct.Struct(">I")
OFFSET = struct.Struct(">Q")
BLOCK = 1 << 16
PIECE = 1 << 20
SPAN = 1 << 28
ZEROS = bytes(BLOCK)
MAX_RECORD = 1 << 20
MAX_XATTRS = 1 << 16
MAX_SIZE = 1 << 50
MAX_TIME = 1 << 62
"""Larger files are not read; times further from 1970, in nanoseconds, are clamped."""
KEPT = 0o777
"""Excludes set-user-ID, set-group-ID and sticky."""
SPECIAL, UNREADABLE = "special", "unreadable"
"""Why an entry is omitted: it is a pipe, socket or device; or it cannot be read, so data is lost."""
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class BadStream(Exception):
    """The input is not a valid stream, or is truncated."""


class Unreadable(Exception):
    """An entry of the home, given by its path, cannot be read, so a copy would lose it."""


# --- walking ------------------------------------------------------------------------------------------


def walk(root: int, after: list[bytes] | None = None) -> Iterator[tuple[list[bytes], int, bytes, Any]]:
    """Yield everything below an open folder: parent names, open parent folder, name, and stat result.

    In stream order, starting after `after`. The stat result is `None` for a folder that cannot be entered:
    nested too deeply, unreadable, or on another file system.
    """
    device = os.fstat(root).st_dev
    skip = list(after or [])
    # Reopened, because duplicated descriptors share their read position.
    top = _enter(root, b".")
    open_folders = [(top, iter(_names(top, skip[0] if skip else b"")))]
    above: list[bytes] = []
    try:
        while open_folders:
            folder, names = open_folders[-1]
            name = next(names, None)
            if name is None:
                os.close(folder)
                open_folders.pop()
                if above:
                    above.pop()
                continue
            passed = skip[: len(above) + 1] == [*above, name]
            try:
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:
                continue
            if not stat.S_ISDIR(info.st_mode):
                if not passed:
                    yield above, folder, name, info
                continue
            try:
                inner = (
                    _enter(folder, name) if len(above) < tree.MAX_DEPTH and info.st_dev == device else None
                )
            except OSError:
                inner = None
            if not passed:
                yield above, folder, name, info if inner is not None else None
            if inner is None:
                continue
            above = [*above, name]
            first = skip[len(above)] if passed and len(skip) > len(above) else b""
            open_folders.append((inner, iter(_names(inner, first))))
    finally:
        for folder, _ in open_folders:
            os.close(folder)


def _names(folder: int, first: bytes) -> list[bytes]:
    names = (os.fsencode(name) for name in os.listdir(folder))
    return sorted(name for name in names if name >= first)


def _enter(folder: int, name: bytes) -> int:
    """Open the folder of this name, even if its owner has no permission to read it."""
    try:
        return os.open(name, tree.FOLDER, dir_fd=folder)
    except PermissionError:
        with _added_rights(folder, name, 0o500):
            return os.open(name, tree.FOLDER, dir_fd=folder)


@contextlib.contextmanager
def _added_rights(folder: int, name: bytes, rights: int) -> Iterator[None]:
    """Add `rights` to an entry's mode within the block. Never follows a link."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise PermissionError(errno.EACCES, "neither file nor folder")
        path = f"/proc/self/fd/{descriptor}"
        os.chmod(path, stat.S_IMODE(mode) | rights)  # noqa: PTH101
        try:
            yield
        finally:
            os.chmod(path, stat.S_IMODE(mode))  # noqa: PTH101
    finally:
        os.close(descriptor)


def path_of(names: Iterable[bytes]) -> str:
    return "/".join(tree.wire(os.fsdecode(name)) for name in names)


def names_of(path: str) -> list[bytes]:
    """Return the names of a path from a stream. Raises `BadStream` unless the path is below the home."""
    try:
        names = [os.fsencode(name) for name in _plain_parts(path)]
    except (tree.FileRequestRefused, UnicodeError) as refused:
        raise BadStream("a path is outside the home") from refused
    return names


def _plain_parts(path: str) -> list[str]:
    parts = [os.fsdecode(tree.unquote_to_bytes(part)) for part in path.split("/")]
    for name in parts:
        if name in ("", ".", "..") or "/" in name or "\0" in name or len(os.fsencode(name)) > tree.MAX_NAME:
            raise tree.FileRequestRefused("bad_name")
    if len(parts) > tree.MAX_DEPTH + 1:
        raise tree.FileRequestRefused("too_deep")
    return parts


# --- files --------------------------------------------------------------------------------------------


def open_regular(folder: int, name: bytes) -> int:
    """Open a regular file of an open folder for reading. Raises `OSError`."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except PermissionError:
        with _added_rights(folder, name, 0o400):
            descriptor = os.open(name, _FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def blocks(file: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and data of whole blocks that are not all zeros. Holes are not read."""
    place = start - start % BLOCK
    while place < end:
        try:
            data_start = os.lseek(file, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            data_start = place
        place = max(place, data_start - data_start % BLOCK)
        if place >= end:
            return
        data = os.pread(file, min(PIECE, end - place), place)
        if not data:
            return
        yield from _nonzero_runs(place, data)
        place += len(data)
        if len(data) % BLOCK and place < end:
            place -= len(data) % BLOCK  # short read: keep block alignment
            if len(data) < BLOCK:
                return


def _nonzero_runs(place: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    begun = -1
    for offset in range(0, len(data), BLOCK):
        block = data[offset : offset + BLOCK]
        empty = block == ZEROS[: len(block)]
        if not empty and begun < 0:
            begun = offset
        if empty and begun >= 0:
            yield place + begun, data[begun:offset]
            begun = -1
    if begun >= 0:
        yield place + begun, data[begun:] if begun else data


def digest_of(file: int, start: int, end: int) -> str:
    """Return the SHA-256 of the blocks in a file's range and their offsets. Holes do not change it."""
    digest = hashlib.sha256(OFFSET.pack(end))
    for place, data in blocks(file, start, end):
        for offset in range(0, len(data), BLOCK):
            digest.update(OFFSET.pack(place + offset))
            digest.update(memoryview(data)[offset : offset + BLOCK])
    return digest.hexdigest()


def xattrs_of(target: int | str) -> dict[str, str]:
    """Return `user.*` attributes of an open file or folder, base64, up to `MAX_XATTRS` bytes."""
    attributes, total = {}, 0
    with contextlib.suppress(OSError):
        for name in sorted(os.listxattr(target)):
            if name.startswith("user.") and name.isprintable():
                value = os.getxattr(target, name)
                total += len(value) + len(name)
                if total <= MAX_XATTRS:
                    attributes[name] = base64.b64encode(value).decode()
    return attributes


# --- writing ------------------------------------------------------------------------------------------


class RecordWriter:
    """Writes records to `out`, an object with `write`."""

    def __init__(self, out: Any) -> None:
        self.out = out
        self.out.write(MAGIC)

    def put(self, record: dict[str, Any], data: bytes = b"") -> None:
        text = json.dumps({**record, "n": len(data)} if data else record, separators=(",", ":")).encode()
        self.out.write(LENGTH.pack(len(text)) + text)
        if data:
            self.out.write(data)


def entry_of(above: list[bytes], folder: int, name: bytes, info: Any) -> dict[str, Any]:
    """Return the record of an entry from `walk`, without the content of a file."""
    path = path_of([*above, name])
    if info is None:
        return {"t": "x", "p": path, "why": UNREADABLE}
    kind = stat.S_IFMT(info.st_mode)
    entry: dict[str, Any] = {"p": path, "mt": max(-MAX_TIME, min(MAX_TIME, info.st_mtime_ns))}
    try:
        if kind == stat.S_IFLNK:
            to = os.readlink(name, dir_fd=folder)
            return {"t": "l", **entry, "to": base64.b64encode(os.fsencode(to)).decode()}
        if kind not in (stat.S_IFDIR, stat.S_IFREG):
            return {"t": "x", "p": path, "why": SPECIAL}
        if kind == stat.S_IFREG and info.st_size > MAX_SIZE:
            return {"t": "x", "p": path, "why": UNREADABLE}
        descriptor = _enter(folder, name) if kind == stat.S_IFDIR else open_regular(folder, name)
    except OSError:
        return {"t": "x", "p": path, "why": UNREADABLE}
    try:
        entry |= {"m": info.st_mode & KEPT}
        if attributes := xattrs_of(descriptor):
            entry["x"] = attributes
    finally:
        os.close(descriptor)
    if kind == stat.S_IFDIR:
        return {"t": "d", **entry}
    entry |= {"s": info.st_size, "a": info.st_blocks * 512}
    if info.st_nlink > 1:
        entry["i"] = f"{info.st_dev:x}.{info.st_ino:x}"
    return {"t": "f", **entry}


def write_manifest(root: int, out: Any, *, after: str = "", limit_s: float = float("inf")) -> bool:
    """Write the entries after `after` for about `limit_s` seconds; return whether all were written."""
    until = time.monotonic() + limit_s
    writer = RecordWriter(out)
    for walked in walk(root, names_of(after) if after else None):
        writer.put(entry_of(*walked))
        if time.monotonic() > until:
            writer.put({"t": "more"})
            return False
    writer.put({"t": "end"})
    return True


def write_check(
    root: int, out: Any, *, after: str = "", start: int = 0, limit_s: float = float("inf")
) -> bool:
    """Write a manifest with digests: after each file one per `SPAN` (`g`), and its end (`e`).

    The first file starts at the offset `start`, a multiple of `SPAN`. Returns as `write_manifest`.
    """
    until = time.monotonic() + limit_s
    writer = RecordWriter(out)
    for above, folder, name, info in walk(root, names_of(after) if after else None):
        entry = entry_of(above, folder, name, info)
        file = None
        if entry["t"] == "f":
            try:
                file = open_regular(folder, name)
            except OSError:
                entry = {"t": "x", "p": entry["p"], "why": UNREADABLE}
        writer.put(entry)
        if file is not None:
            try:
                for place in range(start, max(entry["s"], 1), SPAN):
                    end = min(entry["s"], place + SPAN)
                    writer.put({"t": "g", "o": place, "g": digest_of(file, place, end)})
                    if time.monotonic() > until and end < entry["s"]:
                        writer.put({"t": "more"})
                        return False
            finally:
                os.close(file)
            writer.put({"t": "e"})
        start = 0
        if time.monotonic() > until:
            writer.put({"t": "more"})
            return False
    writer.put({"t": "end"})
    return True


def write_files(
    root: int, wants: Iterable[tuple[str, int]], out: Any, *, limit_s: float = float("inf")
) -> bool:
    """Write file contents from given offsets for about `limit_s` seconds; return whether all was sent."""
    files = tree.Tree.__new__(tree.Tree)
    files.root = root
    until = time.monotonic() + limit_s
    writer = RecordWriter(out)
    for path, offset in wants:
        names = names_of(path)
        try:
            with files.folder([os.fsdecode(name) for name in names[:-1]]) as folder:
                info = os.stat(names[-1], dir_fd=folder, follow_symlinks=False)
                entry = entry_of(names[:-1], folder, names[-1], info)
                if entry["t"] != "f":
                    raise OSError(errno.EINVAL, "no longer a regular file")
                file = open_regular(folder, names[-1])
        except (OSError, tree.FileRequestRefused):
            writer.put({"t": "x", "p": path, "why": UNREADABLE})
            continue
        try:
            if not _write_file(writer, file, entry, offset, until):
                return False
        finally:
            os.close(file)
        if time.monotonic() > until:
            writer.put({"t": "more"})
            return False
    writer.put({"t": "end"})
    return True


def _write_file(writer: RecordWriter, file: int, entry: dict[str, Any], offset: int, until: float) -> bool:
    writer.put({**entry, "o": offset})
    for place, data in blocks(file, offset, entry["s"]):
        writer.put({"t": "b", "o": place}, data)
        if time.monotonic() > until and place + len(data) < entry["s"]:
            writer.put({"t": "more"})
            return False
    writer.put({"t": "e"})
    return True


def write_home(root: int, out: Any, *, strict: bool = False) -> dict[str, int]:
    """Write a whole home with contents as one stream; return counts of entries, bytes and omitted entries.

    The last record contains the counts and the digest of all records before it. With `strict` raises
    `Unreadable` for an unreadable entry instead of omitting it.
    """
    tee = _HashingWriter(out)
    writer = RecordWriter(tee)
    counts = {"entries": 0, "bytes": 0, SPECIAL: 0, UNREADABLE: 0}
    sent_inodes: set[str] = set()
    for above, folder, name, info in walk(root):
        entry = entry_of(above, folder, name, info)
        file = None
        if entry.get("i") in sent_inodes:
            counts["entries"] += 1
            writer.put({**entry, "same": 1})
            continue
        if entry["t"] == "f":
            try:
                file = open_regular(folder, name)
            except OSError:
                entry = {"t": "x", "p": entry["p"], "why": UNREADABLE}
        if entry["t"] == "x":
            if strict and entry["why"] == UNREADABLE:
                raise Unreadable(entry["p"])
            counts[entry["why"]] += 1
            writer.put(entry)
            continue
        counts["entries"] += 1
        if file is None:
            writer.put(entry)
            continue
        try:
            counts["bytes"] += entry["s"]
            if "i" in entry:
                sent_inodes.add(entry["i"])
            _write_file(writer, file, entry, 0, float("inf"))
        finally:
            os.close(file)
    writer.put({"t": "end", **counts, "g": tee.digest()})
    return counts


class _HashingWriter:
    def __init__(self, out: Any) -> None:
        self.out = out
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self.out.write(data)

    def digest(self) -> str:
        return self._hash.hexdigest()


# --- reading ------------------------------------------------------------------------------------------


class RecordReader:
    """Reads records. `read(count)` returns up to `count` bytes, none at the end."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._hash = hashlib.sha256()
        self._digest = ""
        if self._read_exactly(len(MAGIC)) != MAGIC:
            raise BadStream("not a stream of a home")

    def records(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield records up to and including `end` or `more`. Raises `BadStream`."""
        while True:
            self._digest = self._hash.hexdigest()
            (length,) = LENGTH.unpack(self._read_exactly(LENGTH.size))
            if length > MAX_RECORD:
                raise BadStream("a record is too long")
            try:
                record = json.loads(self._read_exactly(length))
            except (ValueError, RecursionError) as error:
                raise BadStream("invalid record") from error
            if not isinstance(record, dict) or not isinstance(record.get("t"), str):
                raise BadStream("invalid record")
            count = record.get("n", 0)
            if not isinstance(count, int) or not 0 <= count <= PIECE:
                raise BadStream("content is too long")
            yield record, self._read_exactly(count) if count else b""
            if record["t"] in ("end", "more"):
                return

    @property
    def digest(self) -> str:
        """Digest of everything before the last record."""
        return self._digest

    def _read_exactly(self, count: int) -> bytes:
        parts, remaining = [], count
        while remaining:
            data = self._read(remaining)
            if not data:
                raise BadStream("the stream is truncated")
            parts.append(data)
            remaining -= len(data)
        content = b"".join(parts) if len(parts) != 1 else parts[0]
        self._hash.update(content)
        return content


def check_home(read: Callable[[int], bytes]) -> None:
    """Read one stream of `write_home` to its end. Raises `BadStream` if it was altered."""
    reader = RecordReader(read)
    last: dict[str, Any] = {}
    for record, _ in reader.records():
        last = record
    if last.get("t") != "end" or last.get("g") != reader.digest:
        raise BadStream("checksum mismatch")
