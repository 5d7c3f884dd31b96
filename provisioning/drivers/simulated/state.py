"""State of one simulated pool: an SQLite file shared by several worker processes.

Every change is one transaction, so a process killed at any point leaves either all of its change or nothing.
Times are seconds since the epoch.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from provisioning.errors import BackendUnavailable

SCHEMA_VERSION = 1
# Below the 2 seconds in which every driver call must return.
BUSY_TIMEOUT_S = 1.5

SCHEMA = """
CREATE TABLE IF NOT EXISTS pool (epoch REAL NOT NULL);
CREATE TABLE IF NOT EXISTS workspaces (
    name TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, generation INTEGER NOT NULL, digest TEXT NOT NULL,
    display_name TEXT NOT NULL, template TEXT NOT NULL, started_at REAL NOT NULL,
    ready_at REAL, failed_at REAL, failure_code TEXT NOT NULL DEFAULT '', exit_code INTEGER,
    ended_at REAL, deleting INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS deleting ON workspaces (ended_at) WHERE deleting = 1;
CREATE TABLE IF NOT EXISTS parts (
    name TEXT NOT NULL, node TEXT NOT NULL, cpu_milli INTEGER NOT NULL, memory_mib INTEGER NOT NULL,
    disk_mib INTEGER NOT NULL, PRIMARY KEY (name, node)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS parts_by_node ON parts (node);
CREATE TABLE IF NOT EXISTS grants (
    name TEXT NOT NULL, node TEXT NOT NULL, device TEXT NOT NULL, milli INTEGER NOT NULL,
    PRIMARY KEY (name, device)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS grants_by_device ON grants (device);
CREATE TABLE IF NOT EXISTS marks (
    name TEXT PRIMARY KEY, closed_generation INTEGER NOT NULL DEFAULT -1, calls INTEGER NOT NULL DEFAULT 0,
    starts INTEGER NOT NULL DEFAULT 0, changed_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS marks_by_age ON marks (changed_at);
CREATE TABLE IF NOT EXISTS homes (home_key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS over_grants (at REAL NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS layouts (
    device TEXT PRIMARY KEY, serial INTEGER NOT NULL, pieces TEXT NOT NULL
) WITHOUT ROWID;
"""


class SimulationStore:
    """Opens the state in `folder`, creating it on first use. Holds no connection between calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
                connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};")
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
