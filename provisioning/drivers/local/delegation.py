"""Subtrees of control groups, version 2, that have been given to this user.

systemd gives a unit with `Delegate=yes` its group and puts the unit's processes right into it. Limits of
groups below can be switched on only in a group that holds no process itself, so the processes have to move
into a group below first: `LEAF`. systemd 254 and later does that by itself with `DelegateSubgroup=worker`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
LEAF = "worker"
ATTEMPTS = 20
_MARKS = ("user.delegate", "trusted.delegate")


@dataclass(frozen=True, slots=True)
class Place:
    """A group below which groups can be made. `vacate`: its processes have to leave it first."""

    group: Path
    vacate: bool = False


def own_paths() -> dict[str, str]:
    """This process's group for each version 1 controller; version 2 under the empty name."""
    paths: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path
    return paths


def own_group(root: Path) -> Path:
    """The version 2 group in which this process is."""
    return root / own_paths().get("", "/").lstrip("/")


def delegated(group: Path) -> bool:
    """Whether systemd has marked the group as given away. The other processes in it are its unit's."""
    for mark in _MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(group, mark) == b"1":
                return True
    return False


def places(root: Path) -> list[Place]:
    """Where groups may be made below, the best first; none where there is no version 2.

    Best is what has been delegated; then a group above that holds no process; then our own group, which
    belongs to us and is not marked. Of a group that root has for other things too, nobody is moved away.
    """
    if not (root / "cgroup.controllers").exists():
        return []
    own = own_group(root)
    unit = own.parent if own.name == LEAF and own != root else own
    found = [Place(unit, vacate=True)] if unit != root and delegated(unit) else []
    group = unit
    while True:
        if os.access(group, os.W_OK):
            found.append(Place(group))
        if group in (root, group.parent):
            break
        group = group.parent
    if not found or found[0].group != unit or not found[0].vacate:
        with contextlib.suppress(OSError):
            if unit != root and os.geteuid() != 0 and unit.stat().st_uid == os.geteuid():
                found.append(Place(unit, vacate=True))
    return found


def vacate(group: Path) -> None:
    """Move every process of the group itself into its leaf. Raises `OSError` when some cannot be moved."""
    leaf = group / LEAF
    for _ in range(ATTEMPTS):  # what is forked meanwhile begins in the group too
        pids = (group / "cgroup.procs").read_text().split()
        if not pids:
            return
        if "0" in pids:
            raise OSError(errno.EPERM, "processes of another PID namespace are in the group", str(group))
        leaf.mkdir(exist_ok=True)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(pid)
    raise OSError(errno.EBUSY, "the group does not become empty", str(group))
