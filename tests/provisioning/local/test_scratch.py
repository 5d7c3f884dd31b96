"""Remains of killed processes (probes, egress processes, control groups) are removed, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioning.drivers.local import cgroups, isolation, network, processes, scratch
from provisioning.egress_rules import EgressPolicy
from tests.provisioning.local.local_support import Pool

PROBING = """
import signal, sys
from pathlib import Path
from provisioning.drivers.local import isolation, network
joined = network.join
def join(tools, init, folder, policy):
    joined(tools, init, folder, policy)
    print(folder, flush=True)
    signal.pause()
network.join = join
isolation.probe(Path(sys.argv[1]))
"""
"""A probe that waits with its sandbox, folder and way out there."""


def eventually(look: Callable[[], bool], limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    if isolation.probe(tmp_path / "local").network is None:
        pytest.skip(isolation.probe().warning)
    yield tmp_path / "local"
    for each in network.egress_processes_below(tmp_path):
        processes.send((each.pid, each.start_ticks), signal.SIGKILL)


def probing(base: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROBING, str(base)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    folder = process.stdout.readline().strip()
    assert folder, "the probe has ended"
    return process, Path(folder)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with process:
        pass


def test_next_probe_removes_leftovers_of_killed_ones_only(base):
    killed, left = probing(base)
    living, kept = probing(base)
    try:
        end(killed)
        assert left.is_dir()
        assert network.egress_processes(left), "what this is about: pasta outlives its probe"
        swept = scratch.sweep(base)
        assert swept.folders == (left,)
        assert len(swept.processes) == 1
        eventually(lambda: not network.egress_processes(left))
        assert not left.exists()
        assert kept.is_dir()
        assert network.egress_processes(kept)
        assert scratch.sweep(base) == scratch.SweepResult()
    finally:
        end(living)
    scratch.sweep(base)
    assert [path.name for path in (base / scratch.PROBES).iterdir()] == [scratch.LOCK]


def test_next_probe_of_a_worker_removes_leftovers(base, monkeypatch):
    killed, left = probing(base)
    end(killed)
    monkeypatch.setattr(isolation, "_known", {})
    isolation.probe(base)
    eventually(lambda: not network.egress_processes(left))
    assert not left.exists()


def test_egress_process_started_after_folder_removal_is_ended(base):
    """Its child process may be slower than the sweep of the restarted worker."""
    killed, left = probing(base)
    end(killed)
    for path in left.iterdir():
        path.unlink()
    left.rmdir()
    assert len(scratch.sweep(base).processes) == 1


def test_folders_of_another_instance_or_driver_are_kept(base, tmp_path):
    killed, left = probing(base)
    end(killed)
    assert scratch.sweep(tmp_path / "other") == scratch.SweepResult()
    assert scratch.sweep(base.with_name("loca")) == scratch.SweepResult()
    assert left.is_dir()
    assert network.egress_processes(left)


def test_egress_process_is_kept_while_the_workspace_runs_and_ended_once_killed(base, tmp_path):
    pool = Pool(tmp_path)
    try:
        spec = pool.spec()
        pool.run(spec)
        folder = pool.driver._dir(spec.ref)
        assert network.egress_processes(folder.path)
        assert scratch.sweep(pool.driver.base) == scratch.SweepResult()
        assert network.complete(folder.path, EgressPolicy())
        processes.kill(processes.scan(pool.driver.instance, spec.ref.external_name))
        eventually(lambda: not folder.alive())
        with folder.operation():  # in use by another process
            assert scratch.sweep(pool.driver.base).processes == ()
        assert len(scratch.sweep(pool.driver.base).processes) == 1
        eventually(lambda: not network.egress_processes(folder.path))
    finally:
        pool.close()


def test_sweep_does_not_follow_links(base, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("here")
    with scratch.folder(base, "test") as folder:
        (folder / "link").symlink_to(precious)
    assert (precious / "file").exists()
    planted = base / scratch.PROBES / "network-1-x"
    planted.symlink_to(precious)
    assert scratch.sweep(base) == scratch.SweepResult()
    assert (precious / "file").read_text() == "here"
    planted.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user's")
def test_folder_of_another_user_is_kept(base):
    with scratch.folder(base, "test"):
        pass
    other = base / scratch.PROBES / "network-1-x"
    other.mkdir()
    os.chown(other, 65534, 65534)
    assert scratch.sweep(base) == scratch.SweepResult()
    assert other.is_dir()


@pytest.mark.parametrize("planted", ["link", "open", "file", "foreign"])
def test_occupied_name_in_the_temporary_folder_is_not_used(tmp_path, monkeypatch, planted):
    monkeypatch.delenv("BERTH_HOME", raising=False)
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    name = tmp_path / f"berth-{os.geteuid()}"
    if planted == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        name.symlink_to(tmp_path / "theirs")
    elif planted == "open":
        name.mkdir()
        name.chmod(0o777)
    elif planted == "file":
        name.write_text("")
    elif os.geteuid() == 0:
        name.mkdir(mode=0o700)
        os.chown(name, 65534, 65534)
    else:
        pytest.skip("only root can make a folder of another user's")
    found = scratch.default_base()
    assert found != name
    assert found.stat().st_mode & 0o777 == 0o700
    assert found.stat().st_uid == os.geteuid()


def test_default_scratch_folder_is_per_user(tmp_path, monkeypatch):
    monkeypatch.delenv("BERTH_HOME", raising=False)
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    assert scratch.default_base() == scratch.default_base() == tmp_path / f"berth-{os.geteuid()}"
    monkeypatch.setenv("BERTH_HOME", str(tmp_path / "berth"))
    assert scratch.default_base() == tmp_path / "berth" / "local"


def test_control_groups_of_killed_probes_are_removed_and_others_kept(tmp_path):
    """In a folder that replaces control groups: `rmdir` is all that both support."""
    parent = tmp_path / "berth-one"
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine, space = cgroups._probe_name(), cgroups._namespace()
    pid = os.getpid()
    dead = [f"probe-{space}-{ended.pid}-1", f"probe-{space}-{pid}-1"]
    kept = [mine, f"probe-1-{ended.pid}-1"]
    for name in (*dead, *kept):
        (parent / name).mkdir(parents=True)
    cgroups._sweep(parent)
    assert {path.name for path in parent.iterdir()} == set(kept)
    for name in kept:
        (parent / name).rmdir()
    cgroups._sweep(parent)
    assert not parent.exists()


KILLED_IN_A_GROUP = """
import os, signal
from provisioning.drivers.local import cgroups
cgroups.pids = lambda groups: os.kill(os.getpid(), signal.SIGKILL)
cgroups.detect("{instance}")
"""


def groups_below(name: str) -> list[Path]:
    """Return the control groups called `name` and those below; groups of others may vanish meanwhile."""
    walked = ((Path(folder), children) for folder, children, _ in os.walk(cgroups.ROOT))
    return [
        folder / child for folder, children in walked for child in children if name in (folder.name, child)
    ]


def test_killed_probe_leaves_no_control_group(tmp_path):
    instance = f"scratch{os.getpid()}"
    if cgroups.detect(instance).version == 0:
        pytest.skip(cgroups.detect(instance).reason)
    done = subprocess.run([sys.executable, "-c", KILLED_IN_A_GROUP.format(instance=instance)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [group for group in groups_below(f"berth-{instance}") if group.name.startswith("probe-")]

    def swept() -> bool:
        cgroups.sweep_left(instance)
        return not groups_below(f"berth-{instance}")

    eventually(swept)
