"""Reads uploads of a browser form or a program, and writes them to a folder. Standard library only.

A file gets its final name only after all of it is on disk. Until then it has a temporary name, and it is
removed on any error.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets

import tree  # type: ignore[import-not-found,unused-ignore]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE = 1 << 18
SPACE_CHECK_BYTES = 16 << 20
MAX_HEADER = 16 << 10
MAX_FILES = 1000
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^;\s]{1,70}))', re.IGNORECASE)
_FILE = re.compile(r'filename="((?:[^"\\]|\\.)*)"')


class UploadCutOff(Exception):
    """The client disconnected, or sent no valid form."""


class UploadRoom:
    """Remaining space for an upload: `most_bytes` in total, and never the disk's last `reserve_bytes`."""

    def __init__(self, folder: int, most_bytes: int, reserve_bytes: int) -> None:
        self.folder = folder
        self.remaining = most_bytes
        self.reserve = reserve_bytes
        self.unchecked_bytes = SPACE_CHECK_BYTES

    def consume(self, count: int) -> None:
        """Account for bytes about to be written. Raises `FileRequestRefused`."""
        self.remaining -= count
        if self.remaining < 0:
            raise tree.FileRequestRefused("home_full")
        self.unchecked_bytes += count
        if self.unchecked_bytes >= SPACE_CHECK_BYTES:
            self.unchecked_bytes = 0
            disk = os.fstatvfs(self.folder)
            if disk.f_bavail * disk.f_frsize - count < self.reserve:
                raise tree.FileRequestRefused("disk_full")


def save(folder: int, name: str, pieces: Iterator[bytes], room: UploadRoom, *, replace: bool) -> int:
    """Write a file; return its size in bytes. Raises `FileRequestRefused` and `UploadCutOff`."""
    tree.require_name(name)
    if not replace:
        with contextlib.suppress(FileNotFoundError):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            raise tree.FileRequestRefused("exists", tree.wire(name))
    temporary = tree.UPLOAD + secrets.token_hex(8)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    written = 0
    try:
        descriptor = os.open(temporary, flags, 0o644, dir_fd=folder)
        try:
            for piece in pieces:
                room.consume(len(piece))
                view = memoryview(piece)
                while view:
                    view = view[os.write(descriptor, view) :]
                written += len(piece)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if replace:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            tree.move(folder, temporary, folder, name)
        os.fsync(folder)
    except OSError as error:
        raise tree.refused(error, name) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
    return written


class MultipartForm:
    """The files of a `multipart/form-data` body in sequence, one piece in memory at a time.

    `read(count)` returns up to `count` bytes, none at the end.
    """

    def __init__(self, content_type: str, read: Callable[[int], bytes]) -> None:
        match = _BOUNDARY.search(content_type)
        if not content_type.lower().startswith("multipart/form-data") or match is None:
            raise UploadCutOff
        self.mark = b"\r\n--" + (match[1] or match[2]).encode("latin-1")
        self.read = read
        self.buffer = b"\r\n"  # makes the first boundary look like the others

    def files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield the name and content of each file; read the content to its end before the next file."""
        for _ in self._read_part():
            pass
        for _ in range(MAX_FILES):
            if self._exactly(2) == b"--":
                return
            name = self._name()
            if name:
                yield name, self._read_part()
            else:
                for _ in self._read_part():
                    pass
        raise UploadCutOff

    def _name(self) -> str:
        """Return the file name of a part; empty for a field that is not a file or has none."""
        while b"\r\n\r\n" not in self.buffer:
            if len(self.buffer) > MAX_HEADER or not self._more():
                raise UploadCutOff
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        for line in head.decode("utf-8", "surrogateescape").split("\r\n"):
            if line.lower().startswith("content-disposition:") and (filename_match := _FILE.search(line)):
                name = re.sub(r"%(0D|0A|22)", lambda match: chr(int(match[1], 16)), filename_match[1])
                return name.replace('\\"', '"').rpartition("/")[2].rpartition("\\")[2]
        return ""

    def _read_part(self) -> Iterator[bytes]:
        keep = len(self.mark)
        while True:
            place = self.buffer.find(self.mark)
            if place >= 0:
                data, self.buffer = self.buffer[:place], self.buffer[place + keep :]
                if data:
                    yield data
                return
            if len(self.buffer) > keep:
                data, self.buffer = self.buffer[:-keep], self.buffer[-keep:]
                yield data
            if not self._more():
                raise UploadCutOff

    def _exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            if not self._more():
                raise UploadCutOff
        data = self.buffer[:count]
        if data == b"\r\n":
            self.buffer = self.buffer[count:]
        return data

    def _more(self) -> bool:
        data = self.read(PIECE)
        self.buffer += data
        return bool(data)
