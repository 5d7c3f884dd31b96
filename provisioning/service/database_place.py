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
    """The file of an instance in `home`: in its folder, or where it is before `make up` has made that."""
    old, new = home / NAME, home / FOLDER / NAME
    return new if new.exists() or (new.parent.is_dir() and not old.exists()) else old


def settle(home: Path) -> Path:
    """Make its folder, and move a file of an older version there; where it is now. Raises `OSError`.

    Only while nothing has it open. What was cut off in between is gone on with: the file comes last. One that
    is a link stays: somebody has put it elsewhere.
    """
    old, new = home / NAME, home / FOLDER / NAME
    if old.is_symlink() and not new.exists():
        return old
    new.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if old.exists() and not new.exists():
        for end in (*BESIDE, ""):
            source = home / f"{NAME}{end}"
            if source.exists():
                source.replace(new.with_name(source.name))
    return new
