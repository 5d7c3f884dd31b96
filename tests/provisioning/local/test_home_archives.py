"""Home archives created and restored by the file server in its sandbox: kills, full disks, hostile homes."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from local_support import Pool
from test_home_moves import content

from provisioning.drivers.local import home_archives
from provisioning.drivers.local.file_server import Home, _process_tree
from provisioning.endpoints import files_socket_name
from provisioning.home_messages import ArchiveCommand, HomeArchived, HomeArchiveOrder
from provisioning.node import home_archives as node
from provisioning.types import PoolConfig
from tests.suite.choice import quick_of, sample

pytestmark = [pytest.mark.engine, pytest.mark.apart]
TEAM, OWNER = "t", "ada"
STORE = Home(TEAM, OWNER, archives=True)
FIRST, SECOND = "a" * 32, "b" * 32
ROOM = 1 << 40


class Machine:
    """A machine with ada's home, called like the control plane does."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.home: Path = pool.home / "homes" / TEAM / OWNER
        self.store = self.home.with_name(f".archives-{OWNER}")
        self.home.mkdir(parents=True)

    def do(
        self,
        do: ArchiveCommand,
        *,
        archive: str = FIRST,
        job: str = "j1",
        room: int = ROOM,
        empties: bool = False,
    ) -> HomeArchived:
        pool = PoolConfig("p", "local", {})
        order = HomeArchiveOrder(
            archive, job, "lease", do, pool, TEAM, OWNER, time.time() + 60, room, empties
        )
        driver, node.driver_for = node.driver_for, lambda _: self.pool.driver
        try:
            return node.run(order, now=time.time())
        finally:
            node.driver_for = driver

    def to_the_end(self, do: ArchiveCommand, **more: Any) -> HomeArchived:
        answer = None
        for _ in range(400):
            answer = self.do(do, **more)
            if answer.done or answer.refused or (answer.failure and answer.failure.code != "archive_cut_off"):
                return answer
        raise AssertionError(answer)

    def kill(self) -> None:
        name = files_socket_name(TEAM, STORE.folder).partition(".")[0]
        launched = home_archives_dir(self.pool, name).launched()
        for pid in _process_tree(launched.pid) if launched else ():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def kept(self) -> list[str]:
        return sorted(path.name for path in self.store.iterdir()) if self.store.exists() else []

    def age(self) -> None:
        """Change the home."""
        (self.home / "data" / "large").unlink()
        (self.home / "later").write_text("later")


def home_archives_dir(pool: Pool, name: str) -> Any:
    return pool.driver._file_servers()._folder(STORE)


@pytest.fixture(params=quick_of(("bwrap", "none"), ("bwrap",), "`make test` has the sandbox"))
def machine(make_pool: Callable[..., Pool], request: pytest.FixtureRequest) -> Iterator[Machine]:
    more = {}
    if request.param == "bwrap":
        request.getfixturevalue("sandbox")
    else:
        more = {"sandbox": "none"}
    found = Machine(make_pool("here", **more))
    yield found
    for home in (STORE, Home(TEAM, OWNER)):
        found.pool.driver._file_servers().end(home)


def fill(home: Path) -> dict[str, bytes]:
    (home / "data").mkdir()
    (home / "data" / "large").write_bytes(os.urandom(24 << 20))
    for number in range(50):
        (home / "data" / f"{number}").write_text(f"{number}")
    (home / "link").symlink_to("/etc/passwd")
    os.link(home / "data" / "1", home / "again")
    (home / "readonly").mkdir()
    (home / "readonly" / "in").write_text("in")
    (home / "readonly").chmod(0o500)
    return content(home)


