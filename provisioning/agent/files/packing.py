"""Streams a folder as an archive, piece by piece. Standard library only. Follows no links."""

# ruff: noqa: PTH123 - a descriptor

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import time
import zipfile

import tree  # type: ignore[import-not-found,unused-ignore]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

PIECE = 1 << 18
LEFT_OUT = "BERTH.left_out"
MAX_NAMED = 1000
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FIRST = (1980, 1, 1, 0, 0, 0)


def write_tar(files: Any, path: str, top: str, out: Any) -> None:
    """Write a tar with links and folders; pipes, sockets and devices are omitted.

    Unreadable entries are omitted too and listed, in wire form, in a header of a last entry. That entry is
    the folder itself once more, so programs that do not know the header lose nothing.
    """
    unread: list[str] = []
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, errorlevel=0) as archive:
        for below, folder, name, info in files.walk(path, unread):
            entry = tarfile.TarInfo("/".join((top, *below, name)))
            entry.mode, entry.mtime = stat.S_IMODE(info.st_mode), info.st_mtime
            if stat.S_ISDIR(info.st_mode):
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            elif stat.S_ISLNK(info.st_mode):
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=folder)
                archive.addfile(entry)
            elif stat.S_ISREG(info.st_mode) and (file := open_regular(folder, name)):
                with file:
                    entry.size = os.fstat(file.fileno()).st_size
                    archive.addfile(entry, FixedLengthReader(file, entry.size))  # type: ignore[arg-type]
            elif stat.S_ISREG(info.st_mode) and exists(folder, name):
                unread.append(tree.wire_path([*below, name]))
        if unread:
            entry = tarfile.TarInfo(top)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, int(time.time())
            entry.pax_headers = {LEFT_OUT: "\n".join(unread[:MAX_NAMED])}
            archive.addfile(entry)


def write_zip(files: Any, path: str, top: str, out: Any) -> None:
    """Write a zip without compression. Links and special files are omitted."""
    forward: Any = SequentialOutput(out)
    with zipfile.ZipFile(forward, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for below, folder, name, info in files.walk(path):
            arcname = "/".join((top, *below, name)).encode("utf-8", "replace").decode("utf-8")
            entry = zipfile.ZipInfo(arcname, max(_FIRST, time.gmtime(max(0, info.st_mtime))[:6]))
            entry.external_attr = (info.st_mode & 0xFFFF) << 16
            if stat.S_ISDIR(info.st_mode):
                entry.filename += "/"
                archive.writestr(entry, b"")
            elif stat.S_ISREG(info.st_mode) and (file := open_regular(folder, name)):
                with file, archive.open(entry, "w", force_zip64=True) as target:
                    shutil.copyfileobj(file, target, PIECE)


def open_regular(folder: int, name: str) -> BinaryIO | None:
    """Open a regular file of an open folder; None if it no longer is one or cannot be read."""
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return open(descriptor, "rb")


def exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


class FixedLengthReader:
    """Reads a file with a fixed length: a file that shrinks meanwhile is padded with zeros."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.remaining = file, size

    def read(self, count: int) -> bytes:
        count = min(count, self.remaining)
        data = self.file.read(count)
        self.remaining -= count
        return data.ljust(count, b"\0")


class SequentialOutput:
    """A sequential output stream in the form that zipfile accepts."""

    def __init__(self, out: Any) -> None:
        self.out = out

    def write(self, data: Any) -> int:
        return int(self.out.write(data))

    def flush(self) -> None:
        """Do nothing: pieces are sent when they are large enough."""
