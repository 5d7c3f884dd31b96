"""Suspend of local workspaces over the fake NVIDIA driver.

They run without a sandbox, which could not load the fake libraries.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from portal.cli.main import main
from provisioning.drivers.local import suspending
from provisioning.drivers.local.state import GpuShare, WorkspaceDir
from provisioning.drivers.local.suspending import Suspender, SuspendProblem, SuspendReport
from provisioning.gpu.suspend import grant
from provisioning.gpu.suspend.grant import Trial
from provisioning.gpu.suspend.states import TargetState
from provisioning.host import status
from provisioning.host.folder import NodeFolder
from provisioning.machine_id import machine_id
from provisioning.types import AppSpec, Observation, ObservedState, ResourceRequest, WorkspaceSpec
from tests.gpu.fake_nvml import FakeLibrary, h200, installed
from tests.gpu.suspend.conftest import APP, GPU_A, FakeDriver
from tests.provisioning.local.local_support import Pool, ask

DRIVER = "580.65.06"
RUNNING, CHECKPOINTED = 0, 2

# An app that starts processes with memory on a GPU. It was granted none, so it names the GPU itself.
SERVER = f"""
import http.server, json, os, subprocess, sys, urllib.parse
port = int(sys.argv[1])
APP = {APP!r}
others = []
def start():
    env = {{**os.environ, "CUDA_VISIBLE_DEVICES": "{GPU_A}"}}
    made = subprocess.Popen([sys.executable, "-c", APP, "100000", "3"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, env=env)
    assert made.stdout.readline() == "ready\\n"
    others.append(made)
    return made.pid
def look(which):
    others[which].stdin.write("?\\n")
    others[which].stdin.flush()
    return others[which].stdout.readline().strip()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        text = urllib.parse.unquote(urllib.parse.urlsplit(self.path).query)
        value = eval(text, {{"start": start, "look": look}}) if text else None
        self.wfile.write(json.dumps(value).encode())
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class Running:
    """A workspace with `count` CUDA processes."""

    def __init__(self, pool: Pool, spec: WorkspaceSpec, seen: Observation, count: int) -> None:
        self.pool, self.spec, self.seen = pool, spec, seen
        self.pids = [self.ask("start()") for _ in range(count)]
        self.name = spec.ref.external_name
        self.folder = WorkspaceDir(pool.driver.base, self.name)

    def ask(self, expression: str) -> Any:
        return ask(self.seen, expression)

    def works(self) -> bool:
        return all(self.ask(f"look({which})") == "same" for which in range(len(self.pids)))

    @property
    def suspending(self) -> Suspender:
        return self.pool.driver.suspending()


@pytest.fixture
def run(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Running]]:
    pool = Pool(tmp_path, sandbox="none")
    # A successful trial, which needs a real machine.
    monkeypatch.setattr(grant, "kernel_module", lambda _root: DRIVER)
    keep_trial(pool)

    def start(count: int = 2, memory_mib: int = 2048) -> Running:
        env = {"LD_LIBRARY_PATH": str(driver.folder)}
        app = AppSpec(
            argv=(sys.executable, "-c", SERVER, "{port}"), env=env, start_timeout_s=60, stop_timeout_s=2
        )
        spec = pool.spec(app=app, resources=ResourceRequest(cpu_milli=2000, memory_mib=memory_mib))
        pool.start(spec)
        seen = pool.wait(lambda: pool.driver.observe(spec.ref), ObservedState.RUNNING, timeout_s=60)
        return Running(pool, spec, seen, count)

    yield start
    pool.close()


def keep_trial(pool: Pool, **changes: Any) -> None:
    base = {"uuid": GPU_A, "model": "H100", "driver": DRIVER, "machine": machine_id(pool.driver.instance)}
    grant.save(pool.driver.base, Trial(**{**base, **changes}))


def problem(report: SuspendReport) -> tuple[TargetState | None, str]:
    return report.end, str(report.problem)


