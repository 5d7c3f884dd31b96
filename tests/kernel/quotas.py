"""In a virtual machine: the file system enforces limits of homes, in bytes and files.

`virtual.py` runs it there with empty disks: /dev/vda for ext4 and /dev/vdb for XFS.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.drivers.local import home_quota, project_quota
from provisioning.drivers.local.home_quota import HomeQuotas
from provisioning.node.measuring import HomeMeasurer
from provisioning.types import LimitedResource, ObservedState
from tests.provisioning.local.local_support import Pool, ask

LIMIT_MIB = 40
HARD = LIMIT_MIB * home_quota.KERNEL_LIMIT_PCT // 100 << 20
DISKS = {
    "ext4": (
        ["mkfs.ext4", "-q", "-F", "-O", "project,quota", "-E", "quotatype=prjquota"],
        "/dev/vda",
        "prjquota",
    ),
    "xfs": (["mkfs.xfs", "-q", "-f"], "/dev/vdb", "pquota"),
}
FILL = ("dd", "if=/dev/zero", "of=big", "bs=1M", "count=400")
COUNT = ("sh", "-c", "n=0; while [ $n -lt 30000 ]; do : > many-$n || exit 1; n=$((n + 1)); done")
LEAVE = ("chattr", "-p", "0", ".")
FULL = {"ext4": "Disk quota exceeded", "xfs": "No space left on device"}
"""The kernel's errors; XFS reports a full project as a full disk."""
USER = 200000
# The same in Python, run inside a workspace, which prints the error.
WRITE_ALL = (
    "[file.write(b'x' * (1 << 20)) for file in [open(os.environ['HOME'] + '/big', 'wb', 0)]"
    " for _ in range(400)]"
)
LEAVE_ALL = (
    "__import__('fcntl').ioctl(os.open(os.environ['HOME'], os.O_RDONLY), 0x401C5820,"
    " __import__('struct').pack('=5I8x', 0, 0, 0, 0, 0))"
)


def by_a_user(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program of an ordinary user in a home."""
    return subprocess.run(
        argv, cwd=home, capture_output=True, text=True, user=USER, group=USER, extra_groups=[], check=False
    )


@pytest.fixture(params=sorted(DISKS))
def homes(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder for homes on its own disk, accessible to all users."""
    make, device, option = DISKS[request.param]
    subprocess.run([*make, device], check=True)
    where = Path("/mnt") / request.param
    where.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", option, device, where], check=True)
    (where / "homes").mkdir()
    yield where / "homes"
    subprocess.run(["umount", "--lazy", where], check=True)


@pytest.fixture
def pool(homes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", "1")
    local_pool = Pool(tmp_path / "node", homes=str(homes), home_limit_mib=LIMIT_MIB)
    local_pool.driver.prepare_host()
    yield local_pool
    local_pool.close()


def used(homes: Path, project: int) -> project_quota.ProjectUse:
    descriptor = os.open(homes, os.O_RDONLY)
    try:
        return project_quota.use_of(descriptor, project)
    finally:
        os.close(descriptor)


def record_of(pool: Pool, home: str = "analysts/ada") -> home_quota.QuotaRecord:
    record = pool.driver.quotas._read(home)
    assert record is not None
    return record


def test_node_reports_its_home_limit_mechanism(pool: Pool) -> None:
    (node,) = pool.driver.inventory().nodes
    assert LimitedResource.DISK in node.limited and node.facts["home_hold"] == "project_quota"


@pytest.fixture
def held(pool: Pool, homes: Path) -> Path:
    """A home with an enforced limit."""
    home = homes / "analysts" / "ada"
    home.mkdir(parents=True)
    for path in (homes, homes.parent, home.parent):
        path.chmod(0o711)
    os.chown(home, USER, USER)
    pool.driver.inventory()
    assert pool.driver.quotas.limit_home("analysts/ada") is not None
    return home


def test_size_limit_is_enforced(pool: Pool, homes: Path, held: Path) -> None:
    full = FULL[homes.parent.name]
    assert full in by_a_user(held, *FILL).stderr
    use = used(homes, record_of(pool).project)
    assert use.limit_bytes == HARD and HARD - (2 << 20) <= use.used_bytes <= HARD
    (held / "big").unlink()
    neighbour = homes / "analysts" / "ben"
    neighbour.mkdir()
    os.chown(neighbour, USER, USER)
    pool.driver.quotas.limit_home("analysts/ben")
    assert record_of(pool).project != record_of(pool, "analysts/ben").project
    assert full in by_a_user(neighbour, *FILL).stderr
    assert by_a_user(held, "sh", "-c", "echo x > note").returncode == 0


def test_file_limit_is_enforced(pool: Pool, homes: Path, held: Path) -> None:
    assert FULL[homes.parent.name] in by_a_user(held, *COUNT).stderr
    disk = os.statvfs(homes)
    use = used(homes, record_of(pool).project)
    assert use.limit_files == use.used_files < disk.f_files
    share = home_quota.files_of(LIMIT_MIB, disk.f_blocks * disk.f_frsize, disk.f_files)
    assert use.limit_files == share * home_quota.KERNEL_LIMIT_PCT // 100


def test_project_cannot_be_left_inside_a_user_namespace(pool: Pool, held: Path) -> None:
    inside = by_a_user(held, "unshare", "--user", "--map-root-user", *LEAVE)
    assert "Invalid argument" in inside.stderr, inside.stderr
    # Outside a sandbox the user can leave it.
    assert by_a_user(held, *LEAVE).returncode == 0


def test_limit_applies_inside_a_workspace(pool: Pool, homes: Path) -> None:
    spec = pool.spec()
    pool.start(replace(spec, app=replace(spec.app, start_timeout_s=300)))
    seen = pool.wait(lambda: pool.driver.observe(spec.ref), ObservedState.RUNNING, timeout_s=300)
    # An emulated machine may write only 1 MB/s on a busy host.
    assert ask(seen, WRITE_ALL, timeout_s=300) == "OSError"
    use = used(homes, record_of(pool).project)
    assert HARD - (2 << 20) <= use.used_bytes <= HARD
    assert ask(seen, LEAVE_ALL) == "OSError"
    assert ask(seen, "os.unlink(os.environ['HOME'] + '/big')") is None


def test_existing_files_are_counted_and_links_are_not_followed(
    pool: Pool, homes: Path, tmp_path: Path
) -> None:
    home, outside = homes / "analysts" / "ada", homes / "outside"
    (home / "deep" / "er").mkdir(parents=True)
    (home / "deep" / "er" / "data").write_bytes(b"x" * (8 << 20))
    outside.write_bytes(b"x")
    (home / "link").symlink_to(outside)
    os.mkfifo(home / "pipe")
    mounted = home / "mounted"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "other", mounted], check=True)
    try:
        pool.driver.inventory()
        HomeMeasurer(pool.driver, lambda _usages: None).round(0.0)
        record = record_of(pool)
        assert record.folder_inode == home.stat().st_ino
        use = used(homes, record.project)
        assert 8 << 20 <= use.used_bytes < 9 << 20
        for path in (outside, mounted):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                assert project_of(descriptor) == 0, path
            finally:
                os.close(descriptor)
    finally:
        subprocess.run(["umount", mounted], check=True)


