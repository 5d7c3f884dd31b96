"""Prevent files of workspaces in homes from acting as root's programs or devices outside.

If the node worker is root, root owns every file that a workspace creates. Sandboxes mount homes with nosuid
and nodev. Outside, the folder of homes is bind-mounted over itself with the same options. The mount outlives
the worker, and the next worker finds it. `release` or a reboot removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from provisioning.drivers.local import attach, mount_table

SECURE_FLAGS = os.ST_NOSUID | os.ST_NODEV

LOCK = ".homes.lock"


def homes_dir(config: Mapping[str, object], home: Path) -> Path:
    """Return the folder of homes of a pool whose state is in `home`.

    This is the pool's setting `homes`; or inside `home` if the pool sets that; else `BERTH_HOMES_DIR`.
    """
    configured = config.get("homes")
    if not configured and not config.get("home"):
        configured = os.environ.get("BERTH_HOMES_DIR")
    return Path(os.path.realpath(str(configured))) if configured else home / "homes"


def is_secured(homes: Path) -> bool:
    """Return whether the folder is mounted with nosuid and nodev. Raises `OSError`."""
    return os.statvfs(homes).f_flag & SECURE_FLAGS == SECURE_FLAGS


def mount_problem(homes: Path) -> str:
    """Return a problem for an operator with its fix; empty if there is none. Raises `OSError`."""
    if os.geteuid() != 0 or is_secured(homes):
        return ""
    return (
        f"{homes} could not be mounted with nosuid and nodev, so workspaces can leave set-user-ID programs "
        "of root in homes. Mount the folder with these options, or run the node worker as an ordinary user."
    )


def secure(homes: Path, lock: Path) -> None:
    """Mount the folder over itself if this is root and it is not secured. Raises `OSError` on failure."""
    if os.geteuid() != 0:
        return
    with _exclusive_lock(lock):
        if is_secured(homes):
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
    """Unmount the folder if `secure` mounted it and nothing outside sandboxes uses it.

    A separate file system mounted there stays.
    """
    if os.geteuid() != 0 or not lock.parent.is_dir():
        return
    with _exclusive_lock(lock):
        # A bind mount over itself is on the same device as its parent folder.
        if not os.path.ismount(homes) and homes.resolve() in mount_table.points():
            attach.libc.umount2(os.fsencode(homes), 0)


@contextlib.contextmanager
def _exclusive_lock(lock: Path) -> Iterator[None]:
    """Exclude other processes. The lock is outside the folder, since a descriptor inside keeps it mounted."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
