"""A member leaves a setuid root program in a home, on a node whose worker is root.

Without separate users per
owner (`test_own_users.py`), files of workspaces belong to root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.drivers.local import home_mount
from provisioning.drivers.local.driver import LocalDriver
from provisioning.types import PoolConfig
from tests.provisioning.local.local_support import Pool, ask

SOMEBODY = 64_124
PLANT = (
    "(__import__('shutil').copy('/usr/bin/id', os.environ['HOME'] + '/planted'),"
    " os.chmod(os.environ['HOME'] + '/planted', 0o6755),"
    " os.stat(os.environ['HOME'] + '/planted').st_mode & 0o6000)[-1]"
)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """A pool of root, in folders that everyone can traverse: the worst case."""
    if os.geteuid() != 0:
        pytest.skip("only what root runs can leave programs of root's")
    monkeypatch.setenv("BERTH_NODE_UIDS", "none")
    folder = Path(tempfile.mkdtemp(prefix="berth-planted-"))
    folder.chmod(0o755)
    if os.statvfs(folder).f_flag & os.ST_NOSUID:
        shutil.rmtree(folder)
        pytest.skip("temporary folders are mounted with nosuid here")
    made = Pool(folder)
    yield made
    made.close()
    release(made)
    shutil.rmtree(folder)


def release(pool: Pool) -> None:
    home_mount.release(pool.driver.homes, pool.driver.base / home_mount.LOCK)


def plant(pool: Pool) -> Path:
    """Return the program left by a workspace, with its path opened."""
    seen = pool.run(pool.spec())
    assert ask(seen, PLANT) == 0o6000
    home = pool.driver.homes / "analysts" / "ada"
    for path in (home, home.parent, home.parent.parent, home.parent.parent.parent):
        path.chmod(0o755)
    return home / "planted"


def user_of(program: Path) -> str:
    """Return the effective user of another user running it."""
    return subprocess.run(
        [str(program), "-u"], user=SOMEBODY, group=SOMEBODY, extra_groups=[], cwd="/",
        capture_output=True, text=True, timeout=20, check=True,
    ).stdout.strip()  # fmt: skip


def mounts(pool: Pool) -> int:
    return Path("/proc/self/mountinfo").read_text().count(f" {pool.driver.homes} ")


def prepare_host(pool: Pool) -> None:
    pool.driver.prepare_host()
    if not home_mount.is_secured(pool.driver.homes):
        pytest.skip("nothing can be mounted here")


def test_planted_setuid_program_has_no_effect(pool):
    prepare_host(pool)
    planted = plant(pool)
    assert planted.stat().st_uid == 0
    assert user_of(planted) == str(SOMEBODY)
    # Without protection it works, so this test can fail.
    release(pool)
    assert mounts(pool) == 0
    assert user_of(planted) == "0"


def test_programs_planted_before_the_worker_starts_have_no_rights(pool):
    planted = plant(pool)
    assert user_of(planted) == "0"
    prepare_host(pool)
    assert user_of(planted) == str(SOMEBODY)


def test_releasing_the_host_keeps_mounts_of_running_workspaces(pool):
    prepare_host(pool)
    pool.driver.release_host(keep_workspaces=True)
    assert mounts(pool) == 1
    pool.driver.release_host(keep_workspaces=False)
    assert mounts(pool) == 0


def test_planted_device_cannot_be_read(pool):
    prepare_host(pool)
    device = pool.driver.homes / "device"
    os.mknod(device, 0o600 | 0o020000, os.makedev(1, 5))
    with pytest.raises(PermissionError):
        device.read_bytes()


def test_restarted_workers_mount_once(pool):
    prepare_host(pool)
    for _ in range(3):
        LocalDriver(PoolConfig("local", "local", dict(pool.driver.pool.config))).prepare_host()
    assert mounts(pool) == 1


def test_workspace_keeps_running_while_homes_are_remounted(pool):
    seen = pool.run(pool.spec())
    write = "open(os.environ['HOME'] + '/note', 'a').write('x')"
    assert ask(seen, write) == 1
    prepare_host(pool)
    assert ask(seen, write) == 1
    release(pool)
    assert ask(seen, write) == 1
    assert (pool.driver.homes / "analysts" / "ada" / "note").read_text() == "xxx"


def test_failed_mount_gives_a_node_warning(pool, monkeypatch, caplog):
    def refuse(mount: dict[str, object]) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(home_mount.attach, "copy_of", refuse)
    pool.driver.prepare_host()
    (node,) = pool.driver.inventory().nodes
    assert any("nosuid" in text and "ordinary user" in text for text in node.warnings)
    monkeypatch.undo()
    prepare_host(pool)
    (node,) = pool.driver.inventory().nodes
    assert not any("nosuid" in text for text in node.warnings)
