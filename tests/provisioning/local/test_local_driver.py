"""The local driver beyond the contract: isolation, limits, identity, hostile folders, sudden death."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
from dataclasses import replace

import pytest
from local_support import PROBE, ask

from provisioning.drivers.local import cgroups, gpus, processes, start
from provisioning.drivers.local import host as local_host
from provisioning.drivers.local.state import WorkspaceDir
from provisioning.errors import (
    Conflict,
    InvalidSpec,
    MissingDependency,
    NoCapacity,
    StaleCommand,
    StartFailed,
)
from provisioning.types import (
    DeviceGrant,
    Isolation,
    LimitedResource,
    LimitEnforcement,
    NodePlacement,
    ObservedState,
    Placement,
    ResourceRequest,
    WorkspaceRef,
)

RUNNING, FAILED, STOPPED = ObservedState.RUNNING, ObservedState.FAILED, ObservedState.STOPPED


def test_workspace_without_sandbox_runs_with_a_warning(make_pool):
    pool = make_pool(sandbox="none")
    (node,) = pool.driver.inventory().nodes
    assert node.isolation is Isolation.NONE
    assert any("not isolated" in warning for warning in node.warnings)
    seen = pool.run(pool.spec())
    home = pool.home / "homes" / "analysts" / "ada"
    assert ask(seen, "os.environ['HOME']") == str(home)
    assert ask(seen, "os.environ['TMPDIR']").startswith(str(pool.home / "local"))
    assert ask(seen, "'DATABASE_URL' in os.environ or 'BERTH_SECRET_KEY' in os.environ") is False


def test_multi_user_mode_without_sandbox_is_refused(make_pool, monkeypatch):
    monkeypatch.setenv("BERTH_MULTIUSER", "1")
    pool = make_pool(sandbox="none")
    with pytest.raises(MissingDependency) as caught:
        pool.start(pool.spec())
    assert caught.value.code == "isolation_required"
    assert not (pool.home / "local").exists()


def test_inventory_lists_enforced_limits(make_pool):
    (node,) = make_pool().driver.inventory().nodes
    assert node.cpu_milli >= 1000 and node.memory_mib > 0 and node.disk_mib > 0
    assert set(node.programs) == {"jupyter-lab", "marimo", "code-server", "rserver", "bash", "git", "ssh"}
    assert any("The notebook environment" in warning for warning in node.warnings)
    if node.limits is LimitEnforcement.RLIMIT:
        assert any("cannot be limited" in warning for warning in node.warnings)
    if not gpus.scan().devices:
        assert node.accelerator_note


def test_exceeded_memory_limit_is_the_reported_cause(make_pool):
    pool = make_pool()
    if pool.driver.inventory().nodes[0].limits is not LimitEnforcement.CGROUP:
        pytest.skip("no control group can be written here")
    greedy = "x = []\nwhile True: x.append(bytearray(b'x' * (8 << 20)))"
    spec = pool.spec("python3", "-c", greedy, resources=ResourceRequest(cpu_milli=1000, memory_mib=64))
    pool.start(spec)
    seen = pool.wait(lambda: pool.driver.observe(spec.ref), FAILED)
    assert (seen.code, seen.exit_code) == ("out_of_memory", 137)
    assert "64 MiB" in seen.message


def test_out_of_memory_on_the_machine_is_not_blamed_on_the_workspace(make_pool):
    pool = make_pool()
    host = cgroups.detect(pool.driver.instance)
    if host.reason:
        pytest.skip(host.reason)
    spec = pool.spec()
    seen = pool.run(spec)
    # The parent group of all workspaces of this pool stands for the machine.
    around = next(
        parent / name
        for parent in host.parents
        for name in cgroups.LIMIT_FILES[LimitedResource.MEMORY]
        if (parent / name).exists()
    )
    around.write_text(str(64 << 20))
    assert cgroups.enclosing_memory_limit_mib(replace(host, parents=(around.parent,))) == 64
    with pytest.raises((OSError, ValueError)):  # missing or empty answer
        ask(seen, "len(bytearray(b'x' * (100 << 20)))")
    seen = pool.wait(lambda: pool.driver.observe(spec.ref), FAILED)
    assert seen.code == "machine_out_of_memory" and "limit of 256 MiB" in seen.message
    pool.driver.ensure_stopped(spec.ref)
    pool.wait(lambda: pool.driver.ensure_stopped(spec.ref), ObservedState.STOPPED, ObservedState.ABSENT)
    record = pool.driver._dir(spec.ref).record()
    assert record.oom_kills and record.kept_within_memory, "what it was stays when the groups are gone"


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EAGAIN, "its process limit. "), (errno.ENOMEM, "its memory limit. ")],
)
def test_failed_fork_is_not_reported_as_a_folder_error(make_pool, monkeypatch, number, words):
    def none(*_, **__):
        raise OSError(number, os.strerror(number))

    pool = make_pool()
    pool.driver.inventory()
    spec = pool.spec()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", none)
        with pytest.raises(StartFailed) as caught:
            pool.start(spec)
    assert words in caught.value.message and caught.value.retryable
    assert str(pool.home) not in caught.value.message
    pool.run(spec)


@pytest.mark.parametrize(
    ("files", "within"),
    [
        ({"memory.events": "low 0\nhigh 0\nmax 7\noom 0\noom_kill 2\n"}, True),
        ({"memory.events": "low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\n"}, False),
        ({"memory.limit_in_bytes": "67108864\n", "memory.max_usage_in_bytes": "60000000\n"}, True),
        ({"memory.limit_in_bytes": "67108864\n", "memory.max_usage_in_bytes": "67100672\n"}, False),
        ({}, False),
    ],
)
def test_own_memory_limit_of_a_group_is_recognized(tmp_path, files, within):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cgroups.kept_within_memory([tmp_path]) is within


def test_outer_cgroup_limit_bounds_the_offered_memory(tmp_path):
    inner = tmp_path / "container" / "berth-x"
    inner.mkdir(parents=True)
    held = cgroups.CgroupHost(2, (inner,))
    unheld = local_host.memory_mib(held)
    (tmp_path / "memory.max").write_text("max\n")
    assert local_host.memory_mib(held) == unheld > 0
    (inner.parent / "memory.max").write_text(f"{3 << 30}\n")
    assert local_host.memory_mib(held) == min(unheld, 3072 - local_host.RESERVE_MIB)


def test_without_cgroups_each_process_has_a_memory_limit(make_pool, monkeypatch):
    monkeypatch.setattr(
        cgroups, "detect", lambda instance: cgroups.CgroupHost(0, reason="none for this test")
    )
    pool = make_pool()
    (node,) = pool.driver.inventory().nodes
    assert node.limits is LimitEnforcement.RLIMIT
    seen = pool.run(pool.spec())
    assert ask(seen, "__import__('resource').getrlimit(2)[0]") == 256 << 20
    assert ask(seen, "len(bytearray(512 << 20))") == "MemoryError"


def test_a_cpu_limit_is_in_force(make_pool):
    pool = make_pool()
    host = cgroups.detect(pool.driver.instance)
    if not host.version:
        pytest.skip("no control group can be written here")
    spec = pool.spec()
    pool.run(spec)
    groups = cgroups.paths(host, spec.ref.external_name)
    limits = [
        path.read_text().split()
        for g in groups
        for path in (g / "cpu.max", g / "cpu.cfs_quota_us")
        if path.exists()
    ]
    assert limits[0][0] == "50000"
    assert set(pool.pids(spec.ref)) >= cgroups.pids(groups) != frozenset()


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_app_has_its_own_progress_folder(make_pool, mode):
    pool = make_pool(sandbox=mode)
    seen = pool.run(pool.spec())
    folder = ask(seen, "os.environ['BERTH_PROGRESS_DIR']")
    assert ask(seen, f"open('{folder}/tokens', 'w').write('123456')") == 6
    assert ask(seen, f"os.stat('{folder}').st_mode & 0o777") == 0o700
    if seen_in_memory := pool.driver.inventory().nodes[0].isolation is not Isolation.NONE:
        assert ask(seen, f"os.stat('{folder}').st_dev == os.stat('/run').st_dev")
    assert seen_in_memory == (folder == "/run/berth/progress")


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_killed_agent_leaves_no_process_and_is_reported(make_pool, mode):
    pool = make_pool(sandbox=mode)
    spec = pool.spec()
    pool.run(spec)
    os.kill(pool.agent_pid(spec.ref), signal.SIGKILL)
    seen = pool.wait(lambda: pool.driver.observe(spec.ref), FAILED)
    assert seen.code == "agent_lost"
    assert pool.pids(spec.ref) == []


def test_process_without_environment_ends_without_a_sandbox(make_pool):
    pool = make_pool(sandbox="none")
    hide = (
        "import os, subprocess, sys\nsubprocess.Popen(['sleep', '987654'], env={}, start_new_session=True)\n"
    )
    spec = pool.spec("python3", "-c", hide + PROBE, "{port}")
    pool.run(spec)

    def sleepers() -> list[int]:
        found = processes.scan(pool.driver.instance, spec.ref.external_name)
        return [
            p.pid for p in found if (processes.PROC / str(p.pid) / "cmdline").read_bytes()[:6] == b"sleep\0"
        ]

    (pid,) = sleepers()
    pool.wait(lambda: pool.driver.ensure_stopped(spec.ref), STOPPED)
    assert processes.start_ticks(pid) is None


def test_probes_of_ended_processes_are_removed(make_pool):
    pool = make_pool()
    host = cgroups.detect(pool.driver.instance)
    if not host.version:
        pytest.skip("no control group can be written here")
    probe = f"{cgroups.PROBE}{cgroups._namespace()}-999999999-1"
    cgroups.create(host, probe, cpu_milli=1000, memory_mib=64)
    pool.driver.ensure_deleted(pool.spec().ref)
    assert not any(path.exists() for path in (*cgroups.paths(host, probe), *host.parents))


def test_process_is_never_identified_by_pid_only():
    ticks = processes.start_ticks(os.getpid())
    assert ticks is not None
    assert processes.send((os.getpid(), ticks + 1), signal.SIGKILL) is False
    assert processes.send((os.getpid(), ticks), signal.Signals(signal.SIGCONT)) is True


def test_a_reboot_is_recognised(make_pool, monkeypatch):
    pool = make_pool()
    spec = pool.spec()
    pool.run(spec)
    for pid in pool.pids(spec.ref):
        if b"bwrap" in (processes.PROC / str(pid) / "cmdline").read_bytes() or pid == pool.agent_pid(
            spec.ref
        ):
            os.kill(pid, signal.SIGKILL)
            break
    for process in processes.scan(pool.driver.instance, spec.ref.external_name):
        processes.send(process, signal.SIGKILL)
    pool.wait(lambda: pool.driver.observe(spec.ref), FAILED)
    monkeypatch.setattr(processes, "boot_id", lambda: "another boot")
    assert pool.driver.observe(spec.ref).code == "host_restarted"


def test_driver_does_not_follow_links_of_a_workspace(make_pool):
    pool = make_pool()
    secret = pool.home.parent / "secret.txt"
    secret.write_text("the portal's secret")
    spec = pool.spec()
    pool.run(spec)
    folder = WorkspaceDir(pool.driver.base, spec.ref.external_name)
    folder.app_log.unlink(missing_ok=True)
    folder.app_log.symlink_to(secret)
    assert "secret" not in pool.driver.logs(spec.ref)
    folder.state_file.unlink()
    os.mkfifo(folder.state_file)
    assert pool.driver.observe(spec.ref).state is ObservedState.STARTING
    folder.state_file.unlink()
    folder.state_file.write_text('{"phase": "ready", "generation": 1, "port": 6379}')
    assert pool.driver.observe(spec.ref).endpoint == ""
    folder.state_file.write_text('{"phase": "exited", "generation": 1, "reason": "app_exit"}')
    # A forged report of its end does not free its devices.
    seen = pool.driver.observe(spec.ref)
    assert seen.state is ObservedState.STOPPING or pool.pids(spec.ref) == []


def test_folder_locked_by_its_workspace_is_removed(make_pool):
    pool = make_pool()
    spec = pool.spec()
    pool.run(spec)
    folder = WorkspaceDir(pool.driver.base, spec.ref.external_name)
    (folder.run / "deep" / "deeper").mkdir(parents=True)
    (folder.run / "deep" / "deeper").chmod(0)
    (folder.run / "deep").chmod(0)
    pool.wait(lambda: pool.driver.ensure_deleted(spec.ref), ObservedState.ABSENT)
    assert not folder.path.exists()


def test_workspace_with_lost_record_is_unknown_until_deleted(make_pool):
    pool = make_pool()
    spec = pool.spec()
    pool.run(spec)
    (pool.driver.base / spec.ref.external_name / "record.json").unlink()
    seen = pool.driver.observe(spec.ref)
    assert (seen.state, seen.code) == (ObservedState.UNKNOWN, "unrecorded")
    with pytest.raises(Conflict):
        pool.start(spec)
    assert [item.ref for item in pool.driver.list_owned()] == [spec.ref]
    pool.wait(lambda: pool.driver.ensure_deleted(spec.ref), ObservedState.ABSENT)
    assert pool.pids(spec.ref) == []


def test_full_disk_fails_the_start_and_leaves_no_files(make_pool, monkeypatch):
    pool = make_pool()

    def full(self: WorkspaceDir, record: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    spec = pool.spec()
    with monkeypatch.context() as patch:
        patch.setattr(WorkspaceDir, "write_record", full)
        with pytest.raises(StartFailed) as caught:
            pool.start(spec)
    assert "full" in caught.value.message and "Free disk space" in caught.value.message
    assert not (pool.driver.base / spec.ref.external_name).exists()
    assert pool.run(spec).state is RUNNING


def test_start_interrupted_before_launch_is_absent_and_repeatable(make_pool, monkeypatch):
    class Death(BaseException):
        """The worker dies without cleaning up."""

    def die(*arguments: object) -> None:
        raise Death

    pool = make_pool()
    spec = pool.spec()
    with monkeypatch.context() as patch:
        patch.setattr(start, "spawn", die)
        patch.setattr(WorkspaceDir, "remove", lambda self: None)
        with pytest.raises(Death):
            pool.start(spec)
    assert WorkspaceDir(pool.driver.base, spec.ref.external_name).record() is not None
    assert pool.driver.observe(spec.ref).state is ObservedState.ABSENT
    assert pool.run(spec).state is RUNNING


def test_occupied_ports_are_skipped(make_pool):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        pool = make_pool(port_min=port, port_max=port, sandbox="none")
        with pytest.raises(StartFailed) as caught:
            pool.start(pool.spec())
    assert "port_min" in caught.value.message


def test_missing_granted_device_is_no_capacity(make_pool):
    pool = make_pool()
    placement = Placement((NodePlacement(pool.driver.node_name, (DeviceGrant("GPU-gone"),)),))
    with pytest.raises(NoCapacity):
        pool.driver.ensure_started(pool.spec(), placement)


@pytest.mark.parametrize("name", ["..", ".", "/etc", "a/b", "", "a:b", "-x", "a\nb", "a\0b", ".deleting-ada"])
def test_owner_and_team_names_cannot_leave_the_homes_folder(make_pool, name):
    pool = make_pool()
    for change in ({"owner": name}, {"team": name}):
        with pytest.raises(InvalidSpec):
            pool.driver.validate(replace(pool.spec(), **change))
        with pytest.raises(InvalidSpec):
            pool.driver.delete_home(**{"team": "analysts", "owner": "ada", **change})


def test_closed_generations_are_removed_after_a_week(make_pool):
    pool = make_pool()
    old, other = pool.spec(), pool.spec()
    pool.driver.ensure_deleted(old.ref)
    mark = pool.driver.base / ".closed" / old.ref.external_name
    with pytest.raises(StaleCommand):
        pool.start(old)
    os.utime(mark, (0, 0))
    pool.driver.ensure_deleted(other.ref)
    assert not mark.exists()


def test_workspace_id_must_be_a_uuid(make_pool):
    with pytest.raises(InvalidSpec):
        make_pool().driver.observe(WorkspaceRef("../../etc", 1))
