"""Attack: a member hides the size of a home, or makes its measurement expensive."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from provisioning.drivers.local import disk, home_usage
from provisioning.drivers.local.home_quota import MIN_FILES
from provisioning.node.measuring import HomeMeasurer
from provisioning.types import HomeUsage
from tests.provisioning.local.local_support import Pool, ask

T = TypeVar("T")
SOMEBODY = 64_125
MIB = 1 << 20
HOME = "analysts/ada"
real_statvfs = os.statvfs


class _NoInodes:
    """Like btrfs, which reports no number of inodes."""

    f_files = 0

    def __init__(self, real: os.statvfs_result) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    found = tmp_path / "homes"
    (found / HOME).mkdir(parents=True)
    return found


def done(steps: Generator[None, None, T]) -> tuple[T, int]:
    """Return the result of the steps and the number of possible pauses."""
    pauses = 0
    try:
        while True:
            next(steps)
            pauses += 1
    except StopIteration as end:
        return end.value, pauses


def used(homes: Path, unnamed: home_usage.UnlinkedFiles | None = None) -> HomeUsage:
    return done(home_usage.measure(homes, HOME, unnamed))[0]


def open_in(folder: Path) -> list[Path]:
    """Return targets of open descriptors in the homes; threads of other tests may have others."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = entry.readlink()
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                continue  # just closed
            target = folder / "too deep for a name"
        if target.is_relative_to(folder):
            found.append(target)
    return found


def write(path: Path, mib: int) -> None:
    path.write_bytes(os.urandom(MIB) * mib)


def test_written_files_are_counted_in_place(homes):
    write(homes / HOME / "a", 3)
    (homes / HOME / "deep" / "deeper").mkdir(parents=True)
    write(homes / HOME / "deep" / "deeper" / ".hidden", 4)
    assert used(homes) == HomeUsage(HOME, 7, files=5)
    assert home_usage.names(homes) == [HOME]


