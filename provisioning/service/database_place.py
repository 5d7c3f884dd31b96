"""Location of SQLite's file. Needs neither Django nor other libraries, because the supervisor uses it too.

The file has its own folder because SQLite keeps more files beside it: an account that writes the database
must be able to write to that folder, and to no other.
"""

from __future__ import annotations

from pathlib import Path

NAME = "berth.sqlite3"
FOLDER = "database"
COMPANION_SUFFIXES = ("-wal", "-shm", "-journal")
"""SQLite's files beside the database, which belong to it."""


def database_file(home: Path) -> Path:
    """Return the database file of an instance in `home`."""
    return home / FOLDER / NAME


def make_folder(home: Path) -> Path:
    """Create the database's folder and return the file's path. Raises `OSError`."""
    file = database_file(home)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return file
