"""In a machine of its own kernel: control groups of version 2 hold workspaces to what they were given.

`virtual.py` runs it there, as root, where version 1 is not mounted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.drivers.local import cgroups, limits
from provisioning.types import Observation, ObservedState, ResourceRequest, WorkspaceSpec
from tests.provisioning.local.local_support import Pool, ask

START_S = 300
EAT = "x = []\nwhile True: x.append(bytearray(b'x' * (8 << 20)))"
BURN = "__import__('time').sleep(0) or sum(range(3_000_000)) > 0"


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", "1")
    made = Pool(tmp_path, spares=0)
    yield made
    made.close()


def patient(spec: WorkspaceSpec) -> WorkspaceSpec:
    return replace(spec, app=replace(spec.app, start_timeout_s=START_S))


def begun(pool: Pool, spec: WorkspaceSpec, state: ObservedState) -> Observation:
    pool.start(spec)
    return pool.wait(lambda: pool.driver.observe(spec.ref), state, timeout_s=START_S)


def groups_of(pool: Pool, spec: WorkspaceSpec) -> tuple[Path, ...]:
    return cgroups.paths(cgroups.detect(pool.driver.instance), spec.ref.external_name)


def test_all_limits_hold(pool: Pool) -> None:
    host = cgroups.detect(pool.driver.instance)
    assert (host.version, host.holds) == (2, frozenset(limits.REQUIRED)), host


def test_out_of_memory_is_seen_and_named(pool: Pool) -> None:
    spec = patient(pool.spec("python3", "-c", EAT, resources=ResourceRequest(cpu_milli=1000, memory_mib=64)))
    seen = begun(pool, spec, ObservedState.FAILED)
    assert (seen.code, seen.exit_code) == ("out_of_memory", 137), seen
    assert "64 MiB" in seen.message


def test_processes_and_processor_are_held(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "PIDS_MAX", 60)
    spec = patient(pool.spec(resources=ResourceRequest(cpu_milli=500, memory_mib=256)))
    seen = begun(pool, spec, ObservedState.RUNNING)
    assert ask(seen, BURN) is True
    (group,) = groups_of(pool, spec)
    used = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    assert (group / "cpu.max").read_text().split() == ["50000", "100000"]
    assert int(used["nr_throttled"]) > 0, used
    forks = "[__import__('subprocess').Popen(['sleep', '60']) for _ in range(100)]"
    assert ask(seen, forks) == "BlockingIOError"
    assert len(cgroups.pids((group,))) <= 60
