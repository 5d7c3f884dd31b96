"""Programs killed for lack of memory in a running workspace: counted, named, reported once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.drivers.local import cgroups, limits, memory_kills, state
from provisioning.memory_messages import MemoryKill
from provisioning.node import memory_watch
from provisioning.types import LimitedResource, ObservedState, ResourceRequest
from tests.provisioning.local.local_support import Pool, ask

MEMORY_MIB = 128
EAT = "bytearray(b'x' * (400 << 20))"
LINE = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/berth-1/{0},task_memcg=/berth-1/{0},task={1},pid=27555,uid=200000"
)


class Watched:
    """A watch of a pool's workspaces that records reports."""

    def __init__(self, base: Path, lines: Callable[[], list[str]] = list) -> None:
        self.reports: list[MemoryKill] = []
        self.away = False
        self.watch = memory_watch.MemoryWatch(base, self._tell, lines)

    def _tell(self, kills: list[MemoryKill]) -> None:
        if self.away:
            raise ConnectionError("the broker is away")
        self.reports += kills

    def rounds(self, number: int = 1) -> list[MemoryKill]:
        """Run these rounds. Returns their reports."""
        before = len(self.reports)
        for _ in range(number):
            self.watch.round()
        return self.reports[before:]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path)
    yield made
    made.close()


@pytest.fixture
def limited(pool: Pool) -> Pool:
    if LimitedResource.MEMORY not in cgroups.detect(pool.driver.instance).holds:
        pytest.skip(limits.warning(cgroups.detect(pool.driver.instance)))
    return pool


def eat(seen) -> int:
    """Let a program exceed the memory of its workspace. Returns its exit status."""
    return ask(seen, f"__import__('subprocess').run([sys.executable, '-c', \"{EAT}\"]).returncode")


def test_killed_program_is_reported_once_with_its_name(limited):
    spec = limited.spec(resources=ResourceRequest(cpu_milli=1000, memory_mib=MEMORY_MIB))
    seen = limited.run(spec)
    watched = Watched(limited.driver.base, memory_watch.kernel_lines())
    assert watched.rounds(2) == []
    assert eat(seen) == -9
    assert limited.driver.observe(spec.ref).state is ObservedState.RUNNING
    assert watched.rounds() == [], "its app may be ending"
    (kill,) = watched.rounds()
    assert (kill.workspace_id, kill.generation, kill.count) == (spec.ref.workspace_id, 1, 1)
    assert (kill.limit_mib, kill.machine) == (MEMORY_MIB, False)
    if os.access("/dev/kmsg", os.R_OK):
        assert kill.process.startswith("python3")
    assert watched.rounds(2) == []
    # A restarted worker repeats no report and sends missed ones.
    assert Watched(limited.driver.base).rounds(2) == []
    assert eat(seen) == -9
    (again,) = Watched(limited.driver.base).rounds(2)
    assert (again.count, again.process) == (1, "")


@pytest.fixture
def fake(pool: Pool) -> Iterator[tuple[Pool, Path]]:
    """A running workspace whose cgroup v2 folder is made by the test."""
    spec = pool.spec()
    pool.run(spec)
    folder = pool.driver._dir(spec.ref)
    group = pool.home / folder.name
    group.mkdir()
    record = folder.record()
    assert record is not None
    folder.write_record(replace(record, cgroups=(str(group),)))
    count(group, 0)
    yield pool, group
    folder.write_record(record)


def count(group: Path, kills: int, oom: int = 1) -> None:
    (group / "memory.events").write_text(f"low 0\nhigh 0\nmax 9\noom {oom}\noom_kill {kills}\n")


def test_undelivered_reports_are_sent_later(fake):
    pool, group = fake
    watched = Watched(pool.driver.base)
    count(group, 1)
    watched.rounds()
    watched.away = True
    with pytest.raises(ConnectionError):
        watched.rounds()
    watched.away = False
    count(group, 3)
    (kill,) = watched.rounds()
    assert kill.count == 3


def test_memory_shortage_is_distinguished_from_a_limit(fake):
    pool, group = fake
    count(group, 1, oom=0)
    (kill,) = Watched(pool.driver.base).rounds(2)
    assert kill.machine


def test_memory_kill_of_an_ended_app_is_left_to_its_observation(fake, monkeypatch):
    pool, group = fake
    watched = Watched(pool.driver.base)
    count(group, 1)
    watched.rounds()
    monkeypatch.setattr(state.WorkspaceDir, "alive", lambda _folder: False)
    assert watched.rounds(2) == []


def test_kill_count_of_an_earlier_start_is_ignored(fake):
    pool, group = fake
    count(group, 5)
    assert len(Watched(pool.driver.base).rounds(2)) == 1
    (folder,) = [state.WorkspaceDir(pool.driver.base, name) for name in state.names(pool.driver.base)]
    record = folder.record()
    folder.write_record(replace(record, attempt="another"))
    count(group, 2)
    (kill,) = Watched(pool.driver.base).rounds(2)
    assert kill.count == 2


def test_program_names_in_the_kernel_log_cannot_be_forged(fake):
    pool, group = fake
    lines = [
        "Memory cgroup out of memory: Killed process 1 (wrong)",
        LINE.format(group.name, "first"),
        LINE.format("ws-of-another", "other"),
        LINE.format(group.name, "R,task_memcg=/berth-1/ws-of-another,pid=1"),
        "oom-kill:constraint=CONSTRAINT_NONE",
    ]
    found = memory_kills.victims(lines)
    assert found == {group.name: "R,task_memcg=/berth-1/ws-of-another,pid=1", "ws-of-another": "other"}
    count(group, 1)
    (kill,) = Watched(pool.driver.base, lambda: [LINE.format(group.name, "python3.11")]).rounds(2)
    assert kill.process == "python3.11"


def test_missing_kernel_log_gives_no_name(monkeypatch, tmp_path):
    monkeypatch.setattr(memory_watch, "KernelLog", lambda: os.open(tmp_path / "none", os.O_RDONLY))
    assert list(memory_watch.kernel_lines()()) == []


def test_damaged_count_file_is_replaced(fake):
    pool, group = fake
    (pool.driver.base / memory_watch.FILE).write_text("{]")
    count(group, 1)
    assert len(Watched(pool.driver.base).rounds(2)) == 1
    assert Watched(pool.driver.base).rounds(2) == []
