"""Delegated subtrees of control groups, version 2.

systemd gives a unit with `Delegate=yes` its own group and places the unit's processes directly in it.
Controllers for child groups can be enabled only in a group without processes, so they must first move into a
child group: `LEAF`. systemd 254 and later does this itself with `DelegateSubgroup=worker`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
LEAF = "worker"
MAX_ATTEMPTS = 20
_MARKS = ("user.delegate", "trusted.delegate")


@dataclass(frozen=True, slots=True)
class ParentGroup:
    """A group that can be a parent of groups. `vacate`: its processes must leave it first."""

    group: Path
    vacate: bool = False


def own_paths() -> dict[str, str]:
    """Return this process's group for each version 1 controller; version 2 under the empty name."""
    paths: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path
    return paths


def own_group(root: Path) -> Path:
    """Return the version 2 group of this process."""
    return root / own_paths().get("", "/").lstrip("/")


def delegated(group: Path) -> bool:
    """Return whether systemd marked the group as delegated. Its processes then all belong to the unit."""
    for mark in _MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(group, mark) == b"1":
                return True
    return False


def parent_groups(root: Path) -> list[ParentGroup]:
    """Return possible parents of groups, best first; empty without version 2.

    Best is a delegated group, then an ancestor without processes, then this process's own unmarked group.
    Processes are never moved out of a group that root shares with other services.
    """
    if not (root / "cgroup.controllers").exists():
        return []
    own = own_group(root)
    unit = own.parent if own.name == LEAF and own != root else own
    parents = [ParentGroup(unit, vacate=True)] if unit != root and delegated(unit) else []
    group = unit
    while True:
        if os.access(group, os.W_OK):
            parents.append(ParentGroup(group))
        if group in (root, group.parent):
            break
        group = group.parent
    if not parents or parents[0].group != unit or not parents[0].vacate:
        with contextlib.suppress(OSError):
            if unit != root and os.geteuid() != 0 and unit.stat().st_uid == os.geteuid():
                parents.append(ParentGroup(unit, vacate=True))
    return parents


def vacate(group: Path) -> None:
    """Move every process of the group itself into its leaf. Raises `OSError` if some cannot be moved."""
    leaf = group / LEAF
    for _ in range(MAX_ATTEMPTS):  # processes forked meanwhile start in the group too
        pids = (group / "cgroup.procs").read_text().split()
        if not pids:
            return
        if "0" in pids:
            raise OSError(errno.EPERM, "processes of another PID namespace are in the group", str(group))
        leaf.mkdir(exist_ok=True)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(pid)
    raise OSError(errno.EBUSY, "the group still has processes", str(group))
