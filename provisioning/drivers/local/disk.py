"""Disk space for homes: free space, and the reserve for running workspaces."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from provisioning.errors import InvalidSpec, NoCapacity
from provisioning.types import HOME_LIMIT, JsonScalar

DEFAULT_RESERVE_MIB = 1024
HOME_LIMIT_VARIABLE = "BERTH_HOME_LIMIT_MIB"


def reserve_mib() -> int:
    """Return `BERTH_DISK_RESERVE_MIB`. Raises `InvalidSpec` if it is not a number."""
    text = os.environ.get("BERTH_DISK_RESERVE_MIB") or str(DEFAULT_RESERVE_MIB)
    if not (text.isascii() and text.isdecimal()):
        raise InvalidSpec(
            f"BERTH_DISK_RESERVE_MIB is “{text}”, which is not a number. Set a size in MiB, or 0 for none."
        )
    return int(text)


def home_limit_mib(config: Mapping[str, JsonScalar]) -> int:
    """Return the limit per home, which the portal sends with every command; 0 means no limit.

    Without a command, it is this process's `BERTH_HOME_LIMIT_MIB`. Raises `InvalidSpec` if that is not a
    number.
    """
    configured = config.get(HOME_LIMIT)
    text = str(os.environ.get(HOME_LIMIT_VARIABLE) or 0 if configured is None else configured)
    if not (text.isascii() and text.isdecimal()):
        raise InvalidSpec(
            f"{HOME_LIMIT_VARIABLE} is “{text}”, which is not a number. Set a size in MiB, or 0."
        )
    return int(text)


def free_mib(homes: Path) -> int:
    """Return the free space of the disk for homes. Raises `OSError`."""
    return shutil.disk_usage(next(path for path in (homes, *homes.parents) if path.exists())).free >> 20


def available_mib(homes: Path) -> int:
    """Return the free space beyond the reserve. Raises `OSError`."""
    return max(0, free_mib(homes) - reserve_mib())


def warning(homes: Path) -> str:
    """Return a problem for an operator with its fix; empty if there is enough space. Raises `OSError`."""
    free, reserve = free_mib(homes), reserve_mib()
    if free >= reserve:
        return ""
    return (
        f"The disk of {homes} has {free} MiB free, less than its reserve of {reserve} MiB, so no workspace "
        "starts here. Free disk space, or lower BERTH_DISK_RESERVE_MIB."
    )


def require_room(homes: Path) -> None:
    """Raise `NoCapacity` if a start would use the reserve. Raises `OSError`."""
    if problem := warning(homes):
        raise NoCapacity(
            "The disk for homes on this node is nearly full, so the workspace waits. Delete unneeded files "
            "in running workspaces, or ask an operator.",
            detail=problem,
        )
