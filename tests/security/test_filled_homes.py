"""Attack: a member fills the disk of the home folders, here a small file system."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.errors import InvalidSpec, NoCapacity
from provisioning.types import NodePlacement, ObservedState, Placement
from tests.provisioning.local.local_support import Pool, ask

SIZE_MIB, RESERVE_MIB = 64, 24


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """A pool whose homes have their own file system of 64 MiB, 24 of them reserved."""
    homes = tmp_path / "elsewhere"
    homes.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(homes)],
        capture_output=True, timeout=20, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", str(RESERVE_MIB))
    made = Pool(tmp_path, homes=str(homes))
    yield made
    made.close()
    subprocess.run(["umount", str(homes)], timeout=20, check=True)


def fill(mib: int) -> str:
    """Return an expression that writes that much into the home."""
    return (
        f"(lambda file: [os.write(file, bytes(1 << 20)) for _ in range({mib})] and 'written')"
        "(os.open(os.environ['HOME'] + '/filler', os.O_WRONLY | os.O_CREAT))"
    )


def test_full_disk_does_not_prevent_stops(pool):
    spec = pool.spec()
    seen = pool.run(spec)
    assert ask(seen, fill(48)) == "written"
    (node,) = pool.driver.inventory().nodes
    assert node.disk_mib == 0
    assert any("BERTH_DISK_RESERVE_MIB" in text for text in node.warnings)
    neighbour = pool.spec(owner="bob")
    with pytest.raises(NoCapacity) as caught:
        pool.start(neighbour)
    # It is requeued, and leaves no files.
    assert caught.value.code == "no_capacity" and caught.value.retryable
    assert not (pool.home / "local" / neighbour.ref.external_name).exists()
    # Running workspaces continue, and can be stopped.
    assert ask(seen, "1 + 1") == 2
    assert pool.driver.ensure_started(spec, placement(pool)).state is ObservedState.RUNNING
    os.truncate(pool.driver.homes / "analysts" / "ada" / "filler", 0)  # it is still open
    assert ask(pool.run(neighbour), "1 + 1") == 2


def placement(pool: Pool) -> Placement:
    return Placement((NodePlacement(pool.driver.node_name),))


def test_full_home_disk_does_not_affect_the_state_folder(pool):
    spec = pool.spec()
    seen = pool.run(spec)
    assert ask(seen, fill(SIZE_MIB + 8)) == "OSError"
    assert os.statvfs(pool.driver.homes).f_bavail == 0
    pool.wait(lambda: pool.driver.ensure_stopped(spec.ref), ObservedState.STOPPED)
    assert pool.pids(spec.ref) == []


def test_invalid_disk_reserve_names_the_setting(pool, monkeypatch):
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", "much")
    with pytest.raises(InvalidSpec, match="BERTH_DISK_RESERVE_MIB"):
        pool.start(pool.spec())