def project_of(descriptor: int) -> int:
    try:
        return project_quota.project_of(descriptor)
    except OSError as error:
        assert error.errno in (errno.ENOTTY, errno.EOPNOTSUPP)
        return 0


def test_home_keeps_its_project_id_until_deleted(pool: Pool, homes: Path) -> None:
    measuring = HomeMeasurer(pool.driver, lambda _usages: None)
    for home in ("a/one", "a/two"):
        (homes / home).mkdir(parents=True)
        (homes / home / "file").write_text("x")
    pool.driver.inventory()
    measuring.round(0.0)
    first, second = record_of(pool, "a/one").project, record_of(pool, "a/two").project
    assert first != second
    reopened = HomeQuotas(pool.driver.base, homes)
    assert reopened.limit_home("a/one") == record_of(pool, "a/one"), "another process finds the same"
    assert pool.driver.delete_home(team="a", owner="one")
    # XFS accounts for deletions with a delay.
    subprocess.run(["sync", "-f", homes], check=True)
    measuring.round(1000.0)
    assert pool.driver.quotas._read("a/one") is None and used(homes, first).limit_bytes == 0
    assert record_of(pool, "a/two").project == second


def test_project_ids_of_administrators_are_not_used(
    pool: Pool, homes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, *_ = home_quota.PROJECT_IDS
    projid = tmp_path / "projid"
    projid.write_text(f"# ours\nbackups:{first}\n")
    monkeypatch.setattr(home_quota, "ADMINISTRATORS", (projid, tmp_path / "none"))
    descriptor = os.open(homes, os.O_RDONLY)
    project_quota.limit(descriptor, second, limit_bytes=1 << 20, limit_files=0)
    os.close(descriptor)
    (homes / "a" / "one").mkdir(parents=True)
    pool.driver.inventory()
    HomeMeasurer(pool.driver, lambda _usages: None).round(0.0)
    assert record_of(pool, "a/one").project == third
    assert used(homes, second).limit_bytes == 1 << 20


def test_limit_is_changed_and_removed(pool: Pool, homes: Path) -> None:
    (homes / "a" / "one").mkdir(parents=True)
    pool.driver.inventory()
    measuring = HomeMeasurer(pool.driver, lambda _usages: None)
    measuring.round(0.0)
    project = record_of(pool, "a/one").project
    for limit_mib in (80, 0):
        pool.driver.quotas.store_limit(limit_mib)
        measuring.round(0.0)
        assert used(homes, project).limit_bytes == limit_mib * home_quota.KERNEL_LIMIT_PCT // 100 << 20


def test_restored_home_is_counted(pool: Pool, homes: Path) -> None:
    home = homes / "a" / "one"
    home.mkdir(parents=True)
    pool.driver.inventory()
    measuring = HomeMeasurer(pool.driver, lambda _usages: None)
    measuring.round(0.0)
    project = record_of(pool, "a/one").project
    (homes / "a" / ".restored").mkdir()
    (homes / "a" / ".restored" / "data").write_bytes(b"x" * (4 << 20))
    home.rename(homes / "a" / ".old")
    (homes / "a" / ".restored").rename(home)
    measuring.round(0.0)
    assert record_of(pool, "a/one").project == project
    assert 4 << 20 <= used(homes, project).used_bytes < 5 << 20
