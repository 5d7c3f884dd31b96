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
from tests.provisioning.local.local_support import Pool

START_S = 300
EAT = "x = []\nwhile True: x.append(bytearray(b'x' * (8 << 20)))"


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


def test_all_limits_hold(pool: Pool) -> None:
    host = cgroups.detect(pool.driver.instance)
    assert (host.version, host.holds) == (2, frozenset(limits.REQUIRED)), host


def test_out_of_memory_is_seen_and_named(pool: Pool) -> None:
    spec = patient(pool.spec("python3", "-c", EAT, resources=ResourceRequest(cpu_milli=1000, memory_mib=64)))
    seen = begun(pool, spec, ObservedState.FAILED)
    assert (seen.code, seen.exit_code) == ("out_of_memory", 137), seen
    assert "64 MiB" in seen.message
