from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning.agent.apps.app_host import APP_OOM_SCORE
from provisioning.drivers.local.launcher import OOM_ABOVE_SERVICES, OOM_SCORE
from provisioning.service import supervisor as module
from provisioning.service.environ import MARKER, ROOT
from provisioning.service.processes import environ_of
from provisioning.service.program import Program
from provisioning.service.supervisor import ServiceState, Supervisor

LIMIT_S = 20.0


class Watched(Supervisor):
    """A supervisor with recorded state changes and messages to wait for."""

    def __init__(self, *programs: Program, logs_dir: Path, hidden: tuple[str, ...] = ()) -> None:
        self.words: list[str] = []
        self.states: list[tuple[str, ServiceState]] = []
        self._event = asyncio.Event()
        super().__init__(
            programs,
            instance_id="test",
            logs_dir=logs_dir,
            hidden=hidden,
            changed=self._note,
            announce=self.words.append,
        )

    def _note(self) -> None:
        for name, service in self.services.items():
            last = next((state for seen, state in reversed(self.states) if seen == name), None)
            if service.state is not last:
                self.states.append((name, service.state))
        self._event.set()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not true():
                self._event.clear()
                await self._event.wait()


def program(
    name: str,
    code: str,
    tmp_path: Path,
    *,
    after: tuple[str, ...] = (),
    stop_timeout_s: float = 5.0,
    repair: Callable[[], str] | None = None,
) -> Program:
    """A Python program that is ready once it has created the file `NAME.ready`."""
    ready = tmp_path / f"{name}.ready"

    def answers(started_at: float) -> bool:
        return ready.exists() and ready.stat().st_mtime >= started_at - 0.01

    return Program(
        name=name,
        argv=(
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import os, pathlib, signal, sys, time\nREADY = pathlib.Path({str(ready)!r})\n{code}",
        ),
        environ={"PATH": os.environ["PATH"]},
        answers=answers,
        after=after,
        stop_timeout_s=stop_timeout_s,
        repair=repair,
    )


SERVE = "READY.write_text(''); signal.pause()"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_DELAY_S", 0.02)
    monkeypatch.setattr(module, "LONGEST_DELAY_S", 0.1)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


async def test_services_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    watched = Watched(
        program("first", SERVE, tmp_path),
        program("second", SERVE, tmp_path, after=("first",)),
        program("third", SERVE, tmp_path, after=("second",)),
        logs_dir=tmp_path,
    )
    watched.start()
    async with asyncio.timeout(LIMIT_S):
        await watched.wait_ready()
    assert [name for name, state in watched.states if state is ServiceState.RUNNING] == [
        "first",
        "second",
        "third",
    ]
    starting = watched.states.index(("second", ServiceState.STARTING))
    assert starting > watched.states.index(("first", ServiceState.RUNNING))
    pids = [service.process.pid for service in watched.services.values() if service.process]
    assert environ_of(pids[0])[MARKER] == "test:first"
    await watched.stop()
    assert [name for name, state in watched.states if state is ServiceState.STOPPED] == [
        "third",
        "second",
        "first",
    ]
    assert all(is_gone(pid) for pid in pids)


async def test_killed_service_is_restarted_and_logged(tmp_path: Path) -> None:
    watched = Watched(program("one", SERVE, tmp_path), logs_dir=tmp_path)
    watched.start()
    async with asyncio.timeout(LIMIT_S):
        await watched.wait_ready()
    service = watched.services["one"]
    assert service.process is not None
    first = service.process.pid
    os.kill(first, signal.SIGKILL)
    await watched.until(lambda: service.restarts == 1 and service.state is ServiceState.RUNNING)
    assert service.process is not None and service.process.pid != first
    assert watched.words == ["one was killed by SIGKILL. Restarting in 0.0 s.", "one is running again."]
    await watched.stop()


async def test_restarts_never_stop_and_back_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_DELAY_S", 0.03)
    delays: list[float] = []
    real = asyncio.sleep

    async def recorded(delay_s: float) -> None:
        if delay_s not in {module.PROBE_INTERVAL_S, module.ROTATE_INTERVAL_S}:
            delays.append(delay_s)
        await real(0.001 if delay_s < 1 else delay_s)

    monkeypatch.setattr(module.asyncio, "sleep", recorded)
    watched = Watched(
        program("one", "print('no config: giving up'); sys.exit(3)", tmp_path), logs_dir=tmp_path
    )
    watched.start()
    await watched.until(lambda: watched.services["one"].restarts >= 7)
    assert delays[:5] == [0.03, 0.06, 0.1, 0.1, 0.1]
    assert "one ended with exit code 3; last log line: no config: giving up." in watched.words[0]
    await watched.stop()
    assert watched.services["one"].state is ServiceState.STOPPED


async def test_secrets_in_a_log_are_not_repeated(tmp_path: Path) -> None:
    watched = Watched(
        program("one", "sys.exit('cannot fetch http://x/s3cr3t/routes')", tmp_path),
        logs_dir=tmp_path,
        hidden=("s3cr3t",),
    )
    watched.start()
    await watched.until(lambda: bool(watched.words))
    assert "cannot fetch http://x/…/routes" in watched.words[0]
    await watched.stop()


