"""The runner against faulty children: it always ends, with the right verdict."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioning.gpu.check import process, runner, session
from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.process import Process, python, reap_abandoned
from provisioning.gpu.check.report import Report, render
from provisioning.gpu.check.types import Severity, Status, Verdict
from tests.gpu.check.conftest import TIMING
from tests.instance import eventually
from tests.suite.choice import sample

pytestmark = pytest.mark.engine
FAULTY_WORKER = Path(__file__).parent / "faulty_worker.py"
ADDRESS = Test("address", "address", 20.0)
SOON = Test("address", "address", 0.8)
"""For a child that never comes to its end."""
ENDS_WITHIN_S = 25.0
"""Whatever a child of these tests waits for takes longer."""


@pytest.fixture
def lie(check: Callable[..., Report]) -> Callable[..., Report]:
    def run(mode: str, **more: Any) -> Report:
        return check(more.pop("test", ADDRESS), child=(sys.executable, str(FAULTY_WORKER), mode), **more)

    return run


def codes(report: Report) -> set[str]:
    """The codes of findings, except whether NVML was read during so short a run."""
    return {f.code for f in report.findings if f.severity != Severity.INFO} - {"unwatched"}


def test_results_of_an_honest_child_are_accepted(lie: Callable[..., Report]) -> None:
    report = lie("honest")
    assert codes(report) == set(), render(report)
    assert [t.status for t in report.tests] == [Status.PASSED]


@pytest.mark.parametrize("mode", ["noise", "slow"])
def test_noise_and_slow_messages_are_tolerated(lie: Callable[..., Report], mode: str) -> None:
    report = lie(mode)
    assert [t.status for t in report.tests] == [Status.PASSED], render(report)


@pytest.mark.parametrize(
    "mode", sample(["silent", "exits", "half", "truncated", "killed"], 2, "the rows take the same path")
)
def test_no_report_is_inconclusive(lie: Callable[..., Report], mode: str) -> None:
    report = lie(mode)
    assert report.verdict == Verdict.INCONCLUSIVE
    assert "incomplete" in codes(report)
    if mode == "exits":
        assert "with code 7" in report.summary
        assert "the driver said no" in report.summary
    if mode == "killed":
        assert "by signal 9" in report.summary
    if mode == "truncated":
        assert "while sending a message" in report.summary


@pytest.mark.parametrize(
    "mode",
    sample([
        "no_json", "no_object", "wrong_nonce", "nonce_at_end", "no_nonce", "no_greeting", "twice_hello",
        "end_early", "miscounted", "out_of_turn", "other_result", "nan", "claims_hung", "flood", "long_line",
    ], 3, "the rows take the same path"),
)  # fmt: skip
def test_messages_of_a_faulty_worker_are_rejected(lie: Callable[..., Report], mode: str) -> None:
    started = time.monotonic()
    report = lie(mode)
    assert time.monotonic() - started < ENDS_WITHIN_S
    assert report.verdict == Verdict.INCONCLUSIVE
    assert "untrusted" in codes(report), render(report)
    assert all(t.status == Status.SKIPPED for t in report.tests)


def test_wrong_result_fails(lie: Callable[..., Report]) -> None:
    report = lie("wrong_answer")
    assert report.verdict == Verdict.FAIL
    assert report.tests[0].errors == 3


@pytest.mark.parametrize(
    ("mode", "patience"),
    sample(
        [("hangs", {}), ("hangs_between", {"between_s": 0.5}), ("hangs_at_start", {"child_start_s": 1.5})],
        3,
        "the rows take the same path",
    ),
)
def test_hanging_child_that_ignores_sigterm_is_killed(
    lie: Callable[..., Report], mode: str, patience: dict[str, float]
) -> None:
    started = time.monotonic()
    report = lie(mode, test=SOON, timing=replace(TIMING, **patience))
    assert time.monotonic() - started < ENDS_WITHIN_S
    assert (report.verdict, report.exit_code, report.abandoned) == (Verdict.HUNG, 5, False), render(report)
    assert "test_address" in codes(report) if mode == "hangs" else "check_hung" in codes(report)


def test_child_that_hangs_at_exit_is_killed_and_passes(lie: Callable[..., Report]) -> None:
    report = lie("hangs_at_exit", timing=replace(TIMING, exit_s=0.3))
    assert codes(report) == set()
    assert [t.status for t in report.tests] == [Status.PASSED]


def test_child_processes_of_the_child_are_ended(lie: Callable[..., Report], tmp_path: Path) -> None:
    lie("forks")
    pid = int((tmp_path / "helper").read_text())
    eventually(lambda: not _lives(str(pid)), limit_s=ENDS_WITHIN_S, what="it has ended")


def test_check_has_a_total_deadline(lie: Callable[..., Report]) -> None:
    report = lie("hangs", deadline_s=1.2, test=Test("address", "address", 60.0))
    assert (report.verdict, "deadline" in codes(report)) == (Verdict.INCONCLUSIVE, True)


def test_child_environment_has_no_secret(lie: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_SECRET_KEY", "x")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    names = set(lie("environment").software["blas"].split(","))
    assert "CUDA_VISIBLE_DEVICES" in names
    assert not names & {"BERTH_SECRET_KEY", "NVIDIA_TF32_OVERRIDE", "CUDA_LAUNCH_BLOCKING"}


def test_unkillable_process_is_abandoned(lie: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals are suppressed, as no test can put a process into the kernel's D state."""
    spared: list[int] = []

    def powerless(pid: int, number: int) -> None:
        spared.append(pid)

    monkeypatch.setattr(process.os, "killpg", powerless)
    started = time.monotonic()
    # The watcher ends on its own.
    report = lie("hangs", test=SOON, timing=replace(TIMING, term_s=0.1, kill_s=4))
    assert time.monotonic() - started < ENDS_WITHIN_S
    assert (report.verdict, report.exit_code, report.abandoned) == (Verdict.HUNG, 5, True)
    assert "abandoned" in codes(report)
    monkeypatch.undo()
    # It is reported even if it has ended meanwhile.
    assert len(process._abandoned) == 1
    for pid in set(spared):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    eventually(lambda: reap_abandoned() == 0, limit_s=ENDS_WITHIN_S, what="it is reaped")