def test_app_state_is_kept_while_suspended(driver: FakeDriver, run: Callable[..., Running]) -> None:
    one = run()
    report = one.suspending.suspend(one.name)
    assert problem(report) == (TargetState.SUSPENDED, "") and report.gpus == (GPU_A,)
    assert report.held_bytes == 2 * ((4 << 20) + 100_000)
    assert [driver.state(pid) for pid in one.pids] == [CHECKPOINTED] * 2
    assert list((driver.folder / "dev/0").iterdir()) == []
    # Otherwise it keeps running: its app answers, and the driver observes it.
    assert one.ask("1 + 1") == 2
    assert one.pool.driver.observe(one.spec.ref).state is ObservedState.RUNNING
    assert problem(one.suspending.suspend(one.name)) == (TargetState.SUSPENDED, "")
    assert problem(one.suspending.resume(one.name)) == (TargetState.RUNNING, "")
    assert one.works() and not one.folder.suspended_file.exists()
    assert problem(one.suspending.resume(one.name)) == (TargetState.RUNNING, "")


def test_operator_suspends_and_resumes_by_command(
    driver: FakeDriver, run: Callable[..., Running], capsys: pytest.CaptureFixture[str]
) -> None:
    one = run(1)
    workspace = one.spec.ref.workspace_id

    def berth(verb: str) -> tuple[int, str]:
        code = main(["node", verb, workspace, "--home", str(one.pool.home)])
        said = capsys.readouterr()
        return code, said.out + said.err

    with one.folder.operation():
        code, said = berth("suspend")
        assert code == 1 and "Another operation on the workspace is in progress" in said
    driver.fault("checkpoint", "error", 2)
    code, said = berth("suspend")
    assert (
        code == 1
        and "(checkpoint CUDA_ERROR_OUT_OF_MEMORY) All processes of the workspace are running." in said
    )
    code, said = berth("suspend")
    assert code == 0 and "0.0 GiB in the workspace's memory" in said and "Variables are kept" in said
    assert driver.state(one.pids[0]) == CHECKPOINTED
    fact = status._workspaces(NodeFolder(one.pool.home.resolve()))
    assert fact.text == f"1 running; suspended, until berth node resume: {workspace}"
    code, said = berth("resume")
    assert code == 0 and "All processes of the workspace are running." in said and one.works()


