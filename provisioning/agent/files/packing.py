"""Writes a folder as one stream, a piece at a time. Standard library only. No link is followed."""

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
    """As tar, with links and folders; pipes, sockets and devices are left out.

    What cannot be read is left out, too, and is named, in wire form, by a header of a last entry, which is
    the folder itself once more: programs that do not know it lose nothing.
    """
    unread: list[str] = []
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, errorlevel=0) as archive:
        for below, folder, name, seen in files.walk(path, unread):
            entry = tarfile.TarInfo("/".join((top, *below, name)))
            entry.mode, entry.mtime = stat.S_IMODE(seen.st_mode), seen.st_mtime
            if stat.S_ISDIR(seen.st_mode):
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            elif stat.S_ISLNK(seen.st_mode):
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=folder)
                archive.addfile(entry)
            elif stat.S_ISREG(seen.st_mode) and (file := opened(folder, name)):
                with file:
                    entry.size = os.fstat(file.fileno()).st_size
                    archive.addfile(entry, Exactly(file, entry.size))  # type: ignore[arg-type]
            elif stat.S_ISREG(seen.st_mode) and there(folder, name):
                unread.append(tree.wire_path([*below, name]))
        if unread:
            entry = tarfile.TarInfo(top)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, int(time.time())
            entry.pax_headers = {LEFT_OUT: "\n".join(unread[:MAX_NAMED])}
            archive.addfile(entry)


def write_zip(files: Any, path: str, top: str, out: Any) -> None:
    """As zip, stored: what takes long to make is seldom smaller. Links and special files are left out."""
    forward: Any = Forward(out)
    with zipfile.ZipFile(forward, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for below, folder, name, seen in files.walk(path):
            shown = "/".join((top, *below, name)).encode("utf-8", "replace").decode("utf-8")
            entry = zipfile.ZipInfo(shown, max(_FIRST, time.gmtime(max(0, seen.st_mtime))[:6]))
            entry.external_attr = (seen.st_mode & 0xFFFF) << 16
            if stat.S_ISDIR(seen.st_mode):
                entry.filename += "/"
                archive.writestr(entry, b"")
            elif stat.S_ISREG(seen.st_mode) and (file := opened(folder, name)):
                with file, archive.open(entry, "w", force_zip64=True) as into:
                    shutil.copyfileobj(file, into, PIECE)


def opened(folder: int, name: str) -> BinaryIO | None:
    """A regular file in an open folder; None where it is none any more, or cannot be read."""
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return open(descriptor, "rb")


def there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


class Exactly:
    """A file that is as long as was said: one that shrinks meanwhile is filled up with zeros."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.left = file, size

    def read(self, count: int) -> bytes:
        count = min(count, self.left)
        data = self.file.read(count)
        self.left -= count
        return data.ljust(count, b"\0")


class Forward:
    """A stream that can only be written on, which zipfile takes as it is."""

    def __init__(self, out: Any) -> None:
        self.out = out

    def write(self, data: Any) -> int:
        return int(self.out.write(data))

    def flush(self) -> None:
        """Nothing: pieces go on when they are large enough."""
