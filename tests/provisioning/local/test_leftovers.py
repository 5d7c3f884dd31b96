"""Leftovers on a machine as found by the local driver; nothing in use is touched."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.drivers.local import cgroups, homes, leftovers, processes, scratch
from provisioning.errors import Conflict, InvalidSpec
from provisioning.types import Leftover, LeftoverKind, ObservedState
from tests.provisioning.local.local_support import Pool

FOLDER, GROUP, HOME = LeftoverKind.FOLDER, LeftoverKind.CONTROL_GROUP, LeftoverKind.HOME


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path)
    yield made
    made.close()


def listed_leftovers(pool: Pool) -> set[tuple[LeftoverKind, str]]:
    return {
        (leftover.kind, leftover.name) for leftover in pool.driver.list_leftovers() if not leftover.removed_at
    }


def test_live_workspace_is_never_listed_as_a_leftover(pool):
    spec = pool.spec()
    folder = pool.driver._dir(spec.ref)
    with folder.operation():
        folder.prepare()  # a start without a record yet
        assert listed_leftovers(pool) == set()
    folder.remove()
    pool.run(spec)
    assert listed_leftovers(pool) == set()
    for kind in (FOLDER, GROUP):
        with pytest.raises(Conflict):
            pool.driver.remove_leftover(kind, folder.name)
    assert pool.driver.observe(spec.ref).state is ObservedState.RUNNING
    pool.wait(lambda: pool.driver.ensure_stopped(spec.ref), ObservedState.STOPPED)
    assert listed_leftovers(pool) == set()
    pool.wait(lambda: pool.driver.ensure_deleted(spec.ref), ObservedState.ABSENT)
    assert listed_leftovers(pool) == set()


def test_folder_without_a_record_is_listed_with_its_size_and_removed(pool):
    spec = pool.spec()
    folder = pool.driver._dir(spec.ref)
    with folder.operation():
        folder.prepare()
    (folder.run / "big").write_bytes(b"x" * (3 << 20))
    (found,) = pool.driver.list_leftovers()
    assert (found.kind, found.name) == (FOLDER, folder.name)
    assert found.size_mib in {3, 4}, "its disk says how the file is laid out"
    with folder.operation(), pytest.raises(Exception, match="in progress"):
        pool.driver.remove_leftover(FOLDER, folder.name)
    assert pool.driver.remove_leftover(FOLDER, folder.name)
    assert listed_leftovers(pool) == set() and not folder.path.exists()
    assert pool.driver.remove_leftover(FOLDER, folder.name), "missing is gone"


def test_empty_control_group_is_listed_and_removed(pool):
    host = cgroups.detect(pool.driver.instance)
    if not host.version:
        pytest.skip(host.reason)
    name = f"ws-{uuid.uuid4().hex}"
    groups = cgroups.create(host, name, cpu_milli=500, memory_mib=64)
    assert listed_leftovers(pool) == {(GROUP, name)}
    assert pool.driver.remove_leftover(GROUP, name)
    assert listed_leftovers(pool) == set() and not any(group.exists() for group in groups)


def test_remains_of_a_deleted_home_are_removed_and_a_new_home_is_kept(pool):
    homes_dir = pool.driver.homes
    rest, new = homes_dir / "lab" / ".deleting-ada", homes_dir / "lab" / "ada"
    for path in (rest / "x", new):
        path.mkdir(parents=True)
        (path / "file").write_text("here")
    assert listed_leftovers(pool) == {(FOLDER, "lab/.deleting-ada")}
    assert pool.driver.remove_leftover(FOLDER, "lab/.deleting-ada")
    assert not rest.exists() and (new / "file").read_text() == "here"
    assert homes.delete_rest(homes_dir, "lab", "ada", limit_s=1)
    assert new.is_dir()


def test_home_in_use_is_kept_and_another_removed(pool):
    spec = pool.spec()
    pool.run(spec)
    other = pool.driver.homes / "analysts" / "ghost"
    other.mkdir(parents=True)
    with pytest.raises(Conflict):
        pool.driver.remove_leftover(HOME, "analysts/ada")
    assert pool.driver.remove_leftover(HOME, "analysts/ghost")
    assert not other.exists() and (pool.driver.homes / "analysts" / "ada").is_dir()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (FOLDER, ".probes"), (FOLDER, "../homes/lab/ada"), (FOLDER, "lab/ada"), (FOLDER, "ws-1"),
        (FOLDER, "../.deleting-ada"), (FOLDER, "lab/.deleting-../ada"), (GROUP, "../.."), (GROUP, "spare-1"),
        (HOME, "lab"), (HOME, "../etc"), (HOME, "lab/../../x"), (LeftoverKind.PROCESS, "1"),
        (LeftoverKind.WORKSPACE, "ws-1"),
    ],
)  # fmt: skip
def test_invalid_leftover_names_are_refused(pool, kind, name):
    with pytest.raises(InvalidSpec):
        pool.driver.remove_leftover(kind, name)


def test_workspace_processes_have_higher_oom_scores_than_services(pool):
    spec = pool.spec()
    pool.run(spec)
    inside = processes.scan(pool.driver.instance, spec.ref.external_name)
    scores = [int(Path(f"/proc/{each.pid}/oom_score_adj").read_text()) for each in inside]
    assert min(scores) >= 100 and max(scores) >= 300


def test_only_egress_processes_are_ended(pool):
    own = f"{os.getpid()}-{processes.start_ticks(os.getpid())}"
    with pytest.raises(Conflict):
        pool.driver.remove_leftover(LeftoverKind.PROCESS, own)
    assert pool.driver.remove_leftover(LeftoverKind.PROCESS, "999999999-1"), "missing is gone"


def test_sweep_reports_what_it_removed(pool):
    with scratch.folder(pool.driver.base, "network"):
        pass
    left = pool.driver.base / scratch.PROBES / "network-1-x"
    left.mkdir()
    (found,) = pool.driver.list_leftovers()
    assert (found.kind, found.name) == (FOLDER, ".probes/network-1-x") and found.removed_at
    assert not left.exists()
    leftovers.note(pool.driver.base, [Leftover(FOLDER, f"f{number}") for number in range(400)])
    assert len(leftovers.removed(pool.driver.base)) == leftovers.KEPT
    (pool.driver.base / leftovers.JOURNAL).write_text("[{")
    assert pool.driver.list_leftovers() == ()
