"""In a virtual machine: foreign processes use all memory or all process IDs.

`virtual.py` runs it there as root, with a real node driver and real workspaces. A process with the size and
OOM score of a service stands for the portal's, so the kernel chooses among realistic processes.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from provisioning.agent.apps.app_host import APP_OOM_SCORE
from provisioning.drivers.local import processes
from provisioning.errors import StartFailed
from provisioning.types import Observation, ObservedState, WorkspaceSpec
from tests.instance import eventually
from tests.provisioning.local.local_support import Pool, ask

LIMIT_S = 300.0
PIECE_MIB, WORK_MIB, SERVICE_MIB = 40, 100, 220
"""Memory that foreign processes take at a time, that of a workspace, and that of the largest service."""
GENERATIONS = Path("/sys/kernel/mm/lru_gen")
WORKING_SET_MS = 2000
"""Minimum time for which the kernel keeps the working set in memory (`min_ttl_ms`).

If it cannot, it ends a process. Without this setting it first reads programs again and again, for many
minutes on an emulated machine.
"""
SCORE = Path("/proc/self/oom_score_adj")
TAKES = "x = bytearray(b'x' * ({} << 20)); print(len(x), flush=True); __import__('signal').pause()"
# Prints the number of processes once no more can start, then takes every process ID that becomes free.
FORKS = """
import os, signal, time
number, said = 0, False
while True:
    try:
        if not os.fork():
            signal.pause()
        number += 1
    except OSError:
        if not said:
            print(number, flush=True)
        said = True
        time.sleep(0.02)
"""


@dataclass(frozen=True, slots=True)
class Victim:
    """A process killed by the kernel for lack of memory, with its score."""

    pid: int
    score: int


@dataclass
class ForeignProcesses:
    """Processes outside workspaces, with the default score."""

    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, program: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: SCORE.write_text("0"),
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.started:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self.started.clear()


def first_line(process: subprocess.Popen[str]) -> str:
    """The first line; empty if the process was ended before."""
    assert process.stdout is not None
    return process.stdout.readline()


def killed() -> list[Victim]:
    """The processes that the kernel killed for lack of memory, in order."""
    log = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    kills = re.findall(r"Out of memory: Killed process (\d+) .*oom_score_adj:(-?\d+)", log)
    return [Victim(int(pid), int(score)) for pid, score in kills]


@pytest.fixture(autouse=True)
def onlooker() -> Iterator[None]:
    """Protects the test process from being killed."""
    own = SCORE.read_text()
    SCORE.write_text("-1000")
    # Keep the kernel's report of each killed process short, so that its log retains all of them.
    Path("/proc/sys/vm/oom_dump_tasks").write_text("0")
    (GENERATIONS / "enabled").write_text("y")
    (GENERATIONS / "min_ttl_ms").write_text(str(WORKING_SET_MS))
    yield
    SCORE.write_text(own)


@pytest.fixture
def strangers() -> Iterator[ForeignProcesses]:
    foreign = ForeignProcesses()
    yield foreign
    foreign.end()


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", "1")
    local_pool = Pool(tmp_path, spares=0)
    yield local_pool
    local_pool.close()


def begun(pool: Pool) -> tuple[WorkspaceSpec, Observation]:
    spec = pool.spec()
    spec = replace(spec, app=replace(spec.app, start_timeout_s=300))
    pool.start(spec)
    return spec, running(pool, spec)


def running(pool: Pool, spec: WorkspaceSpec) -> Observation:
    return pool.wait(lambda: pool.driver.observe(spec.ref), ObservedState.RUNNING, timeout_s=LIMIT_S)


def app_of(pool: Pool, spec: WorkspaceSpec) -> int:
    """The only process of a workspace with an app's score."""
    apps = []
    for process in processes.scan(pool.driver.instance, pool.driver._dir(spec.ref).name):
        with contextlib.suppress(OSError):
            if int(Path(f"/proc/{process.pid}/oom_score_adj").read_text()) == APP_OOM_SCORE:
                apps.append(process.pid)
    assert len(apps) == 1, apps
    return apps[0]