def test_impossible_suspend_is_refused_before_any_change(
    driver: FakeDriver, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = run(0)
    suspend = one.suspending.suspend
    assert problem(suspend("ws-" + "0" * 32)) == (TargetState.RUNNING, SuspendProblem.NOT_RUNNING)
    assert problem(suspend(one.name)) == (TargetState.RUNNING, SuspendProblem.NO_CUDA)
    one.pids.append(one.ask("start()"))
    keep_trial(one.pool, simulated=True)
    assert suspend(one.name).detail == grant.SIMULATED
    keep_trial(one.pool, model="H200")
    assert problem(suspend(one.name)) == (TargetState.RUNNING, SuspendProblem.OTHER_MODEL)
    keep_trial(one.pool)
    monkeypatch.setattr(suspending.cgroups, "memory_free_bytes", lambda _groups: 100 << 20)
    report = suspend(one.name)
    assert problem(report) == (TargetState.RUNNING, SuspendProblem.NO_ROOM)
    assert report.short is not None and report.short.where == suspending.WORKSPACE
    monkeypatch.setattr(suspending, "MEMINFO", driver.folder / "meminfo")
    (driver.folder / "meminfo").write_text("MemTotal: 1 kB\nMemAvailable:   65536 kB\n")
    report = suspend(one.name)
    assert report.short is not None and report.short.where == suspending.NODE
    assert driver.calls() == [] and one.works()


def test_workspace_with_a_gpu_share_is_not_suspended(driver: FakeDriver, run: Callable[..., Running]) -> None:
    """Others may use that GPU, so its memory may be gone at resume."""
    one = run()
    record = one.folder.record()
    assert record is not None
    part = GpuShare(GPU_A, 40_000, 80_000)
    one.folder.write_record(type(record)(**{**_fields(record), "shares": (part,)}))
    report = one.suspending.suspend(one.name)
    assert problem(report) == (TargetState.RUNNING, SuspendProblem.SHARED)
    assert report.detail == GPU_A and one.works() and suspending.load(one.folder) is None
    one.folder.write_record(record)
    assert problem(one.suspending.suspend(one.name)) == (TargetState.SUSPENDED, "")


def test_failed_suspend_leaves_the_app_running(driver: FakeDriver, run: Callable[..., Running]) -> None:
    one = run()
    driver.fault("checkpoint", "error", 2, pid=max(one.pids))
    report = one.suspending.suspend(one.name)
    assert problem(report) == (TargetState.RUNNING, SuspendProblem.REFUSED)
    assert report.detail == "checkpoint CUDA_ERROR_OUT_OF_MEMORY"
    assert one.works() and not one.folder.suspended_file.exists()


def test_process_that_keeps_gpu_memory_is_not_suspended(
    driver: FakeDriver, run: Callable[..., Running]
) -> None:
    one = run()
    driver.fault("checkpoint", "keep", pid=one.pids[0])
    assert problem(one.suspending.suspend(one.name)) == (TargetState.RUNNING, SuspendProblem.STILL_THERE)
    assert one.works()


def test_process_that_opens_cuda_during_suspend_is_suspended(
    driver: FakeDriver, run: Callable[..., Running]
) -> None:
    one = run(1)
    driver.fault("checkpoint", "wait")
    reports: list[SuspendReport] = []
    going = threading.Thread(target=lambda: reports.append(one.suspending.suspend(one.name)))
    going.start()
    until = time.monotonic() + 60
    while "lock" not in driver.calls() and time.monotonic() < until:
        time.sleep(0.02)
    one.pids.append(one.ask("start()"))
    driver.go_on()
    going.join(60)
    assert problem(reports[0]) == (TargetState.SUSPENDED, "")
    assert [driver.state(pid) for pid in one.pids] == [CHECKPOINTED] * 2
    one.suspending.resume(one.name)
    assert one.works()


def test_process_locked_by_a_killed_command_resumes(driver: FakeDriver, run: Callable[..., Running]) -> None:
    one = run()
    # The state after a kill between both calls: recorded, with one process locked.
    driver.fault("checkpoint", "die_before", pid=min(one.pids))
    driver.fault("unlock", "die_before", times=2)
    report = one.suspending.suspend(one.name)
    assert problem(report) == (None, SuspendProblem.REFUSED)
    kept = suspending.load(one.folder)
    assert kept is not None and not kept.is_complete
    driver.mend()
    with one.folder.operation():
        # Another command is running: it is not disturbed.
        assert one.suspending.recover() == ()
    one.pool.driver.warm_up(owner=os.getpid())
    assert [driver.state(pid) for pid in one.pids] == [RUNNING] * 2 and one.works()
    assert suspending.load(one.folder) is None and one.suspending.recover() == ()


def test_suspended_workspace_can_be_stopped(driver: FakeDriver, run: Callable[..., Running]) -> None:
    one = run()
    assert problem(one.suspending.suspend(one.name)) == (TargetState.SUSPENDED, "")
    driver_of = one.pool.driver
    one.pool.wait(lambda: driver_of.ensure_stopped(one.spec.ref), ObservedState.STOPPED, timeout_s=60)
    assert problem(one.suspending.resume(one.name)) == (TargetState.RUNNING, SuspendProblem.NOT_RUNNING)
    # The stored state belongs to that start only.
    record = one.folder.record()
    assert record is not None and suspending.load(one.folder) is not None
    one.folder.write_record(type(record)(**{**_fields(record), "generation": record.generation + 1}))
    assert suspending.load(one.folder) is None


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in type(record).__dataclass_fields__}


def test_node_provides_suspend_after_a_successful_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(tmp_path, sandbox="none")
    driver = "570.124.06"

    def provides() -> bool:
        with installed(FakeLibrary([h200()])):
            return suspending.PROVIDES_SUSPEND in pool.driver.inventory().nodes[0].provides

    assert not provides()
    keep_trial(pool, driver=driver)
    # The kernel here has no such module.
    assert not provides()
    monkeypatch.setattr(grant, "kernel_module", lambda _root: driver)
    assert provides()
    for changes in ({"simulated": True}, {"problem": "lost"}, {"driver": DRIVER}):
        keep_trial(pool, **{"driver": driver, **changes})
        assert not provides()
