"""Gives an unprivileged front door access to workspace sockets, if root runs the node worker.

The door (the front door, or the gateway of a node) is a separate user. Its group is that of the local
driver's folder. It can traverse that folder and those of workspaces, list neither, and connect to the sockets
of their apps. Everything else in them is inaccessible. The process that starts the door opens them
(`open_to`) while no worker runs; workers do the same for new ones (`group_of`).

Only root does this, and only in folders of root: elsewhere, paths could be replaced after the check
(docs/adr/0076-door-account.md).
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
    """Return the door's group, from the local driver's folder; None if the worker's user is the door."""
    if os.geteuid() != 0:
        return None
    info = base.stat()
    return info.st_gid if info.st_gid and info.st_mode & stat.S_IXGRP else None


def open_to(base: Path, uid: int) -> None:
    """Give the door's user `uid` access to all sockets of workspaces; 0 means root only. Raises `OSError`.

    Includes sockets of workspaces started for another door.
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
    # Last, since workers that see this mode open new sockets themselves.
    base.chmod(mode)


def _open_socket(name: str, folder: int, uid: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chown(name, 0, uid, dir_fd=folder, follow_symlinks=False)
            os.chmod(name, 0o660 if uid else 0o600, dir_fd=folder)


def own_folders(base: Path, uid: int) -> None:
    """Give the door ownership of its folders inside the local driver's folder. Raises `OSError`.

    Running sandboxes have the folder of the agents' socket mounted. So that folder is kept and emptied
    instead of replaced.
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
    """Yield the folders of workspaces, spares and file servers."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(base):
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)