def restarted(pool: Pool, spec: WorkspaceSpec) -> Observation:
    ended = (ObservedState.STOPPED, ObservedState.ABSENT)
    pool.wait(lambda: pool.driver.ensure_stopped(spec.ref), *ended, timeout_s=LIMIT_S)
    next_spec = replace(spec, ref=replace(spec.ref, generation=spec.ref.generation + 1))
    pool.start(next_spec)
    return running(pool, next_spec)


def test_all_memory_in_use(pool: Pool, strangers: ForeignProcesses) -> None:
    specs = []
    for _ in range(2):
        spec, seen = begun(pool)
        specs.append(spec)
        ask(seen, f"setattr(os, 'work', bytearray(b'x' * ({WORK_MIB} << 20)))", timeout_s=LIMIT_S)
    apps = {spec.ref: app_of(pool, spec) for spec in specs}
    home = pool.home / "homes" / "analysts" / "ada"
    (home / "work").write_text("kept")
    service = strangers.start(TAKES.format(SERVICE_MIB))
    assert first_line(service) and killed() == []

    # In small steps until the kernel kills one app, and no service.
    while not killed():
        first_line(strangers.start(TAKES.format(PIECE_MIB)))
    first = killed()
    assert [victim.score for victim in first] == [APP_OOM_SCORE] and first[0].pid in apps.values(), first
    ended, surviving = sorted(specs, key=lambda spec: apps[spec.ref] != first[0].pid)
    seen = pool.wait(lambda: pool.driver.observe(ended.ref), ObservedState.FAILED, timeout_s=LIMIT_S)
    assert (seen.code, seen.exit_code) == ("machine_out_of_memory", 137), seen
    assert pool.driver.observe(surviving.ref).state is ObservedState.RUNNING

    # Far beyond the total: the other app is killed before the service.
    for _ in range(60):
        strangers.start(TAKES.format(PIECE_MIB))
    eventually(lambda: service.poll() is not None, limit_s=LIMIT_S, what="the service was ended")
    order = [victim.pid for victim in killed()]
    assert set(apps.values()) <= set(order[: order.index(service.pid)]), (apps, service.pid, killed())
    strangers.end()

    seen = pool.wait(lambda: pool.driver.observe(surviving.ref), ObservedState.FAILED, timeout_s=LIMIT_S)
    assert seen.code == "machine_out_of_memory", seen
    assert (home / "work").read_text() == "kept"
    for spec in specs:
        restarted_spec = restarted(pool, spec)
        assert ask(restarted_spec, "open(os.environ['HOME'] + '/work').read()", timeout_s=LIMIT_S) == "kept"


def test_all_process_ids_in_use(pool: Pool, strangers: ForeignProcesses) -> None:
    runs, goes = begun(pool), begun(pool)
    threads_max = Path("/proc/sys/kernel/threads-max")
    before = threads_max.read_text()
    running_threads = sum(1 for _ in Path("/proc").glob("[0-9]*/task/*"))
    threads_max.write_text(str(running_threads + 50))
    waits = pool.spec()
    waits = replace(waits, app=replace(waits.app, start_timeout_s=300))
    try:
        assert int(first_line(strangers.start(FORKS))) > 0
        with pytest.raises(StartFailed, match="process limit"):
            pool.start(waits)
        pool.wait(lambda: pool.driver.ensure_stopped(goes[0].ref), ObservedState.STOPPED, timeout_s=LIMIT_S)
        assert pool.driver.observe(runs[0].ref).state is ObservedState.RUNNING
    finally:
        strangers.end()
        threads_max.write_text(before)
    pool.start(waits)
    running(pool, waits)
    assert ask(runs[1], "1 + 1", timeout_s=LIMIT_S) == 2
