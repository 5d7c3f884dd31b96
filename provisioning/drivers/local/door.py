"""How a door without rights reaches the sockets of workspaces, where root runs the node worker.

The door (the front door, or the gateway of a node) is a user of its own there, whose group is that of the
local driver's folder. It goes through that folder and those of workspaces, lists neither, and connects to
the sockets of their apps; all else in them is closed to it. Whoever starts the door opens them (`open_to`)
while no worker runs; workers do the same with what they make (`group_of`).

Only root does any of this, and only in folders of root's: in another one something else could be put in the
place of what is looked at (docs/adr/0076-door-account.md).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from provisioning.endpoints import PORTAL_SOCKET
from provisioning.handover import owner_of, renew

OPEN, CLOSED = 0o710, 0o700
SPARES = ".spares"
STORAGE = ".caddy"
"""The door's own folder, in the local driver's."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def group_of(base: Path) -> int | None:
    """The group of the door, by the local driver's folder; None where whoever runs the worker is the door."""
    if os.geteuid() != 0:
        return None
    found = base.stat()
    return found.st_gid if found.st_gid and found.st_mode & stat.S_IXGRP else None


def open_to(base: Path, uid: int) -> None:
    """Let the door that is the user `uid` reach all sockets of workspaces; 0: root alone. Raises `OSError`.

    Those of workspaces that an older version, or another door, has left running as well.
    """
    mode = OPEN if uid else CLOSED
    for folder in (*_workspaces(base), *_workspaces(base / SPARES)):
        opened = os.open(folder, _FOLDER)
        try:
            if os.fstat(opened).st_uid != 0:
                continue
            os.fchown(opened, 0, uid)
            os.fchmod(opened, mode)
            for name in os.listdir(opened):  # noqa: PTH208
                if name.startswith("app") and name.endswith(".sock"):
                    _open_socket(name, opened, uid)
        finally:
            os.close(opened)
    os.chown(base, 0, uid)
    # Last: a worker that sees it opens what it makes itself.
    base.chmod(mode)


def _open_socket(name: str, folder: int, uid: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chown(name, 0, uid, dir_fd=folder, follow_symlinks=False)
            os.chmod(name, 0o660 if uid else 0o600, dir_fd=folder)


def give_own(base: Path, uid: int) -> None:
    """Give the door what it writes in the local driver's folder. Raises `OSError`.

    Running sandboxes show the folder of the agents' socket, so that is given as it is, emptied of what its
    former owner has left.
    """
    shared = os.open((base / PORTAL_SOCKET).parent, _FOLDER)
    try:
        if os.fstat(shared).st_uid != uid:
            os.fchown(shared, uid, uid)
            for name in os.listdir(shared):  # noqa: PTH208
                _remove(name, shared)
        os.fchmod(shared, 0o711)
    finally:
        os.close(shared)
    if owner_of(base / STORAGE) != uid:
        renew(base / STORAGE, uid)


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        shutil.rmtree(name, dir_fd=folder)


def _workspaces(base: Path) -> Iterator[Path]:
    """Folders of workspaces, of spares, and of what serves files."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(base):
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)
