"""Control groups of version 2 that an ordinary user was given: on this kernel, with a free controller.

Where all controllers that limit workspaces are bound to version 1, another one (`hugetlb`) takes their place:
the rules about who may move what, and where limits may be switched on, are the same for each.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioning.drivers.local import cgroups, delegation
from provisioning.types import LimitedResource

SOMEBODY = 64_123
ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
FILES = {"memory": "memory.max", "hugetlb": "hugetlb.2MB.max"}


@pytest.fixture
def unit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty group owned by `SOMEBODY`, like a systemd service with `Delegate=yes`."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a group away")
    root = next((each for each in ROOTS if (each / "cgroup.controllers").exists()), None)
    if root is None:
        pytest.skip("no control groups of version 2 here")
    with Path(tempfile.gettempdir(), f"berth-test-controller-{os.getuid()}").open("w") as turn:
        # The controller is enabled for the whole machine, so only one test in any process uses it at a time.
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield from _unit(root, monkeypatch)


def _unit(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    free = [name for name in FILES if name in (root / "cgroup.controllers").read_text().split()]
    control = root / "cgroup.subtree_control"
    if not free or not os.access(control, os.W_OK):
        pytest.skip("no controller of version 2 is free here")
    was_on = free[0] in control.read_text().split()
    control.write_text(f"+{free[0]}")
    group = root / f"berth-test-{uuid.uuid4().hex}"
    group.mkdir()
    for path in (group, group / "cgroup.procs", group / "cgroup.subtree_control"):
        os.chown(path, SOMEBODY, SOMEBODY)
    monkeypatch.setattr(cgroups, "V2_CONTROLLERS", tuple(free[:1]))
    monkeypatch.setattr(cgroups, "LIMIT_FILES", dict.fromkeys(LimitedResource, (FILES[free[0]],)))
    yield group
    for pid in cgroups.pids([group]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for _ in range(200):
        if cgroups.remove([group]):
            break
        signal.sigtimedwait([], 0.02)
    if not was_on:
        with contextlib.suppress(OSError):  # another test uses it
            control.write_text(f"-{free[0]}")


def inside(unit: Path, what: Callable[[], Any], *, in_group: Path | None = None, user: int = SOMEBODY) -> Any:
    """Run `what` in a process of `user` in the unit. Returns its result from JSON."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            (in_group or unit).joinpath("cgroup.procs").write_text(str(os.getpid()))
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            os.chdir("/")
            answer = what()
        except BaseException as error:
            answer = repr(error)
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def found(unit: Path) -> list[Any]:
    host = cgroups.detect("of-a-test", unit.parent)
    own = delegation.own_group(unit.parent)
    return [host.version, [str(path) for path in host.parents], str(own), sorted(host.holds)]


@pytest.mark.parametrize("marked", [True, False])
def test_worker_moves_to_a_leaf_group(unit, marked):
    if marked:
        os.setxattr(unit, "user.delegate", b"1")
    version, parents, own, holds = inside(unit, lambda: found(unit))
    assert version == 2
    assert parents == [f"{unit}/berth-of-a-test"]
    assert own == f"{unit}/{delegation.LEAF}"
    assert set(holds) == set(LimitedResource)


def test_children_of_the_worker_move_with_it(unit):
    def forks() -> Any:
        with subprocess.Popen(["sleep", "60"]) as child:
            delegation.vacate(unit)
            where = Path(f"/proc/{child.pid}/cgroup").read_text().splitlines()[-1]
            child.kill()
        return where

    assert inside(unit, forks).endswith(f"{unit.name}/{delegation.LEAF}")


def test_restarted_worker_uses_the_same_groups(unit):
    os.setxattr(unit, "user.delegate", b"1")
    first = inside(unit, lambda: found(unit))
    assert inside(unit, lambda: found(unit), in_group=unit / delegation.LEAF) == first
    groups = [str(path) for path in unit.rglob("*") if path.is_dir()]
    assert groups == [f"{unit}/{delegation.LEAF}"], "no leaf within the leaf"


def test_no_parent_groups_without_delegation(unit):
    for path in (unit, unit / "cgroup.procs", unit / "cgroup.subtree_control"):
        os.chown(path, 0, 0)
    assert inside(unit, lambda: delegation.parent_groups(unit.parent)) == []
    version, parents, own, holds = inside(unit, lambda: found(unit))
    assert (version, parents, holds) == (0, [], [])
    assert own == str(unit)


def test_a_process_enters_a_group_with_limits(unit):
    os.setxattr(unit, "user.delegate", b"1")

    def enter_and_leave() -> Any:
        host = cgroups.detect("of-a-test", unit.parent)
        (group,) = cgroups.create(host, "ws-test", cpu_milli=1000, memory_mib=64)
        with subprocess.Popen(["sleep", "60"]) as child:
            (group / "cgroup.procs").write_text(str(child.pid))
            inside_now = child.pid in cgroups.pids([group])
            child.kill()
        return [inside_now, cgroups.remove([group])]

    assert inside(unit, enter_and_leave) == [True, True]


def test_processes_of_root_are_never_moved_away(unit):
    groups = inside(
        unit,
        lambda: [[str(group.group), group.vacate] for group in delegation.parent_groups(unit.parent)],
        user=0,
    )
    assert [str(unit), False] in groups
    assert not any(vacate for _, vacate in groups)
