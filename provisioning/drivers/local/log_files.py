"""The agent's log in two rotating files, read by position. The workspace may write anything there."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from provisioning.drivers.local.state import READ_MAX_BYTES, WorkspaceDir
from provisioning.log_pieces import PIECE_BYTES, last_lines, lines_from
from provisioning.types import LogPiece

MAX_TRIES = 3
MARK_MAX_BYTES = 100
MAX_POSITION = 10**11
"""Beyond any real log; a larger mark was not written by an agent."""


@dataclass(frozen=True, slots=True)
class _File:
    descriptor: int
    inode: int
    size: int

    def read(self, start: int, length: int) -> bytes:
        return os.pread(self.descriptor, max(0, min(length, self.size - start)), start)


def read_log(folder: WorkspaceDir, *, after: int | None, tail_lines: int, whole: bool) -> LogPiece:
    """See `Driver.read_log`. Reads the log of the start that is on disk."""
    for _ in range(MAX_TRIES):
        with contextlib.ExitStack() as stack:
            older = _open_regular(stack, folder.run / "app.log.1")
            newer = _open_regular(stack, folder.app_log)
            begins = _newer_file_start(folder.run / "app.log.start", newer, older)
            if newer is None and after is None and folder.launch_log.exists():
                # The app never wrote a log; the sandbox's output is returned once, at position 0.
                return LogPiece(folder.tail(tail_lines), 0)
            if newer is None or begins is None or _inode(folder.run / "app.log.1") != _inode_of(older):
                # Rotation in progress.
                continue
            return _read(newer, older if begins else None, begins, after, tail_lines, whole)
    return LogPiece("", after or 0)


def _read(
    newer: _File, older: _File | None, begins: int, after: int | None, tail_lines: int, whole: bool
) -> LogPiece:
    end = begins + newer.size
    # The older file ends where the newer one begins.
    first = max(0, begins - older.size) if older else begins
    if after is None:
        recent = newer.read(max(0, newer.size - READ_MAX_BYTES), READ_MAX_BYTES)
        if older and len(recent) < READ_MAX_BYTES:
            room = READ_MAX_BYTES - len(recent)
            recent = older.read(max(0, older.size - room), room) + recent
        return last_lines(recent, end, tail_lines, whole=whole)
    start = min(max(after, first), end)
    data = b""
    if older and start < begins:
        data = older.read(older.size - (begins - start), PIECE_BYTES + 1)
    if len(data) <= PIECE_BYTES:
        data += newer.read(max(0, start - begins), PIECE_BYTES + 1 - len(data))
    return lines_from(data, start, whole=whole, cut_off=start > after)


def _newer_file_start(path: Path, newer: _File | None, older: _File | None) -> int | None:
    """Return the position at which the newer file begins; None while the agent has not written it."""
    if newer is None:
        return None
    with contextlib.ExitStack() as stack:
        mark = _open_regular(stack, path)
        if mark is None:
            # Written after the first rotation: until then, the newer file begins where the older one ends.
            return older.size if older else 0
        fields = mark.read(0, MARK_MAX_BYTES).decode("ascii", "replace").split()
    if len(fields) != 2 or not all(field.isdecimal() for field in fields) or int(fields[0]) != newer.inode:
        return None
    return min(int(fields[1]), MAX_POSITION)


def _open_regular(stack: contextlib.ExitStack, path: Path) -> _File | None:
    """Open a regular file, closed with `stack`; None if it is anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    stack.callback(os.close, descriptor)
    info = os.fstat(descriptor)
    return _File(descriptor, info.st_ino, info.st_size) if stat.S_ISREG(info.st_mode) else None


def _inode(path: Path) -> int:
    try:
        info = path.lstat()
    except OSError:
        return 0
    return info.st_ino if stat.S_ISREG(info.st_mode) else 0


def _inode_of(file: _File | None) -> int:
    return file.inode if file else 0