@pytest.mark.parametrize("argv", [("/nonexistent/python",), (sys.executable, "-c", "pass")])
def test_watcher_that_does_not_start_is_inconclusive(
    check: Callable[..., Report], argv: tuple[str, ...]
) -> None:
    report = check(ADDRESS, watcher=argv)
    assert report.verdict == Verdict.INCONCLUSIVE
    assert codes(report) & {"internal", "watcher_died"}


def test_watcher_that_never_answers_is_inconclusive(check: Callable[..., Report]) -> None:
    timing = session.Timing(watcher_start_s=0.5, term_s=0.2, kill_s=2)
    report = check(ADDRESS, watcher=(sys.executable, "-c", "import time; time.sleep(60)"), timing=timing)
    assert (report.verdict, codes(report)) == (Verdict.HUNG, {"nvml_hung"})


def test_watcher_that_dies_during_the_check_is_inconclusive(check: Callable[..., Report]) -> None:
    code = (
        "import json,os,sys,time\n"
        "config=json.loads(sys.argv[1]); fd=int(sys.argv[2])\n"
        "os.write(fd,json.dumps({'kind':'ready','nonce':config['nonce'],'facts':{'uuid':config['uuid']},"
        "'before':{'processes':[],'unavailable':[]},'xid_events':True}).encode()+b'\\n')\n"
        "time.sleep(0.4)\n"
    )
    test = Test("bit_fade", "bit_fade", 20.0, params={"seconds": 5})
    report = check(test, watcher=(sys.executable, "-c", code))
    assert report.verdict == Verdict.INCONCLUSIVE
    assert "watcher_died" in codes(report)


def test_unknown_level_is_reported(check: Callable[..., Report]) -> None:
    report = check(level="thorough")
    assert (report.verdict, codes(report)) == (Verdict.INCONCLUSIVE, {"usage"})


