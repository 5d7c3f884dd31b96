"""Room that SQLite's files hold for a full disk, so that people still sign in and stop what they have.

It is made of pages that the file has and does not use, and of a write-ahead log that has its length already:
SQLite takes both before it asks the disk for more, and nobody else can fill them. The log keeps its length as
long as somebody has the database open, which `Reserve` has. What a server of databases does on a full disk is
its operator's affair.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESERVE_BYTES = 8 << 20
# Less than this is no room to work in.
FULL_BELOW_BYTES = 4 << 20
# What the disk has to have left before the reserve takes from it.
SPARE_BYTES = 4 * RESERVE_BYTES
BUSY_TIMEOUT_S = 2.0


class Reserve:
    """The reserve of the database in `file`. Methods raise `sqlite3.Error` and `OSError`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._connection = sqlite3.connect(
            file, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )

    def keep(self) -> None:
        """Fill it up where half of it has gone and the disk has room.

        Holds the database for about 50 ms when there is something to do.
        """
        if min(unused(self._one), self._log()) >= RESERVE_BYTES // 2 or free(self._file) < SPARE_BYTES:
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.execute("CREATE TABLE berth_reserve (filler BLOB)")
            self._connection.execute("INSERT INTO berth_reserve VALUES (zeroblob(?))", [RESERVE_BYTES])
            # Its pages stay with the file.
            self._connection.execute("DROP TABLE berth_reserve")
        except sqlite3.Error:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()

    def _one(self, statement: str) -> int:
        return int(self._connection.execute(statement).fetchone()[0])

    def _log(self) -> int:
        try:
            return Path(f"{self._file}-wal").stat().st_size
        except FileNotFoundError:
            return 0


def left_when_full(file: Path, ask: Callable[[str], Any]) -> int | None:
    """The bytes of the reserve that are left where the disk of the database is full; else None.

    `ask` answers a statement with one number.
    """
    return unused(ask) if free(file) < FULL_BELOW_BYTES else None


def unused(ask: Callable[[str], Any]) -> int:
    """The bytes in the database's file that hold nothing."""
    return int(ask("PRAGMA freelist_count")) * int(ask("PRAGMA page_size"))


def free(file: Path) -> int:
    """The bytes that this user can still write to the disk of a file. Raises `OSError`."""
    found = os.statvfs(file.parent)
    return found.f_bavail * found.f_frsize
