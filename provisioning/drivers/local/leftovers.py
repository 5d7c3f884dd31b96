"""Resources on this machine without an owner, and their removal. ADR 0039 and 0048 define ownership.

This module detects three kinds: egress processes of ended networks, control groups without a process, and
folders without a record, lock or process. It cannot tell whether a home has an owner, only whether it is in
use.

Automatic removals are recorded in a journal of the latest ones, for the page that shows them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from provisioning.drivers.local import cgroups, homes, processes, scratch, state
from provisioning.drivers.local.sandbox import USER_NAME
from provisioning.errors import Conflict, InvalidSpec
from provisioning.types import Leftover, LeftoverKind

JOURNAL = ".removed.json"
KEPT = 200
MAX_LISTED = 500
MEASURED_ENTRIES = 20_000
DELETING = ".deleting-"
WORKSPACE = re.compile(r"ws-[0-9a-f]{32}")
PROCESS = re.compile(r"([0-9]{1,10})-([0-9]{1,20})")
MIB = 1 << 20


def find(base: Path, homes_dir: Path, instance: str) -> tuple[Leftover, ...]:
    """Return everything without an owner, and recent removals. Raises `OSError`."""
    present = (
        *_processes(base),
        *_groups(base, instance),
        *_folders(base, instance),
        *_unfinished_deletions(homes_dir),
    )
    return (*present[:MAX_LISTED], *removed(base))


def remove(
    base: Path, homes_dir: Path, instance: str, kind: LeftoverKind, name: str, *, limit_s: float
) -> bool:
    """See `Driver.remove_leftover`; for all kinds but homes. Raises `ProvisioningError` or `OSError`."""
    match kind:
        case LeftoverKind.PROCESS:
            return _end_process(base, name)
        case LeftoverKind.CONTROL_GROUP:
            return _remove_group(base, instance, name)
        case LeftoverKind.FOLDER if WORKSPACE.fullmatch(name):
            return _remove_folder(base, instance, name)
        case LeftoverKind.FOLDER:
            return _remove_unfinished(homes_dir, name, limit_s)
    raise InvalidSpec(f"“{name}” is not a leftover of this kind. Refresh the list of leftovers.")


def note(base: Path, removals: Iterable[Leftover]) -> None:
    """Record removals for later listings; skipped on a full disk."""
    now = time.time()
    added = [_removed_at(leftover, now) for leftover in removals]
    if not added:
        return
    entries = [*removed(base), *added][-KEPT:]
    with contextlib.suppress(OSError):
        state.write_atomically(
            base / JOURNAL, json.dumps([_to_json(leftover) for leftover in entries]).encode()
        )


def removed(base: Path) -> tuple[Leftover, ...]:
    """Return recent removals, oldest first; empty if the journal is damaged."""
    try:
        return tuple(msgspec.json.decode((base / JOURNAL).read_bytes(), type=list[Leftover]))
    except (OSError, msgspec.MsgspecError):
        return ()


def from_sweep(sweep: scratch.SweepResult) -> list[Leftover]:
    """Return a sweep's removals as leftovers."""
    folders = [Leftover(LeftoverKind.FOLDER, f"{scratch.PROBES}/{path.name}") for path in sweep.folders]
    ended = [Leftover(LeftoverKind.PROCESS, f"{pid}-{ticks}") for pid, ticks in sweep.processes]
    return [*folders, *ended]


# -- processes ------------------------------------------------------------------------------------


def _processes(base: Path) -> list[Leftover]:
    return [
        Leftover(
            LeftoverKind.PROCESS,
            f"{process.pid}-{process.start_ticks}",
            f"egress proxy of {process.folder.name}",
        )
        for process in scratch.unowned_egress_processes(base)
    ]


def _end_process(base: Path, name: str) -> bool:
    match = PROCESS.fullmatch(name)
    if match is None:
        raise InvalidSpec(f"“{name}” is not a process. Refresh the list of leftovers.")
    pid, ticks = int(match[1]), int(match[2])
    if processes.start_ticks(pid) != ticks:
        return True
    if not any(
        (process.pid, process.start_ticks) == (pid, ticks)
        for process in scratch.unowned_egress_processes(base)
    ):
        raise _in_use_error(name)
    return not processes.send((pid, ticks), signal.SIGKILL)


