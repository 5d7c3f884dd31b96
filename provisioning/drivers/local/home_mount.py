"""Keeps what workspaces leave in homes from becoming root's programs or devices outside.

Where the node worker is root, so is the owner of every file that a workspace makes. A sandbox shows homes
without set-user-ID and devices; outside, the folder of homes is mounted over itself in the same way. The
mount outlives the worker, whoever ends it: the next one finds it. `release` takes it away, and a restart of
the machine does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from provisioning.drivers.local import attach, mount_table

CLOSED = os.ST_NOSUID | os.ST_NODEV

LOCK = ".homes.lock"


def homes_dir(config: Mapping[str, object], home: Path) -> Path:
    """Where the home folders of a pool are whose state is in `home`.

    As the pool says (`homes`); in its `home` where it says that; else `BERTH_HOMES_DIR`.
    """
    named = config.get("homes")
    if not named and not config.get("home"):
        named = os.environ.get("BERTH_HOMES_DIR")
    return Path(os.path.realpath(str(named))) if named else home / "homes"


def closed(homes: Path) -> bool:
    """Whether programs and device nodes in there have no power here. Raises `OSError`."""
    return os.statvfs(homes).f_flag & CLOSED == CLOSED


def complaint(homes: Path) -> str:
    """What an operator should know and do; empty where nothing is amiss. Raises `OSError`."""
    if os.geteuid() != 0 or closed(homes):
        return ""
    return (
        f"Workspaces can leave root's set-user-ID programs in their homes: {homes} could not be mounted with "
        "nosuid and nodev. Run the node worker as an ordinary user, or mount that folder so yourself."
    )


def secure(homes: Path, lock: Path) -> None:
    """Mount the folder over itself, if this is root and it is open. Raises `OSError` where it may not."""
    if os.geteuid() != 0:
        return
    with _alone(lock):
        if closed(homes):
            return
        tree = attach.copy_of({"source": str(homes), "folder": True, "readonly": False, "devices": False})
        try:
            target = os.fsencode(homes)
            flags = attach.MOVE_MOUNT_F_EMPTY_PATH
            moved = attach.libc.syscall(attach.SYS_MOVE_MOUNT, tree, b"", attach.AT_FDCWD, target, flags)
            attach.check(moved, f"move_mount {homes}")
        finally:
            os.close(tree)


def release(homes: Path, lock: Path) -> None:
    """Take the mount away, if it is one of `secure` and nothing outside of sandboxes uses it.

    A file system of its own that is mounted there stays.
    """
    if os.geteuid() != 0 or not lock.parent.is_dir():
        return
    with _alone(lock):
        # A folder mounted over itself is on the same device as the folder that it is in.
        if not os.path.ismount(homes) and homes.resolve() in mount_table.points():
            attach.libc.umount2(os.fsencode(homes), 0)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """While no other process does the same. A descriptor in the folder itself would keep it mounted."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
