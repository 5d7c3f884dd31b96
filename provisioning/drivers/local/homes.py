"""Delete a home folder permanently, in short calls regardless of its size.

The home is first renamed into `<homes>/<team>/.deleting-<owner>/`, so that its path is free at once. Then its
content is deleted. A call that is interrupted by its time limit or a kill leaves a folder that the next call
continues with. Nested folders are moved up beside the home instead of descended into. So depth and path
length do not matter, and only two folders are open at a time.

All names are relative to an open folder, and no link is followed: only the link itself is deleted. A home
that is a link or contains a mount is left to its administrator.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from provisioning.drivers.local import mount_table
from provisioning.drivers.local.failures import HomeProtected

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def delete_rest(homes: Path, team: str, owner: str, *, limit_s: float) -> bool:
    """Continue an interrupted deletion, without touching a new home of the same name.

    Otherwise like `delete`.
    """
    return _delete(homes, team, owner, limit_s, rest_only=True)


def delete(homes: Path, team: str, owner: str, *, limit_s: float) -> bool:
    """Delete the home; return False after about `limit_s` seconds if more is left.

    The caller has checked that both names are valid folder names and that nothing uses the home. Idempotent.
    Raises `HomeProtected` for links and mounts, and `OSError`.
    """
    return _delete(homes, team, owner, limit_s, rest_only=False)


def _delete(homes: Path, team: str, owner: str, limit_s: float, *, rest_only: bool) -> bool:
    until = time.monotonic() + limit_s
    trash_name = f".deleting-{owner}"  # no owner's name begins with a dot
    try:
        place = os.open(homes / team, _OPEN_FOLDER)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise _protected_error(homes / team, "is not a folder") from error
    with _closing_descriptor(place):
        path = Path(os.path.realpath(homes / team))
        _require_nothing_mounted(path / owner, path / trash_name)
        if rest_only:
            if not _exists(place, trash_name):
                return True
        elif not _move_to_trash(place, owner, trash_name, path):
            return True
        with _folder(trash_name, place) as trash:
            while True:
                names = _next_names(trash)
                if not names:
                    break
                for name in names:
                    if not _split_name(trash, name, until) or time.monotonic() >= until:
                        return _remove_if_empty(place, trash_name)
        return _remove_if_empty(place, trash_name)


def _move_to_trash(place: int, owner: str, trash_name: str, path: Path) -> bool:
    """Move the home away; return False if neither it nor an earlier remainder exists."""
    try:
        info = os.stat(owner, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return _exists(place, trash_name)
    if not stat.S_ISDIR(info.st_mode):
        raise _protected_error(path / owner, "is not a folder")
    with contextlib.suppress(FileExistsError):
        os.mkdir(trash_name, 0o700, dir_fd=place)
    restore_access(place, owner)
    with _folder(trash_name, place) as trash, contextlib.suppress(FileNotFoundError):
        os.rename(owner, secrets.token_hex(8), src_dir_fd=place, dst_dir_fd=trash)
    os.fsync(place)
    return True


def _split_name(trash: int, name: str, until: float) -> bool:
    """Delete one entry of the folder `trash`, moving its subfolders up; return False on timeout."""
    if not _is_folder(trash, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=trash)
        return True
    restore_access(trash, name)
    with contextlib.suppress(FileNotFoundError):
        with _folder(name, trash) as folder:
            while True:
                entries = _next_names(folder)
                if not entries:
                    break
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        if _is_folder(folder, entry):
                            restore_access(folder, entry)
                            os.rename(entry, secrets.token_hex(8), src_dir_fd=folder, dst_dir_fd=trash)
                        else:
                            os.unlink(entry, dir_fd=folder)
                    if time.monotonic() >= until:
                        return False
        os.rmdir(name, dir_fd=trash)
    return True


def _next_names(folder: int, at_most: int = 1000) -> list[str]:
    """Return some names in an open folder; empty if the folder is empty."""
    with os.scandir(folder) as entries:
        return [entry.name for entry, _ in zip(entries, range(at_most), strict=False)]


def _is_folder(place: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def restore_access(place: int, name: str) -> None:
    """Restore the owner's permissions on a folder. Never follows links."""
    try:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    except FileNotFoundError:
        return
    with _closing_descriptor(descriptor):
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
            # Descriptors from `O_PATH` cannot be changed; their name in /proc leads to exactly this folder.
            with contextlib.suppress(PermissionError):
                Path(f"/proc/self/fd/{descriptor}").chmod(0o700)


def _remove_if_empty(place: int, trash_name: str) -> bool:
    """Remove the folder of moved homes if it is empty; return whether it is gone."""
    try:
        os.rmdir(trash_name, dir_fd=place)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _exists(place: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _require_nothing_mounted(*paths: Path) -> None:
    """Raise `HomeProtected` if a file system or a foreign folder is mounted at or in a path."""
    for point in mount_table.points():
        if any(point.is_relative_to(path) for path in paths):
            raise _protected_error(point, "is a mount point")


def _protected_error(path: Path, why: str) -> HomeProtected:
    return HomeProtected(
        f"{path} {why}, so Berth deletes nothing in it. Unmount or remove {path.name} on the node first."
    )


@contextlib.contextmanager
def _folder(name: str, place: int) -> Iterator[int]:
    """Open a folder below an open one and close it afterwards. Raises `OSError`, also for links."""
    descriptor = os.open(name, _OPEN_FOLDER, dir_fd=place)
    with _closing_descriptor(descriptor):
        yield descriptor


@contextlib.contextmanager
def _closing_descriptor(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)
