"""Programs see the cores of their workspace, not those of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.drivers.local import cgroups, cpu_count
from provisioning.types import AppSpec, LimitedResource, ResourceRequest
from tests.provisioning.local.local_support import PROBE, Pool, ask

BWRAP = "no sandbox here"


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path)
    yield made
    made.close()


def sized(pool: Pool, cpu_milli: int, **env: str):
    app = AppSpec(argv=("python3", "-c", PROBE, "{port}"), env=env, start_timeout_s=20, stop_timeout_s=2)
    return pool.spec(app=app, resources=ResourceRequest(cpu_milli=cpu_milli, memory_mib=256))


@pytest.mark.parametrize(("cpu_milli", "cores"), [(100, 1), (1000, 1), (1001, 2), (7500, 8), (500_000, 128)])
def test_fractional_cores_are_rounded_up_within_the_machine(monkeypatch, cpu_milli, cores):
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert cpu_count.cores_of(cpu_milli) == cores


def test_online_cpu_file_has_the_format_of_the_c_library(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    inode = None
    for cpu_milli, expected in ((2000, "0-1\n"), (16_000, "0-15\n"), (500, "0\n")):
        cpu_count.write(tmp_path, cpu_milli)
        file = tmp_path / cpu_count.FILE
        assert file.read_text() == expected
        assert inode in (None, file.stat().st_ino), "a sandbox mounts this very file"
        inode = file.stat().st_ino


def test_thread_variables_match_the_cores_unless_the_template_sets_them(pool):
    seen = pool.run(sized(pool, 500, OMP_NUM_THREADS="7"))
    found = ask(seen, "dict(os.environ)")
    expected = dict.fromkeys(cpu_count.VARIABLES, "1") | {"OMP_NUM_THREADS": "7"}
    assert {name: found.get(name) for name in cpu_count.VARIABLES} == expected


def test_program_sees_the_cores_of_its_workspace(pool):
    sandbox, _ = pool.driver._isolation()
    if not sandbox.bwrap:
        pytest.skip(BWRAP)
    seen = pool.run(sized(pool, 1000))
    assert ask(seen, "os.cpu_count()") == 1
    assert ask(seen, "open('/sys/devices/system/cpu/online').read()") == "0\n"
    assert ask(seen, "open('/sys/devices/system/cpu/online', 'w')") in ("OSError", "PermissionError")


def test_runtime_reads_the_cgroup_limits_of_its_workspace(pool):
    sandbox, _ = pool.driver._isolation()
    host = cgroups.detect(pool.driver.instance)
    if not sandbox.bwrap or LimitedResource.CPU not in host.holds:
        pytest.skip(BWRAP)
    seen = pool.run(sized(pool, 500))
    file = "cpu.max" if host.version == 2 else "cpu/cpu.cfs_quota_us"
    assert ask(seen, f"open('/sys/fs/cgroup/{file}').read().split()[0]") == "50000"
    memory = "memory.max" if host.version == 2 else "memory/memory.limit_in_bytes"
    assert ask(seen, f"int(open('/sys/fs/cgroup/{memory}').read())") == 256 << 20
    assert ask(seen, f"open('/sys/fs/cgroup/{memory}', 'w')") in ("OSError", "PermissionError")
    assert ask(seen, f"os.mkdir(os.path.dirname('/sys/fs/cgroup/{memory}') + '/more')") in (
        "OSError",
        "PermissionError",
    )
