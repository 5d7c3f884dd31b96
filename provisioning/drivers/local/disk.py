"""The disk of the homes: what is free there, and what is kept free for workspaces that run already."""

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
    """`BERTH_DISK_RESERVE_MIB`. Raises `InvalidSpec` where it is no number."""
    text = os.environ.get("BERTH_DISK_RESERVE_MIB") or str(DEFAULT_RESERVE_MIB)
    if not (text.isascii() and text.isdecimal()):
        raise InvalidSpec(
            f"BERTH_DISK_RESERVE_MIB is “{text}”, which is no number. Give it in MiB, 0 for none."
        )
    return int(text)


def home_limit_mib(config: Mapping[str, JsonScalar]) -> int:
    """How much a home may hold, as the portal says with every command; 0 for any amount.

    Where nobody asks, it is `BERTH_HOME_LIMIT_MIB` of this process. Raises `InvalidSpec` for no number.
    """
    said = config.get(HOME_LIMIT)
    text = str(os.environ.get(HOME_LIMIT_VARIABLE) or 0 if said is None else said)
    if not (text.isascii() and text.isdecimal()):
        raise InvalidSpec(
            f"{HOME_LIMIT_VARIABLE} is “{text}”, which is no number. Give it in MiB, 0 for any amount."
        )
    return int(text)


def free_mib(homes: Path) -> int:
    """What is free where the homes are, or will be. Raises `OSError`."""
    return shutil.disk_usage(next(path for path in (homes, *homes.parents) if path.exists())).free >> 20


def available_mib(homes: Path) -> int:
    """What may be given out. Raises `OSError`."""
    return max(0, free_mib(homes) - reserve_mib())


def warning(homes: Path) -> str:
    """What an operator should know and do; empty while there is room. Raises `OSError`."""
    free, reserve = free_mib(homes), reserve_mib()
    if free >= reserve:
        return ""
    return (
        f"The disk that holds {homes} has {free} MiB free, less than the {reserve} MiB that are kept: no "
        "workspace is started here. Free space there, or lower BERTH_DISK_RESERVE_MIB."
    )


def require_room(homes: Path) -> None:
    """Raise `NoCapacity` where a start would take what is kept. Raises `OSError`."""
    if complaint := warning(homes):
        raise NoCapacity(
            "The disk of the home folders on this node is nearly full. The workspace starts when there is "
            "room again: delete what you no longer need in others that run, or ask your operator.",
            detail=complaint,
        )