def test_home_is_archived_and_restored(machine: Machine) -> None:
    before = fill(machine.home)
    machine.home.chmod(0o710)
    made = machine.to_the_end(ArchiveCommand.MAKE)
    assert made.failure is None and not made.refused
    assert (made.entries, made.left_out) == (56, 0) and made.home_bytes > 24 << 20
    assert machine.kept() == [f"{FIRST}.home"]
    assert made.size_bytes == (machine.store / f"{FIRST}.home").stat().st_size
    assert machine.do(ArchiveCommand.MAKE) == made, "twice is the same"
    machine.age()
    restored = machine.to_the_end(ArchiveCommand.RESTORE, job="j2")
    assert restored.placed and restored.failure is None
    assert content(machine.home) == before
    assert stat.S_IMODE((machine.home / "readonly").stat().st_mode) == 0o500
    assert stat.S_IMODE(machine.home.stat().st_mode) == 0o710
    assert (machine.home / "again").stat().st_ino == (machine.home / "data" / "1").stat().st_ino
    owners = {path.lstat().st_uid for path in (machine.home, *machine.home.rglob("*"))}
    assert owners == {machine.store.stat().st_uid}
    old = machine.store / "restoring" / "home"
    assert (old / "later").exists(), "the old state is there until it is taken away"
    assert machine.do(ArchiveCommand.RESTORE, job="j2").placed, "twice is the same"
    assert content(machine.home) == before
    assert machine.do(ArchiveCommand.CLEAR, job="j2").done
    assert machine.kept() == [f"{FIRST}.home"]
    assert machine.do(ArchiveCommand.DELETE).done and machine.do(ArchiveCommand.DELETE).done
    assert machine.kept() == []
    assert machine.do(ArchiveCommand.RESTORE, job="j3").refused == "not_found"
    assert content(machine.home) == before


@pytest.mark.thorough("kills at every part of an archive; `make test` kills the worker")
@pytest.mark.parametrize("do", [ArchiveCommand.MAKE, ArchiveCommand.RESTORE])
def test_file_server_killed_at_any_step_resumes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, do: ArchiveCommand
) -> None:
    """SIGKILL at later and later points: no partial archive is offered, and no home is half restored."""
    before = fill(machine.home)
    later = before
    if do is ArchiveCommand.RESTORE:
        assert machine.to_the_end(ArchiveCommand.MAKE).done
        machine.age()
        later = content(machine.home)
    killed = 0
    with monkeypatch.context() as patched:
        patched.setattr(node, "LONGEST_PAUSE_S", 0.01)
        patched.setattr(node, "FIRST_PAUSE_S", 0.01)
        for attempt in range(25):
            patched.setattr(node, "STEP_S", 0.05 * attempt)
            answer = machine.do(do, job="j9")
            assert not answer.refused
            if answer.done:
                break
            machine.kill()
            killed += 1
            assert content(machine.home) == later
            if do is ArchiveCommand.MAKE and f"{FIRST}.home" in machine.kept():
                break  # completed between the last check and the kill
    assert killed
    answer = machine.to_the_end(do, job="j9")
    assert answer.done and not answer.refused and answer.failure is None
    assert content(machine.home) == before
    assert machine.do(ArchiveCommand.CLEAR, job="j9").done
    assert machine.kept() == [f"{FIRST}.home"] and content(machine.home) == before
    machine.age()
    assert machine.to_the_end(ArchiveCommand.RESTORE, job="j10").done
    assert content(machine.home) == before, "what is offered is whole"


@pytest.mark.parametrize("exchanges", sample([True, False], 2, "`make test` has the exchange"))
@pytest.mark.parametrize(
    "moment", quick_of(("before", "between", "after"), ("between",), "each moment; `make test` has one")
)
def test_worker_killed_during_the_swap_resumes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, moment: str, exchanges: bool
) -> None:
    before = fill(machine.home)
    assert machine.to_the_end(ArchiveCommand.MAKE).done
    machine.age()
    changed = content(machine.home)
    if not exchanges:
        monkeypatch.setattr(home_archives, "RENAME_EXCHANGE", 1 << 20)  # unsupported by every kernel
    exchange = home_archives._exchange_folders

    def dies(new: Path, old: Path) -> None:
        if moment == "between" and not exchanges:
            old.rename(new.with_name("old"))
        elif moment == "after":
            exchange(new, old)
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(home_archives, "_exchange_folders", dies)
        assert machine.to_the_end(ArchiveCommand.RESTORE, job="j2").failure
    if moment == "before" or (moment == "between" and exchanges):
        assert content(machine.home) == changed
        assert machine.to_the_end(ArchiveCommand.RESTORE, job="j2").placed
    else:
        answer = machine.do(ArchiveCommand.CLEAR, job="j2")
        assert answer.placed and answer.done
    assert content(machine.home) == before
    assert machine.do(ArchiveCommand.CLEAR, job="j2").done and machine.kept() == [f"{FIRST}.home"]


