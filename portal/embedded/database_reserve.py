"""Disk space reserved in SQLite's files, so that users can still sign in and stop workspaces on a full disk.

The reserve consists of unused pages in the database file and a preallocated write-ahead log. SQLite uses both
before it allocates disk space, and no other process can take them. The log keeps its length while a
connection is open, so `Reserve` keeps one open. Database servers have to handle a full disk themselves.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESERVE_BYTES = 8 << 20
# Free disk space below which the disk counts as full.
FULL_BELOW_BYTES = 4 << 20
# Minimum free disk space before the reserve is allocated.
SPARE_BYTES = 4 * RESERVE_BYTES
BUSY_TIMEOUT_S = 2.0


class Reserve:
    """The reserve of the database in `file`. Methods raise `sqlite3.Error` and `OSError`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._connection = sqlite3.connect(
            file, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )

    def refill(self) -> None:
        """Refill the reserve if half of it is used and the disk has space.

        Locks the database for about 50 ms if the reserve has to be refilled.
        """
        if (
            min(unused(self._query_number), self._log()) >= RESERVE_BYTES // 2
            or free(self._file) < SPARE_BYTES
        ):
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.execute("CREATE TABLE berth_reserve (filler BLOB)")
            self._connection.execute("INSERT INTO berth_reserve VALUES (zeroblob(?))", [RESERVE_BYTES])
            # The pages of the dropped table stay in the file.
            self._connection.execute("DROP TABLE berth_reserve")
        except sqlite3.Error:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()

    def _query_number(self, statement: str) -> int:
        return int(self._connection.execute(statement).fetchone()[0])

    def _log(self) -> int:
        try:
            return Path(f"{self._file}-wal").stat().st_size
        except FileNotFoundError:
            return 0


def remaining_bytes_when_full(file: Path, ask: Callable[[str], Any]) -> int | None:
    """Return the remaining bytes of the reserve if the database's disk is full, else None.

    `ask` executes a statement and returns one number.
    """
    return unused(ask) if free(file) < FULL_BELOW_BYTES else None


def unused(ask: Callable[[str], Any]) -> int:
    """Return the unused bytes of the database file."""
    return int(ask("PRAGMA freelist_count")) * int(ask("PRAGMA page_size"))


def free(file: Path) -> int:
    """Return the bytes that this user can still write to a file's disk. Raises `OSError`."""
    stats = os.statvfs(file.parent)
    return stats.f_bavail * stats.f_frsize
