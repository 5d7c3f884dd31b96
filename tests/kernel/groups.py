"""In a virtual machine: control groups v2 enforce the limits of workspaces.

`virtual.py` runs it there without v1, as root and as an ordinary user with a delegated group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.drivers.local import cgroups, limits, process_limits
from provisioning.types import Observation, ObservedState, ResourceRequest, WorkspaceSpec
from tests.instance import eventually
from tests.provisioning.local.local_support import Pool

START_S = 300
FEW = 64
FORK = """
import os, time
while True:
    try:
        if not os.fork():
            time.sleep(900)
    except OSError:
        time.sleep(0.1)
"""
EAT = "x = []\nwhile True: x.append(bytearray(b'x' * (8 << 20)))"


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", "1")
    local_pool = Pool(tmp_path, spares=0)
    yield local_pool
    local_pool.close()


def patient(spec: WorkspaceSpec) -> WorkspaceSpec:
    return replace(spec, app=replace(spec.app, start_timeout_s=START_S))


def begun(pool: Pool, spec: WorkspaceSpec, state: ObservedState) -> Observation:
    pool.start(spec)
    return pool.wait(lambda: pool.driver.observe(spec.ref), state, timeout_s=START_S)


def group_of(pool: Pool, spec: WorkspaceSpec) -> Path:
    """The control group of a starting workspace, once it has processes."""
    (above,) = cgroups.detect(pool.driver.instance).parents
    pool.start(spec)
    return eventually(
        lambda: next((child for child in above.glob("*/") if _is_its(child)), None),
        limit_s=START_S,
        what="a group with its processes",
    )


def _is_its(group: Path) -> bool:
    return not group.name.startswith(cgroups.PROBE) and bool(cgroups.pids([group]))


def number_in(file: Path, name: str) -> int:
    """A number by name, from a file with a name and a number per line."""
    return int(dict(line.split() for line in file.read_text().splitlines())[name])


def test_all_limits_are_enforced(pool: Pool) -> None:
    host = cgroups.detect(pool.driver.instance)
    assert (host.version, host.holds) == (2, frozenset(limits.REQUIRED)), host


def test_out_of_memory_is_detected_and_reported(pool: Pool) -> None:
    spec = patient(pool.spec("python3", "-c", EAT, resources=ResourceRequest(cpu_milli=1000, memory_mib=64)))
    seen = begun(pool, spec, ObservedState.FAILED)
    assert (seen.code, seen.exit_code) == ("out_of_memory", 137), seen
    assert "64 MiB" in seen.message


def test_cpu_use_above_the_limit_is_throttled(pool: Pool) -> None:
    spec = patient(pool.spec("python3", "-c", "while True: pass", resources=ResourceRequest(100, 128)))
    group = group_of(pool, spec)
    assert (group / "cpu.max").read_text().split() == ["10000", "100000"]
    eventually(
        lambda: number_in(group / "cpu.stat", "nr_throttled") > 5, limit_s=START_S, what="it had to wait"
    )


def test_fork_bomb_is_stopped(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_limits, "workspace_limit", lambda _cpu_milli: FEW)
    group = group_of(pool, patient(pool.spec("python3", "-c", FORK, resources=ResourceRequest(1000, 512))))
    eventually(lambda: number_in(group / "pids.events", "max") > 0, limit_s=START_S, what="it was stopped")
    assert len(cgroups.pids([group])) <= FEW