# -- control groups -------------------------------------------------------------------------------


def _groups(base: Path, instance: str) -> list[Leftover]:
    names = [name for name in cgroups.empty_groups(instance) if WORKSPACE.fullmatch(name)]
    return [
        Leftover(LeftoverKind.CONTROL_GROUP, name) for name in names if not _is_in_use(base, instance, name)
    ]


def _remove_group(base: Path, instance: str, name: str) -> bool:
    if not WORKSPACE.fullmatch(name):
        raise InvalidSpec(f"“{name}” is not a workspace's control group. Refresh the list of leftovers.")
    workspace = state.WorkspaceDir(base, name)
    with workspace.operation():
        if _is_in_use(base, instance, name, locked=True):
            raise _in_use_error(name)
        return cgroups.remove(cgroups.groups_named(instance, name))


# -- folders --------------------------------------------------------------------------------------


def _folders(base: Path, instance: str) -> list[Leftover]:
    names = [name for name in state.names(base) if WORKSPACE.fullmatch(name)]
    return [
        Leftover(
            LeftoverKind.FOLDER, name, "runtime folder of a workspace without a record", _size(base / name)
        )
        for name in names
        if not _is_in_use(base, instance, name)
    ]


def _remove_folder(base: Path, instance: str, name: str) -> bool:
    workspace = state.WorkspaceDir(base, name)
    with workspace.operation():
        if _is_in_use(base, instance, name, locked=True):
            raise _in_use_error(name)
        workspace.remove()
    return True


def _is_in_use(base: Path, instance: str, name: str, *, locked: bool = False) -> bool:
    """Return whether the workspace has a record, a process, or an operation in progress."""
    workspace = state.WorkspaceDir(base, name)
    if not locked and workspace.operation_held():
        return True
    if workspace.record() is not None or workspace.alive():
        return True
    return bool(processes.scan(instance, name, spares=workspace.claimed()))


def _unfinished_deletions(homes_dir: Path) -> list[Leftover]:
    """Return unfinished deletions of homes."""
    leftovers = []
    for path in sorted(homes_dir.glob(f"*/{DELETING}*")):
        if path.is_dir() and not path.is_symlink() and not path.parent.is_symlink():
            name = f"{path.parent.name}/{path.name}"
            leftovers.append(Leftover(LeftoverKind.FOLDER, name, "remainder of a deleted home", _size(path)))
    return leftovers


def _remove_unfinished(homes_dir: Path, name: str, limit_s: float) -> bool:
    team, _, folder_name = name.partition("/")
    owner = folder_name.removeprefix(DELETING)
    if owner == folder_name or not USER_NAME.fullmatch(team) or not USER_NAME.fullmatch(owner):
        raise InvalidSpec(f"“{name}” is not a folder that Berth may remove. Refresh the list of leftovers.")
    return homes.delete_rest(homes_dir, team, owner, limit_s=limit_s)


def require_unused_home(base: Path, instance: str, home: str) -> None:
    """Raise `Conflict` if a workspace of this node uses the home, or may use it."""
    for name in state.names(base):
        workspace = state.WorkspaceDir(base, name)
        record = workspace.record()
        if record is None or record.home != home:
            continue
        if (
            workspace.operation_held()
            or workspace.alive()
            or processes.scan(instance, name, spares=workspace.claimed())
        ):
            raise _in_use_error(home)


def _in_use_error(name: str) -> Conflict:
    return Conflict(f"{name} is in use, so Berth keeps it.")


def _size(path: Path) -> int | None:
    """Return the size in MiB; None if there are too many entries to count quickly."""
    total = 0
    for count, size in enumerate(_sizes(path)):
        if count >= MEASURED_ENTRIES:
            return None
        total += size
    return -(-total // MIB)


def _sizes(path: Path) -> Iterator[int]:
    for folder, _, files in os.walk(path, onerror=None, followlinks=False):
        yield 0
        for file in files:
            with contextlib.suppress(OSError):
                yield Path(folder, file).lstat().st_blocks * 512


def _removed_at(leftover: Leftover, now: float) -> Leftover:
    return Leftover(leftover.kind, leftover.name, leftover.detail, leftover.size_mib, now)


def _to_json(leftover: Leftover) -> dict[str, object]:
    return dict(msgspec.to_builtins(leftover))