def test_links_are_not_followed_and_hard_links_counted_once(homes, tmp_path):
    write(tmp_path / "elsewhere", 8)
    (homes / HOME / "link").symlink_to(tmp_path)
    (homes / HOME / "loop").symlink_to(homes / HOME)
    write(homes / HOME / "one", 2)
    for number in range(5):
        (homes / HOME / f"name-{number}").hardlink_to(homes / HOME / "one")
    with (homes / HOME / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert (used(homes).used_mib, used(homes).files) == (2, 5), "the home, two links, two files"
    (homes / "analysts" / "linked").symlink_to(tmp_path)
    assert home_usage.names(homes) == [HOME]


def test_too_deep_folders_are_reported_as_hidden(homes):
    folder = os.open(homes / HOME, os.O_RDONLY)
    for _ in range(home_usage.MAX_DEPTH + 50):  # longer than any valid path
        os.mkdir("n" * 60, dir_fd=folder)
        inner = os.open("n" * 60, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    assert used(homes).hidden
    assert open_in(homes) == []


def test_unreadable_folder_is_counted(homes):
    """If the worker runs as an ordinary user, like the owner of the files."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else for a while")
    for path in (homes, *homes.parents[:2]):
        path.chmod(path.stat().st_mode | 0o755)
    inside = homes / HOME / "closed"
    inside.mkdir()
    write(inside / "much", 5)
    for path in (homes / "analysts", homes / HOME, inside, inside / "much"):
        os.chown(path, SOMEBODY, SOMEBODY)
    inside.chmod(0)
    folder = os.open(homes, os.O_RDONLY)
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.fchdir(folder)
            os.setresgid(SOMEBODY, SOMEBODY, SOMEBODY)
            os.setresuid(SOMEBODY, SOMEBODY, SOMEBODY)
            os.write(writing, str(done(home_usage.measure(Path(), HOME))[0].used_mib).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        assert stream.read() == "5"
    os.waitpid(pid, 0)
    os.close(folder)


def test_a_million_small_files_are_measured_in_small_steps(homes):
    for number in range(5_000):
        (homes / HOME / f"f{number}").touch()
    usage, pauses = done(home_usage.measure(homes, HOME))
    assert (usage.used_mib, usage.files) == (0, 5_001)
    assert pauses >= 5_000 // home_usage.STEP


def test_file_deleted_during_measurement_is_no_error(homes):
    for number in range(2 * home_usage.STEP):
        (homes / HOME / f"d{number}").mkdir()
    steps = home_usage.measure(homes, HOME)
    next(steps)
    for path in (homes / HOME).iterdir():
        path.rmdir()
    assert not done(steps)[0].hidden


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    made: list[Pool] = []

    def make(**config: Any) -> Pool:
        made.append(Pool(tmp_path, **config))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


UNNAMED = (
    "(lambda path: (lambda file: (os.write(file, bytes(6 << 20)), os.unlink(path), os.dup(file)))"
    "(os.open(path, os.O_WRONLY | os.O_CREAT)))(os.environ['HOME'] + '/gone') and 'hidden'"
)
MANY = "[open(os.environ['HOME'] + f'/empty-{number}', 'w').close() for number in range(11_000)] and 'made'"


def test_deleted_open_file_is_counted(make_pool):
    pool = make_pool()
    neighbour = pool.run(pool.spec(owner="bob"))
    seen = pool.run(pool.spec())
    if not (pool.driver._isolation()[0]).bwrap:
        pytest.skip("plain processes have no home of their own to be known by")
    assert ask(seen, UNNAMED) == "hidden"
    homes = pool.driver.homes
    assert used(homes).used_mib == 0
    sizes, _ = done(home_usage.unnamed(homes, home_usage.names(homes), pool.driver.pids()))
    assert list(sizes) == [HOME], "its own home alone, and once"
    assert (sizes[HOME].bytes >> 20, sizes[HOME].files) == (6, 1)
    assert used(homes, sizes[HOME]).files == used(homes).files + 1
    assert ask(neighbour, "1 + 1") == 2


def test_node_reports_changes_and_measures_again_when_the_disk_fills(make_pool, monkeypatch):
    # Ignore concurrent writes of others to this disk.
    free_mib = [10_000]
    monkeypatch.setattr("provisioning.node.measuring._free_mib", lambda _homes: free_mib[0])
    pool = make_pool()
    home = pool.driver.homes / HOME
    home.mkdir(parents=True)
    told: list[HomeUsage] = []
    measuring = HomeMeasurer(pool.driver, told.extend)
    now = time.monotonic() + 1000
    measuring.round(now)
    assert told == [HomeUsage(HOME, 0, files=1)]
    told.clear()
    (home / "note").touch()
    measuring.round(now + 1)
    assert told == [], "nothing that matters is new"
    write(home / "more", 3)
    measuring.round(now + 2)
    assert told == [], "what was quiet is looked at less often"
    free_mib[0] -= 100
    measuring.round(now + 3)
    assert told == [HomeUsage(HOME, 3, files=3)]
    told.clear()
    measuring.round(now + 70)
    assert told == [HomeUsage(HOME, 3, files=3)], "the control plane is reminded of all"
    told.clear()
    free_mib[0] = disk.reserve_mib() - 1
    measuring.round(now + 71)
    assert told == [HomeUsage(HOME, 3, files=3, disk_low=True)]


def test_too_many_empty_files_are_reported_with_the_limit(make_pool):
    pool = make_pool(home_limit_mib=10)
    seen = pool.run(pool.spec())
    assert ask(seen, MANY) == "made"
    told: list[HomeUsage] = []
    HomeMeasurer(pool.driver, told.extend).round(time.monotonic() + 1000)
    [usage] = told
    assert usage.used_mib < 10
    assert usage.files > 11_000 > usage.most_files == MIN_FILES


def test_dynamic_inodes_report_any_number(make_pool, monkeypatch):
    pool = make_pool(home_limit_mib=10)
    pool.run(pool.spec())
    told: list[HomeUsage] = []
    monkeypatch.setattr(os, "statvfs", lambda path: _NoInodes(real_statvfs(path)))
    HomeMeasurer(pool.driver, told.extend).round(time.monotonic() + 1000)
    assert [usage.most_files for usage in told] == [0]


def test_measuring_without_homes_succeeds(make_pool):
    pool = make_pool()
    HomeMeasurer(pool.driver, lambda _usages: pytest.fail("nothing to tell")).round()


def test_ending_worker_does_not_wait_for_a_measurement(make_pool, monkeypatch):
    pool = make_pool()
    for number in range(1_000):
        (pool.driver.homes / HOME / f"d{number}").mkdir(parents=True)
    monkeypatch.setattr("provisioning.node.measuring.WORK_S", 0)
    monkeypatch.setattr("provisioning.node.measuring.PAUSE_S", 3600)
    monkeypatch.setattr("provisioning.node.measuring.ROUND_S", 0)
    measuring = HomeMeasurer(pool.driver, lambda _usages: None)
    measuring.start()
    measuring.stop(timeout_s=30)
    assert not measuring.is_alive()