async def test_repair_runs_after_repeated_failures(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("")

    def repair() -> str:
        broken.unlink()
        return "The data was set aside."

    code = f"sys.exit('broken') if os.path.exists({str(broken)!r}) else None\n{SERVE}"
    watched = Watched(program("one", code, tmp_path, repair=repair), logs_dir=tmp_path)
    watched.start()
    await watched.until(lambda: watched.services["one"].state is ServiceState.RUNNING)
    assert watched.services["one"].restarts == module.REPAIR_AFTER_FAILURES
    assert "The data was set aside." in watched.words[-2]
    await watched.stop()


async def test_missing_program_is_reported_and_retried(tmp_path: Path) -> None:
    missing = Program(
        name="one", argv=("/nowhere/program",), environ={"PATH": "/usr/bin"}, answers=lambda _: False
    )
    watched = Watched(missing, logs_dir=tmp_path)
    watched.start()
    await watched.until(lambda: len(watched.words) >= 2)
    assert "could not start /nowhere/program: No such file or directory" in watched.words[0]
    await watched.stop()


async def test_unopenable_log_is_reported(tmp_path: Path) -> None:
    watched = Watched(program("one", SERVE, tmp_path), logs_dir=tmp_path / "missing")
    watched.start()
    await watched.until(lambda: bool(watched.words))
    assert "one could not be started: No such file or directory" in watched.words[0]
    await watched.stop()


async def test_process_that_ignores_term_is_killed(tmp_path: Path) -> None:
    code = (
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SERVE.replace('signal.pause()', 'time.sleep(600)')}"
    )
    watched = Watched(program("one", code, tmp_path, stop_timeout_s=0.2), logs_dir=tmp_path)
    watched.start()
    async with asyncio.timeout(LIMIT_S):
        await watched.wait_ready()
    process = watched.services["one"].process
    assert process is not None
    began = time.monotonic()
    await watched.stop()
    assert is_gone(process.pid)
    assert time.monotonic() - began < 5


async def test_children_of_a_killed_service_end_unless_in_their_own_session(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"""
child = os.fork()
if child == 0:
    time.sleep(600)
apart = os.fork()
if apart == 0:
    os.setsid()
    pathlib.Path({str(tmp_path / "apart")!r}).write_text("")
    time.sleep(600)
while not os.path.exists({str(tmp_path / "apart")!r}):
    time.sleep(0.005)
written = pathlib.Path({str(tmp_path / "pids.new")!r})
written.write_text(f"{{child}} {{apart}}")
written.replace({str(pids)!r})
{SERVE}
"""
    watched = Watched(program("one", code, tmp_path), logs_dir=tmp_path)
    watched.start()
    async with asyncio.timeout(LIMIT_S):
        await watched.wait_ready()
    service = watched.services["one"]
    child, apart = (int(pid) for pid in pids.read_text().split())
    try:
        assert service.process is not None
        os.kill(service.process.pid, signal.SIGKILL)
        await watched.until(lambda: service.state is ServiceState.RESTARTING)
        async with asyncio.timeout(LIMIT_S):
            while not is_gone(child):
                await asyncio.sleep(0.01)
        assert not is_gone(apart)
    finally:
        os.kill(apart, signal.SIGKILL)
        await watched.stop()
        again = int(pids.read_text().split()[1])
        if again != apart:
            os.kill(again, signal.SIGKILL)


async def test_stop_works_during_a_restart_delay(tmp_path: Path) -> None:
    watched = Watched(
        program("one", "sys.exit(1)", tmp_path),
        program("two", SERVE, tmp_path, after=("one",)),
        logs_dir=tmp_path,
    )
    watched.start()
    await watched.until(lambda: watched.services["one"].state is ServiceState.RESTARTING)
    async with asyncio.timeout(LIMIT_S):
        await watched.stop()
    assert {service.state for service in watched.services.values()} == {ServiceState.STOPPED}
    assert watched.services["two"].started_at == 0.0


CAP_SYS_RESOURCE = 24
SHOW = "print(open('/proc/self/oom_score_adj').read().strip(), flush=True)"
LAUNCHED = f"""
import os, subprocess, sys
from provisioning.service import oom, supervisor
score = oom.spare_supervisor()
{SHOW}
launch = [sys.executable, '-I', '-S', str(supervisor.LAUNCHER), str(os.getpid()), '15', str(score), '-']
sys.exit(subprocess.call([*launch, sys.executable, '-I', '-S', '-c', {SHOW!r}]))
"""


@pytest.mark.parametrize("may_lower", [True, False])
def test_services_have_higher_oom_scores_than_the_supervisor(may_lower: bool) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    argv = [sys.executable, "-c", LAUNCHED]
    effective = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    assert effective is not None
    may = bool(int(effective[1], 16) >> CAP_SYS_RESOURCE & 1)
    if may and not may_lower:
        if shutil.which("setpriv") is None:
            pytest.skip("nothing here takes a capability away")
        argv = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource", *argv]
    elif may_lower and not may:
        pytest.skip("needs CAP_SYS_RESOURCE")
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    supervisor_score, service_score = map(int, done.stdout.split())
    assert (supervisor_score, service_score) == ((own - 500, own) if may_lower else (own, own + 50))
    # User processes have higher scores than both (`provisioning/drivers/local/launcher.py`).
    assert service_score < max(service_score + OOM_ABOVE_SERVICES, OOM_SCORE) < APP_OOM_SCORE