def test_unexpected_errors_become_findings(
    lie: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*args: Any) -> None:
        raise RuntimeError("unforeseen")

    report = lie("honest", on_progress=explode)
    assert codes(report) == set()
    monkeypatch.setattr(session.Check, "judge", explode)
    assert codes(lie("honest")) == {"internal"}
    monkeypatch.setattr(session.Check, "_follow_child", explode)
    assert codes(lie("honest")) == {"internal"}


def test_two_checks_at_once_do_not_interfere(
    check: Callable[..., Report], lie: Callable[..., Report]
) -> None:
    reports: list[Report] = []
    threads = [threading.Thread(target=lambda: reports.append(lie("honest"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [codes(r) for r in reports] == [set(), set()]
    assert len({r.nonce for r in reports}) == 2


def test_no_file_descriptors_or_processes_leak(setup_gpu: Callable[..., None]) -> None:
    """In its own process, as threads of other tests open and close files."""
    setup_gpu()
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from provisioning.gpu.check.runner import run_check\n"
        "from tests.gpu.check.sim_cuda import UUID\n"
        "from tests.gpu.check.conftest import SIMULATION, TIMING\n"
        "from tests.gpu.check.test_runner import ADDRESS, FAULTY_WORKER\n"
        "def lie(mode):\n"
        "    how = dict(child=(sys.executable, str(FAULTY_WORKER), mode), timing=TIMING)\n"
        "    return run_check(UUID, 'quick', simulation=SIMULATION, plan=[ADDRESS], **how).tests[0].status\n"
        "def left():\n"
        "    children = ' '.join(each.read_text() for each in Path('/proc/self/task').glob('*/children'))\n"
        "    print(len(list(Path('/proc/self/fd').iterdir())), children.split())\n"
        "lie('honest')  # what is opened once and kept\n"
        "left()\n"
        "print(lie('honest'), lie('no_json'))\n"
        "left()\n"
    )
    root = Path(session.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=ENDS_WITHIN_S * 4
    )
    assert done.returncode == 0, done.stderr
    before, ended, after = done.stdout.splitlines()
    assert ended == f"{Status.PASSED} {Status.SKIPPED}"
    assert before.endswith(" []") and after == before


def test_interrupt_ends_the_processes(lie: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    original = Process.register

    def remember(self: Process, selector: Any) -> None:
        pids.append(self.pid)
        original(self, selector)

    def interrupt(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Process, "register", remember)
    monkeypatch.setattr(session.Check, "_follow_child", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lie("hangs", timing=TIMING)
    assert len(pids) == 2
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


def test_processes_end_with_a_killed_worker(setup_gpu: Callable[..., None], tmp_path: Path) -> None:
    """Otherwise an orphaned check would keep the device under load."""
    setup_gpu()
    code = (
        "from provisioning.gpu.check.runner import run_check\n"
        "from provisioning.gpu.check.plan import Test\n"
        "from provisioning.gpu.check.process import Process\n"
        "from tests.gpu.check.conftest import SIMULATION\n"
        "from tests.gpu.check.sim_cuda import UUID\n"
        "def show(p):\n"
        "    if p.phase == 'start': print('running', flush=True)\n"
        "run_check(UUID, 'quick', simulation=SIMULATION, on_progress=show,\n"
        "          plan=[Test('bit_fade', 'bit_fade', 60.0, params={'seconds': 30})])\n"
    )
    root = Path(session.__file__).parents[3]
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    with worker.stdout:
        assert worker.stdout.readline() == "running\n"
        children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        worker.kill()
        worker.wait(20)
    assert len(children) == 2
    eventually(lambda: not any(_lives(pid) for pid in children), limit_s=ENDS_WITHIN_S, what="they end")


def _lives(pid: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_default_timing_and_command() -> None:
    assert session.Timing() == session.Timing(60.0, 15.0, 20.0, 60.0, 10.0, 5.0, 2.0, 10.0)
    assert python("x") == (sys.executable, "-m", "x")
    assert runner.run_check.__doc__
