"""Escapes from a sandbox if the node worker runs as root.

Each owner's workspaces run as a separate system user. A process of that user outside every sandbox,
restricted only by user permissions, is the attacker.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning import handover
from provisioning.drivers.local import environment, home_mount, isolation, network, processes
from provisioning.drivers.local.spares import SpareKind
from provisioning.drivers.local.uids import Uids
from provisioning.errors import MissingDependency, StartFailed
from provisioning.preloading import Recipe
from provisioning.types import DeviceInfo, ObservedState, WorkspaceSpec
from provisioning.workspace_uids import UidRange
from tests.provisioning.local.local_support import Pool, ask

RANGE = UidRange(200_000, 265_535)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everyone can traverse: the worst case."""
    made = Path(tempfile.mkdtemp(prefix="berth-users-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def pool(folder: Path) -> Iterator[Pool]:
    if os.geteuid() != 0:
        pytest.skip("only root can give users of their own")
    if isolation.probe().uids is None:
        pytest.skip(isolation.probe().warning)
    made = Pool(folder)
    yield made
    made.close()
    assert network.egress_processes(folder) == []


def first_process(pool: Pool, spec: WorkspaceSpec) -> int:
    launched = pool.driver._dir(spec.ref).launched()
    assert launched is not None
    found = processes.sandbox_init(launched.pid)
    assert found is not None
    return found


def everything(pool: Pool, spec: WorkspaceSpec) -> list[int]:
    """Return all processes of a workspace: in its sandbox, around it, and its egress process."""
    found = [owned.pid for owned in processes.scan(pool.driver.instance, spec.ref.external_name)]
    ways = network.egress_processes(pool.driver._dir(spec.ref).path)
    assert found and (isolation.probe().network is None or ways)
    return found + [pid for pid, _ in ways]


def run_unconfined(uid: int, code: str) -> str:
    """Run `code` with the system Python as that user, outside every sandbox. Returns its output."""
    os_code = "import ctypes, os, sys\n" + code
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    done = subprocess.run(
        [python, "-I", "-c", os_code], user=uid, group=uid, extra_groups=[], cwd="/",
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


TRY = """
def name(call):
    try:
        call()
    except OSError as error:
        return type(error).__name__
    return "done"
libc = ctypes.CDLL(None, use_errno=True)
def attach(pid):
    if libc.ptrace(16, pid, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
"""


def test_every_owner_has_a_system_user_other_than_root(pool: Pool) -> None:
    ada, bob = pool.spec(), pool.spec(owner="bob")
    pool.run(ada)
    pool.run(bob)
    users = {
        username: {processes.user_of(pid) for pid in everything(pool, spec)}
        for username, spec in (("ada", ada), ("bob", bob))
    }
    assert all(len(found) == 1 and found.isdisjoint({0, os.geteuid()}) for found in users.values())
    assert users["ada"].isdisjoint(users["bob"])
    again = pool.spec()
    pool.run(again)
    assert {processes.user_of(pid) for pid in everything(pool, again)} == users["ada"]


def test_escaped_process_cannot_access_another_workspace(pool: Pool) -> None:
    victim, attacker = pool.spec(), pool.spec(owner="bob")
    seen = pool.run(victim)
    pool.run(attacker)
    ask(seen, "open(os.environ['HOME'] + '/note', 'w').write('mine') and os.chmod(os.environ['HOME'], 0o700)")
    uid = processes.user_of(first_process(pool, attacker))
    assert uid is not None
    home = pool.driver.homes / "analysts" / "ada"
    for path in (
        home.parent,
        pool.driver.homes,
        pool.home,
        pool.driver.base,
        pool.driver._dir(victim.ref).path,
    ):
        path.chmod(0o755)
    run = pool.driver._dir(victim.ref).run
    for pid in everything(pool, victim):
        tries = [
            f"os.kill({pid}, 0)", f"os.kill({pid}, 19)", f"attach({pid})",
            f"open('/proc/{pid}/mem', 'rb').read(1)",
            f"open('/proc/{pid}/environ', 'rb').read()", f"os.listdir('/proc/{pid}/fd')",
            f"os.listdir('/proc/{pid}/root')", f"os.readlink('/proc/{pid}/ns/net')",
            f"os.listdir('/proc/{pid}/cwd')",
        ]  # fmt: skip
        for call in tries:
            assert run_unconfined(uid, f"{TRY}\nprint(name(lambda: {call}))") == "PermissionError", call
    for call in (
        f"os.listdir({str(home)!r})", f"open({str(home / 'note')!r}).read()",
        f"os.listdir({str(run)!r})", f"open({str(run / 'x')!r}, 'w')",
    ):  # fmt: skip
        assert run_unconfined(uid, f"{TRY}\nprint(name(lambda: {call}))") == "PermissionError", call
    # The attack itself works for the user of the workspace.
    mine = processes.user_of(first_process(pool, victim))
    assert mine is not None
    assert (
        run_unconfined(mine, f"{TRY}\nprint(name(lambda: os.kill({first_process(pool, victim)}, 0)))")
        == "done"
    )
    assert run_unconfined(mine, f"print(open({str(home / 'note')!r}).read())") == "mine"


def test_installation_files_are_closed_to_users(pool: Pool) -> None:
    spec = pool.spec()
    pool.run(spec)
    uid = processes.user_of(first_process(pool, spec))
    assert uid is not None
    for path in (pool.driver.base, pool.driver.base / ".uids", pool.driver._dir(spec.ref).path):
        assert (
            run_unconfined(uid, f"{TRY}\nprint(name(lambda: os.listdir({str(path)!r})))") == "PermissionError"
        )


def test_inaccessible_device_is_reported_before_the_start(pool: Pool, tmp_path: Path) -> None:
    closed = tmp_path / "nvidia0"
    closed.touch(0o660)
    device = DeviceInfo(uuid="GPU-1", index=0, model="x", memory_mib=1, nodes=(str(closed),))
    pool.driver._devices = lambda _here: ((device,), ())  # type: ignore[method-assign]
    with pytest.raises(MissingDependency, match="cannot open"):
        pool.start(pool.spec())


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6755])
def test_planted_setuid_program_affects_only_its_owner(pool: Pool, mode: int) -> None:
    """On a file system that honours the bits, outside the sandbox."""
    seen = pool.run(pool.spec())
    plant = (
        "(__import__('shutil').copy('/usr/bin/id', os.environ['HOME'] + '/planted'),"
        f" os.chmod(os.environ['HOME'] + '/planted', {mode}), 1)[-1]"
    )
    assert ask(seen, plant) == 1
    found = (pool.driver.homes / "analysts" / "ada" / "planted").stat()
    assert found.st_uid in RANGE.owners and found.st_gid == found.st_uid


@pytest.mark.parametrize("kind", [0o020000, 0o060000])
def test_device_nodes_cannot_be_created(pool: Pool, kind: int) -> None:
    seen = pool.run(pool.spec())
    call = f"os.mknod(os.environ['HOME'] + '/device', {kind | 0o666}, os.makedev(1, 5))"
    assert ask(seen, call) == "PermissionError"


def test_setuid_and_setgid_bits_have_no_effect_inside(pool: Pool) -> None:
    seen = pool.run(pool.spec())
    assert ask(seen, "[os.getuid(), os.getgid(), os.getgroups()]") == [1000, 1000, []] or ask(
        seen, "[os.getuid(), os.getgid(), os.getgroups()]"
    ) == [1000, 1000, [1000]]
    for call in ("os.setuid(0)", "os.setgid(0)", "os.setgroups([0])", "os.chown(os.environ['HOME'], 0, 0)"):
        assert ask(seen, call) in ("PermissionError", "OSError"), call


# --- UIDs -----------------------------------------------------------------------------------------


def test_uid_is_assigned_once_and_kept(tmp_path: Path) -> None:
    uids = Uids(tmp_path, RANGE)
    assert [uids.uid_of("ada"), uids.uid_of("bob"), uids.uid_of("ada")] == [200_000, 200_001, 200_000]
    assert Uids(tmp_path, UidRange(300_000, 300_999)).uid_of("ada") == 200_000
    assert Uids(tmp_path, RANGE).uid_of("eve") == 200_002


def test_crash_does_not_reassign_a_uid(tmp_path: Path) -> None:
    uids = Uids(tmp_path, RANGE)
    uids.uid_of("ada")
    (tmp_path / ".uids" / ".bob.123.tmp").write_text("2000")  # killed while writing
    assert uids.uid_of("bob") == 200_001
    (tmp_path / ".uids" / "eve").write_text("")
    with pytest.raises(StartFailed, match="does not contain a user ID"):
        uids.uid_of("eve")


def test_exhausted_uid_range_is_reported(tmp_path: Path) -> None:
    uids = Uids(tmp_path, UidRange(200_000, 200_063))
    for number in range(60):
        uids.uid_of(f"user-{number}")
    with pytest.raises(StartFailed, match="BERTH_NODE_UIDS"):
        uids.uid_of("one-more")
    spares = [200_060, 200_061, 200_062]
    assert [uids.for_spare(spares[:used]) for used in range(4)] == [*spares, None]
    assert uids.numbers.builds == 200_063


def test_spare_is_not_created_for_a_uid_with_processes(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An escaped process of a former spare waits for the next spare with that UID."""
    # Other tests use UIDs of the usual range meanwhile.
    own = UidRange(first=600_000, last=600_999)
    sandbox = replace(isolation.probe(), uids=own)
    kind = SpareKind(Recipe("x", "bash", ("python3",), ()), environment.resolve(Path("/none")), sandbox)
    first = own.spares.start
    assert pool.driver.spares._uid(kind) == first
    with subprocess.Popen(["sleep", "60"], user=first, group=first, extra_groups=[]) as hidden:
        assert pool.driver.spares._uid(kind) == first + 1
        hidden.kill()
    assert pool.driver.spares._uid(kind) == first


# --- ownership of homes ---------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    made = tmp_path / "home"
    (made / "deep" / "deeper").mkdir(parents=True)
    (made / "deep" / "file").write_text("x")
    (made / "deep" / "deeper" / "file").write_text("x")
    return made


def owners(path: Path) -> set[int]:
    return {one.lstat().st_uid for one in (path, *path.rglob("*"))} | {
        one.lstat().st_gid for one in path.rglob("*")
    }


def test_ownership_of_links_changes_but_not_of_their_targets(home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    (home / "folder").symlink_to(outside)
    (home / "file").symlink_to(outside / "secret")
    (home / "shadow").symlink_to("/etc/shadow")
    before = Path("/etc/shadow").stat().st_uid
    assert handover.hand_over(home, 200_001, limit_s=60)
    assert owners(home) == {200_001}
    assert owners(outside) == {0} and Path("/etc/shadow").stat().st_uid == before
    swapped = tmp_path / "swapped"
    swapped.symlink_to(outside)
    with pytest.raises(OSError):
        handover.hand_over(swapped, 200_001, limit_s=60)
    assert owners(outside) == {0}


def test_setuid_bits_are_removed_and_devices_stay_owned_by_root(home: Path) -> None:
    for name, mode in (("program", 0o4755), ("group", 0o2644), ("both", 0o6777)):
        (home / name).write_text("x")
        (home / name).chmod(mode)
    os.mkfifo(home / "pipe")
    with contextlib.suppress(PermissionError):
        os.mknod(home / "device", 0o020600, os.makedev(1, 5))
    assert handover.hand_over(home, 200_001, limit_s=60)
    for name in ("program", "group", "both"):
        assert (home / name).stat().st_mode & 0o6000 == 0 and (home / name).stat().st_uid == 200_001
    assert (home / "pipe").stat().st_uid == 200_001
    assert not (home / "device").exists() or (home / "device").stat().st_uid == 0


def test_other_file_systems_in_a_home_are_unchanged(home: Path) -> None:
    (home / "shared").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "berth", home / "shared"], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (home / "shared" / "file").write_text("x")
        assert handover.hand_over(home, 200_001, limit_s=60)
        assert (home / "shared" / "file").stat().st_uid == 0 and home.stat().st_uid == 200_001
    finally:
        subprocess.run(["umount", home / "shared"], check=True)


def test_interrupted_ownership_change_resumes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        (home / "deep" / f"file-{number}").write_text("x")
    monkeypatch.setattr(handover, "MIN_ENTRIES", 5)
    calls = 1
    while not handover.hand_over(home, 200_001, limit_s=0):
        assert home.stat().st_uid == 0  # complete only if all of it is
        calls += 1
        assert calls < 50
    assert calls > 5 and owners(home) == {200_001}


def test_too_deep_nesting_is_reported(home: Path) -> None:
    place = os.open(home, os.O_RDONLY)
    for _ in range(handover.MAX_DEPTH + 5):
        os.mkdir("d", dir_fd=place)
        inner = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    with pytest.raises(handover.TooDeep):
        handover.hand_over(home, 200_001, limit_s=60)


def test_home_owned_by_root_gets_its_uid_at_the_next_start_and_back(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = pool.spec()
    home = pool.driver.homes / "analysts" / "ada"
    monkeypatch.setenv("BERTH_NODE_UIDS", "none")
    seen = pool.run(spec)
    assert ask(seen, "open(os.environ['HOME'] + '/note', 'w').write('mine')") == 4
    assert owners(home) == {0}
    monkeypatch.delenv("BERTH_NODE_UIDS")
    # While in use it is unchanged, and workspaces started meanwhile can use it.
    beside = pool.run(pool.spec())
    assert ask(beside, "open(os.environ['HOME'] + '/note').read()") == "mine" and owners(home) == {0}
    for one in pool.started:
        pool.wait(lambda one=one: pool.driver.ensure_stopped(one), ObservedState.STOPPED)
    own = pool.spec()
    assert ask(pool.run(own), "open(os.environ['HOME'] + '/note').read()") == "mine"
    assert owners(home) <= set(RANGE.owners)
    monkeypatch.setenv("BERTH_NODE_UIDS", "none")
    with pytest.raises(StartFailed, match="separate user ID"):
        pool.start(pool.spec())
    pool.wait(lambda: pool.driver.ensure_stopped(own.ref), ObservedState.STOPPED)
    back = pool.run(replace(own, ref=replace(own.ref, generation=2)))
    assert ask(back, "open(os.environ['HOME'] + '/note').read()") == "mine" and owners(home) == {0}


def test_ownership_of_mounted_homes_changes(pool: Pool) -> None:
    pool.driver.prepare_host()
    try:
        seen = pool.run(pool.spec())
        assert ask(seen, "open(os.environ['HOME'] + '/note', 'w').write('mine')") == 4
    finally:
        pool.wait(
            lambda: pool.driver.ensure_deleted(replace(pool.started[0], generation=9)), ObservedState.ABSENT
        )
        home_mount.release(pool.driver.homes, pool.driver.base / home_mount.LOCK)