def test_cancelled_archive_is_discarded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(machine.home)
    assert machine.to_the_end(ArchiveCommand.MAKE).done
    machine.age()
    changed = content(machine.home)
    monkeypatch.setattr(node, "STEP_S", 0.0)
    machine.do(ArchiveCommand.RESTORE, job="j2")
    answer = machine.do(ArchiveCommand.CLEAR, job="j2")
    assert answer.done and not answer.placed
    assert content(machine.home) == changed and machine.kept() == [f"{FIRST}.home"]


@pytest.mark.thorough("`make test` makes, damages and restores archives")
def test_missing_disk_space_leaves_home_and_archives_unchanged(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an oversized archive nor a full disk leaves or removes files."""
    before = fill(machine.home)
    answer = machine.to_the_end(ArchiveCommand.MAKE, room=1 << 20)
    assert answer.refused == "archives_full" and machine.kept() == []
    assert machine.to_the_end(ArchiveCommand.MAKE).done
    machine.age()
    changed = content(machine.home)
    disk = os.statvfs(machine.home)
    reserve = (disk.f_bavail * disk.f_frsize >> 20) + (1 << 10)
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", str(reserve))
    for do, archive in ((ArchiveCommand.MAKE, SECOND), (ArchiveCommand.RESTORE, FIRST)):
        answer = machine.to_the_end(do, archive=archive, job=f"j-{do}")
        assert answer.refused == "disk_full" and answer.free == 0
        assert machine.kept() == [f"{FIRST}.home"] and content(machine.home) == changed
    monkeypatch.delenv("BERTH_DISK_RESERVE_MIB")
    assert machine.to_the_end(ArchiveCommand.RESTORE, job="j3").placed
    assert content(machine.home) == before


def test_hostile_home_is_archived_safely(machine: Machine, tmp_path: Path) -> None:
    """Outward links, special modes and sparse files are restored safely, and nothing outside changes."""
    home = machine.home
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (home / "out").symlink_to(outside)
    (home / "up").symlink_to("../../..")
    (home / "program").write_text("#!/bin/sh")
    (home / "program").chmod(0o6755)
    (home / "shared").mkdir()
    (home / "shared").chmod(0o3777)
    os.mkfifo(home / "pipe")
    left_out = 1
    if os.geteuid() == 0:
        os.mknod(home / "disk", 0o666 | stat.S_IFBLK, os.makedev(7, 0))
        left_out = 2
    with (home / "swells").open("wb") as file:
        file.truncate(1 << 42)
        file.seek(1 << 41)
        file.write(b"middle")
    (home / "zeros").write_bytes(bytes(64 << 20))
    (home / "old").write_text("old")
    os.utime(home / "old", (6_000_000_000, 6_000_000_000))
    made = machine.to_the_end(ArchiveCommand.MAKE)
    assert made.left_out == left_out and made.size_bytes < 1 << 20
    (home / "out").unlink()
    (home / "out").mkdir()
    (home / "out" / "secret").write_text("mine")
    assert machine.to_the_end(ArchiveCommand.RESTORE, job="j2").placed
    assert (home / "out").is_symlink() and (outside / "secret").read_text() == "secret"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert stat.S_IMODE((home / "program").stat().st_mode) == 0o755
    assert stat.S_IMODE((home / "shared").stat().st_mode) == 0o777
    assert not (home / "pipe").exists() and not (home / "disk").exists()
    seen = (home / "swells").stat()
    assert seen.st_size == 1 << 42 and seen.st_blocks * 512 <= 1 << 20
    assert machine.do(ArchiveCommand.CLEAR, job="j2").done
    assert (outside / "secret").read_text() == "secret"


def test_deeply_nested_home_is_refused_for_archiving_but_can_be_deleted(machine: Machine) -> None:
    (machine.home / "mine").write_text("mine")
    assert machine.to_the_end(ArchiveCommand.MAKE).done
    here = os.open(machine.home, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    answer = machine.to_the_end(ArchiveCommand.MAKE, archive=SECOND, job="j2")
    assert answer.refused == "unreadable" and answer.about.startswith("d/d/")
    assert machine.kept() == [f"{FIRST}.home"]
    assert machine.to_the_end(ArchiveCommand.RESTORE, job="j3").placed
    assert machine.to_the_end(ArchiveCommand.CLEAR, job="j3").done
    assert content(machine.home) == {"mine": b"mine"} and machine.kept() == [f"{FIRST}.home"]


def test_damaged_archive_does_not_replace_the_home(machine: Machine) -> None:
    before = fill(machine.home)
    assert machine.to_the_end(ArchiveCommand.MAKE).done
    archive = machine.store / f"{FIRST}.home"
    whole = archive.read_bytes()
    for place in (5, 5000, len(whole) // 2, len(whole) - 3):
        archive.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        answer = machine.to_the_end(ArchiveCommand.RESTORE, job=f"j{place}")
        assert answer.refused == "bad_stream", place
        assert content(machine.home) == before
    archive.write_bytes(whole[: len(whole) // 2])
    assert machine.to_the_end(ArchiveCommand.RESTORE, job="cut").refused == "bad_stream"
    assert content(machine.home) == before and machine.kept() == [f"{FIRST}.home"]


@pytest.mark.thorough("`make test` makes, damages and restores archives")
def test_archives_are_deleted_with_the_home_and_stay_when_it_moves(machine: Machine) -> None:
    fill(machine.home)
    assert machine.to_the_end(ArchiveCommand.MAKE).done
    moves = machine.pool.driver.home_moves(team=TEAM, owner=OWNER)
    assert moves.remove(Home(TEAM, OWNER), limit_s=30)
    assert not machine.home.exists() and machine.kept() == [f"{FIRST}.home"]
    assert machine.do(ArchiveCommand.RESTORE, job="j2").failure.code == "home_nowhere"
    machine.home.mkdir()
    while not machine.pool.driver.delete_home(team=TEAM, owner=OWNER):
        pass
    assert not machine.home.exists() and not machine.store.exists()


def test_invalid_archive_name_is_refused(machine: Machine) -> None:
    fill(machine.home)
    for archive in ("../../x", "", "A" * 32):
        answer = machine.do(ArchiveCommand.MAKE, archive=archive)
        assert answer.failure and not answer.done
    assert machine.kept() == []


# --- archived homes -------------------------------------------------------------------------------


def archive_and_empty(machine: Machine) -> dict[str, bytes]:
    """Archive and empty the home. Returns its previous content."""
    before = fill(machine.home)
    time.sleep(0.05)
    assert machine.to_the_end(ArchiveCommand.MAKE, empties=True).done
    answer = machine.to_the_end(ArchiveCommand.EMPTY, job="j2")
    assert answer.placed and answer.failure is None and not answer.refused
    return before


def test_archived_home_is_emptied_and_restored(machine: Machine) -> None:
    machine.home.chmod(0o710)
    before = archive_and_empty(machine)
    assert content(machine.home) == {} and stat.S_IMODE(machine.home.stat().st_mode) == 0o710
    assert machine.do(ArchiveCommand.EMPTY, job="j2").placed, "twice is the same"
    assert machine.do(ArchiveCommand.LEAVE, job="j2").placed, "it is too late to leave it"
    for _ in range(2):
        assert machine.to_the_end(ArchiveCommand.CLEAR, job="j2").done
        assert content(machine.home) == {} and machine.kept() == [f"{FIRST}.home"]
    assert machine.to_the_end(ArchiveCommand.RESTORE, job="j3").placed
    assert content(machine.home) == before


def test_concurrently_changed_home_is_not_emptied(machine: Machine) -> None:
    """Changed by a new file, a write, a renamed folder, a mode, or times set by users."""
    before = fill(machine.home)
    time.sleep(0.05)
    assert machine.to_the_end(ArchiveCommand.MAKE, empties=True).done
    (machine.home / "data" / "7").write_text("written")
    os.utime(machine.home / "data" / "7", (1, 1))
    answer = machine.do(ArchiveCommand.EMPTY, job="j2")
    assert (answer.refused, answer.about, answer.placed) == ("changed", "7", False)
    answer = machine.do(ArchiveCommand.LEAVE, job="j2")
    assert answer.done and not answer.placed
    assert content(machine.home) == {**before, "data/7": b"written"}
    assert machine.kept() == [f"{FIRST}.home"]
    assert (
        machine.do(ArchiveCommand.EMPTY, job="j3").failure
        or machine.do(ArchiveCommand.EMPTY, job="j3").refused
    )
    assert content(machine.home) == {**before, "data/7": b"written"}, "nothing says how old the archive is"


def test_home_is_not_emptied_without_its_archive(machine: Machine) -> None:
    before = fill(machine.home)
    time.sleep(0.05)
    assert machine.to_the_end(ArchiveCommand.MAKE, empties=True).done
    (machine.store / f"{FIRST}.home").unlink()
    assert machine.do(ArchiveCommand.EMPTY, job="j2").refused == "not_found"
    assert machine.do(ArchiveCommand.LEAVE, job="j2").done
    assert content(machine.home) == before


WRITES = frozenset({"os.mkdir", "os.chown", "os.chmod", "os.rename", "os.rmdir", "os.remove", "exchange"})
"""Audit events of what changes something; the one rename that exchanges folders has none of its own."""
_hooks: list[Callable[[str, tuple[Any, ...]], None]] = []
_added: list[bool] = []


def ask(event: str, arguments: tuple[Any, ...], hooks: Any = _hooks) -> None:
    # A default argument, since module names are gone while the interpreter ends.
    for hook in hooks:
        hook(event, arguments)


class Cut(BaseException):
    """Like SIGKILL: not caught anywhere."""


@contextlib.contextmanager
def hooked(hook: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call the hook before each write of this thread."""
    if not _added:  # audit hooks cannot be removed
        sys.addaudithook(ask)
        _added.append(True)
    exchange, thread = home_archives._exchange_folders, threading.get_ident()

    def here(event: str, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() == thread:
            hook(event, arguments)

    def exchanges(new: Path, old: Path) -> None:
        here("exchange", ())
        exchange(new, old)

    _hooks.append(here)
    home_archives._exchange_folders = exchanges
    try:
        yield
    finally:
        _hooks.remove(here)
        home_archives._exchange_folders = exchange


@pytest.mark.thorough("kills at every write")
@pytest.mark.parametrize("then", [ArchiveCommand.EMPTY, ArchiveCommand.LEAVE])
def test_home_or_archive_is_complete_when_killed_before_any_write(
    make_pool: Callable[..., Pool], then: ArchiveCommand
) -> None:
    """The worker is killed before its first write of the command, its second, and so on."""
    machine = Machine(make_pool("here", sandbox="none"))
    before = fill(machine.home)
    time.sleep(0.05)
    assert machine.to_the_end(ArchiveCommand.MAKE, empties=True).done
    archive = (machine.store / f"{FIRST}.home").read_bytes()
    emptied = left = 0
    for step in range(1, 60):
        job, count = f"k{step}", 0

        def before_writing(event: str, _arguments: tuple[Any, ...], step: int = step) -> None:
            nonlocal count
            if event in WRITES:
                count += 1
                if count == step:
                    raise Cut

        with hooked(before_writing), contextlib.suppress(Cut):
            machine.do(ArchiveCommand.EMPTY, job=job)
        home = content(machine.home)
        assert home in (before, {}), step
        assert (machine.store / f"{FIRST}.home").read_bytes() == archive
        if count < step:
            assert home == {} and step > 5
            break
        answer = machine.to_the_end(then, job=job)
        assert answer.done and answer.placed == (content(machine.home) == {})
        emptied, left = emptied + answer.placed, left + (not answer.placed)
        assert machine.to_the_end(ArchiveCommand.CLEAR, job=job).done
        if answer.placed:
            assert machine.to_the_end(ArchiveCommand.RESTORE, job=f"r{step}").placed
            assert machine.to_the_end(ArchiveCommand.CLEAR, job=f"r{step}").done
        assert content(machine.home) == before
        later = time.time() + 3600
        since = machine.store / f"{FIRST}.since"
        since.touch()
        os.utime(since, (later, later))  # the home was recreated meanwhile
    else:
        pytest.fail("it does not end")
    assert emptied and (left or then is ArchiveCommand.EMPTY)
