"""Where SQLite's file is. Needs neither Django nor a library, as what starts the services asks it too.

It has a folder of its own, as SQLite keeps more files beside it: who may write the database needs to write in
that folder, and in no other.
"""

from __future__ import annotations

from pathlib import Path

NAME = "berth.sqlite3"
FOLDER = "database"
BESIDE = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, which is nothing without it."""


def place(home: Path) -> Path:
    """The file of an instance in `home`."""
    return home / FOLDER / NAME


def make_folder(home: Path) -> Path:
    """Make its folder and return the file's place. Raises `OSError`."""
    file = place(home)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return file
