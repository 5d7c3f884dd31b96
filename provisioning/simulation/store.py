"""Stored state of a simulated pool: an SQLite file shared by several worker processes.

Every change is one transaction, so a process killed at any point leaves either all of its change or nothing.
Times are seconds since the epoch.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from provisioning.errors import BackendUnavailable

SCHEMA_VERSION = 1
# Below the 2 seconds in which every driver call must return.
BUSY_TIMEOUT_S = 1.5
CLOSED_KEPT_S = 7 * 86_400

_COMMON_SCHEMA = """
CREATE TABLE IF NOT EXISTS pool (epoch REAL NOT NULL);
CREATE TABLE IF NOT EXISTS marks (
    name TEXT PRIMARY KEY, closed_generation INTEGER NOT NULL DEFAULT -1, calls INTEGER NOT NULL DEFAULT 0,
    starts INTEGER NOT NULL DEFAULT 0, changed_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS marks_by_age ON marks (changed_at);
CREATE TABLE IF NOT EXISTS homes (home_key TEXT PRIMARY KEY) WITHOUT ROWID;
"""


class SimulationStore:
    """Opens the state in `folder`, creating it on first use. Holds no connection between calls.

    `schema` creates the driver's own tables, among them `workspaces`, keyed by `name`.
    """

    def __init__(self, folder: Path, schema: str) -> None:
        self.folder = folder
        self._schema = _COMMON_SCHEMA + schema
        self.path = folder / "state.sqlite3"

    @contextmanager
    def read(self, now: float) -> Iterator[sqlite3.Connection]:
        """Open a consistent view. Raises `BackendUnavailable`."""
        with self._transaction("BEGIN", now) as connection:
            yield connection

    @contextmanager
    def write(self, now: float) -> Iterator[sqlite3.Connection]:
        """Open an exclusive transaction, committed if the block ends without an error."""
        with self._transaction("BEGIN IMMEDIATE", now) as connection:
            yield connection

    @contextmanager
    def _transaction(self, begin: str, now: float) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._connect(now)) as connection:
                connection.execute(begin)
                try:
                    yield connection
                except BaseException:
                    connection.rollback()
                    raise
                connection.commit()
        except (sqlite3.Error, OSError) as error:
            raise self._unavailable(error) from error

    def _connect(self, now: float) -> sqlite3.Connection:
        if not self.path.exists():
            self._create(now)
        connection = self._open()
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.Error:
            connection.close()
            raise
        if not version:
            # Another process was killed or is busy between creating and filling it.
            connection.close()
            self._create(now)
            connection = self._open()
        elif version != SCHEMA_VERSION:
            connection.close()
            raise BackendUnavailable(
                f"The state of the simulated pool in {self.folder} has another version. "
                "Delete that folder: simulated workspaces have no data."
            )
        return connection

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        connection.row_factory = sqlite3.Row
        # With WAL and NORMAL a killed process loses nothing, and a power failure only the last changes.
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def _create(self, now: float) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The kernel releases the lock if its holder dies.
        with (self.folder / "create.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with closing(self._open()) as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version:
                    return
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(
                    f"BEGIN IMMEDIATE; {self._schema} PRAGMA user_version = {SCHEMA_VERSION};"
                )
                connection.execute("INSERT INTO pool (epoch) VALUES (?)", (now,))
                connection.execute("COMMIT")

    def _unavailable(self, error: Exception) -> BackendUnavailable:
        text = str(error)
        if "locked" in text or "busy" in text:
            message = "The simulated pool is busy. Try again in a moment."
        else:
            message = (
                f"The state of the simulated pool in {self.folder} is not usable. "
                "Check that the folder is writable and its disk has free space."
            )
        return BackendUnavailable(message, detail=text)


class StoredMarks:
    """Closed generations, counters and homes of workspaces within one transaction, as of `now`."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.connection = connection
        self.now = now

    def epoch(self) -> float:
        """Return when the pool was first used."""
        return float(self._first_value("SELECT epoch FROM pool"))

    def count_call(self, name: str) -> int:
        """Count a call for `name`; return its number, starting from 1."""
        row = self.connection.execute(
            "INSERT INTO marks (name, calls, changed_at) VALUES (?, 1, ?) "
            "ON CONFLICT (name) DO UPDATE SET calls = calls + 1, changed_at = excluded.changed_at "
            "RETURNING calls",
            (name, self.now),
        ).fetchone()
        return int(row[0])

    def closed_generation(self, name: str) -> int:
        """Return the highest closed generation, or -1."""
        generation = self._first_value("SELECT closed_generation FROM marks WHERE name = ?", name)
        return -1 if generation is None else int(generation)

    def close(self, name: str, generation: int) -> None:
        """Close `generation` and all below it. The mark exists, since the call was counted."""
        self.connection.execute(
            "UPDATE marks SET closed_generation = max(closed_generation, ?) WHERE name = ?",
            (generation, name),
        )

    def starts(self, name: str) -> int:
        """Return how often this workspace was started."""
        return int(self._first_value("SELECT starts FROM marks WHERE name = ?", name) or 0)

    def record_start(self, name: str, home_key: str) -> None:
        """Count a start and create its home."""
        self.connection.execute("INSERT OR IGNORE INTO homes VALUES (?)", (home_key,))
        self.connection.execute("UPDATE marks SET starts = starts + 1 WHERE name = ?", (name,))

    def homes(self) -> frozenset[str]:
        """Return the keys of all home volumes."""
        return frozenset(key for (key,) in self.connection.execute("SELECT home_key FROM homes"))

    def delete_home(self, home_key: str) -> None:
        """Delete a home volume, if it exists."""
        self.connection.execute("DELETE FROM homes WHERE home_key = ?", (home_key,))

    def purge_marks(self) -> None:
        """Remove expired marks of workspaces that do not exist."""
        self.connection.execute(
            "DELETE FROM marks WHERE changed_at < ? AND name NOT IN (SELECT name FROM workspaces)",
            (self.now - CLOSED_KEPT_S,),
        )

    def _first_value(self, query: str, *values: object) -> Any:
        row = self.connection.execute(query, values).fetchone()
        return None if row is None else row[0]
