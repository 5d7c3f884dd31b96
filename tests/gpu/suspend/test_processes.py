"""Suspend of real processes with the real bindings over a fake driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning.gpu.suspend import cuda_calls, run
from provisioning.gpu.suspend.run import drive_processes, read_states
from provisioning.gpu.suspend.states import ProcessState, TargetState
from provisioning.gpu.suspend.walk import BAD_STATE, BROKEN_OFF, NO_CHANGE
from tests.gpu.suspend.conftest import GPU_A, GPU_B, GPU_C, ROOT, App, FakeDriver
from tests.suite.choice import quick_of

RUNNING, LOCKED, CHECKPOINTED, FAILED = 0, 1, 2, 3
ILLEGAL, NO_MEMORY = 401, 2
Apps = Callable[[int], list[App]]


def pids(apps: list[App]) -> list[int]:
    return [app.pid for app in apps]


def test_memory_is_released_and_restored(driver: FakeDriver, apps: Apps) -> None:
    both = apps(2)
    down = drive_processes(pids(both), TargetState.SUSPENDED)
    assert down.outcome is not None and down.outcome.is_reached and down.simulated
    assert list(down.before.used_by(pids(both))) == [GPU_A]
    assert down.after is not None and down.after.is_complete and down.after.used_by(pids(both)) == {}
    assert down.after.gpus[GPU_A].used == 0
    assert driver.states() == [CHECKPOINTED] * 2
    up = drive_processes(pids(both), TargetState.RUNNING)
    assert up.outcome is not None and up.outcome.is_reached
    assert [app.ask() for app in both] == ["same", "same"]


def test_suspended_process_blocks_at_its_next_call(driver: FakeDriver) -> None:
    app = driver.app()
    drive_processes([app.pid], TargetState.SUSPENDED)
    said: list[str] = []
    asking = threading.Thread(target=lambda: said.append(app.ask()))
    asking.start()
    asking.join(0.5)
    assert asking.is_alive() and said == []
    drive_processes([app.pid], TargetState.RUNNING)
    asking.join(10)
    assert said == ["same"]


def test_process_resumes_on_another_gpu_of_the_same_model(driver: FakeDriver) -> None:
    app = driver.app()
    drive_processes([app.pid], TargetState.SUSPENDED)
    up = drive_processes([app.pid], TargetState.RUNNING, pairs={GPU_A: GPU_B})
    assert up.outcome is not None and up.outcome.is_reached
    assert (driver.on_device(0, app.pid), len(driver.on_device(1, app.pid))) == ([], 2)
    assert app.ask() == "same"


@pytest.mark.parametrize(
    ("pairs", "version"),
    [({GPU_A: GPU_C}, 13000), ({GPU_B: GPU_A}, 13000), ({GPU_A: GPU_B}, 12080)],
    ids=["another model", "not all of its GPUs", "a driver that cannot"],
)
def test_process_stays_suspended_if_the_target_gpu_is_unsuitable(
    driver: FakeDriver, pairs: dict[str, str], version: int
) -> None:
    driver.configure(f"version {version}")
    app = driver.app()
    drive_processes([app.pid], TargetState.SUSPENDED)
    up = drive_processes([app.pid], TargetState.RUNNING, pairs=pairs)
    assert up.outcome is not None and up.outcome.end is TargetState.SUSPENDED
    assert up.outcome.trouble is not None and up.outcome.trouble.name == "CUDA_ERROR_INVALID_VALUE"
    assert drive_processes([app.pid], TargetState.RUNNING).outcome.is_reached  # type: ignore[union-attr]
    assert app.ask() == "same"


@pytest.mark.parametrize(
    ("call", "kind", "arg"),
    [
        ("lock", "error", ILLEGAL),
        ("checkpoint", "error", NO_MEMORY),
        ("lock", "lie", 0),
        ("checkpoint", "lie", 0),
    ],
)
@pytest.mark.parametrize("which", quick_of((0, 1), (1,), "both processes; `make test` has one"))
def test_failed_suspend_leaves_all_processes_running(
    driver: FakeDriver, apps: Apps, call: str, kind: str, arg: int, which: int
) -> None:
    both = apps(2)
    driver.fault(call, kind, arg, pid=sorted(pids(both))[which])
    found = drive_processes(pids(both), TargetState.SUSPENDED).outcome
    assert found is not None and found.end is TargetState.RUNNING and found.trouble is not None
    assert found.trouble.name == {
        "lie": NO_CHANGE, ILLEGAL: "CUDA_ERROR_ILLEGAL_STATE", NO_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY"
    }[kind if kind == "lie" else arg]  # fmt: skip
    assert [app.ask() for app in both] == ["same", "same"]


@pytest.mark.thorough("fills a GPU; `make test` has each error of a restore")
def test_process_stays_suspended_if_the_gpu_is_full(driver: FakeDriver) -> None:
    app = driver.app(size=100 << 20)
    drive_processes([app.pid], TargetState.SUSPENDED)
    other = driver.app(size=180 << 20)
    found = drive_processes([app.pid], TargetState.RUNNING).outcome
    assert found is not None and found.end is TargetState.SUSPENDED and driver.state(app.pid) == CHECKPOINTED
    other.end()
    assert drive_processes([app.pid], TargetState.RUNNING).outcome.is_reached  # type: ignore[union-attr]
    assert app.ask() == "same"


def test_process_with_endless_work_is_released(
    driver: FakeDriver, apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = apps(2)
    driver.busy(max(pids(both)))
    # The child has the limit of its own module: what the driver gets is seen by how long it took.
    began = time.monotonic()
    found = drive_processes(pids(both), TargetState.SUSPENDED).outcome
    assert found is not None and found.end is TargetState.RUNNING and found.trouble is not None
    assert (found.trouble.call, found.trouble.name) == ("lock", "CUDA_ERROR_NOT_READY")
    assert cuda_calls.LOCK_TIMEOUT_MS / 1000 <= time.monotonic() - began < 60
    assert driver.states() == [RUNNING] * 2


def test_failed_process_is_reported_and_others_continue(driver: FakeDriver, apps: Apps) -> None:
    both = apps(2)
    lost, sound = min(pids(both)), max(pids(both))
    driver.fault("checkpoint", "fail", pid=lost)
    found = drive_processes(pids(both), TargetState.SUSPENDED).outcome
    assert found is not None and found.end is None and not found.is_reached
    assert found.states == {lost: ProcessState.FAILED, sound: ProcessState.RUNNING}
    again = drive_processes(pids(both), TargetState.SUSPENDED).outcome
    assert again is not None and again.trouble is not None and again.trouble.name == BAD_STATE
    assert driver.state(sound) == RUNNING


@pytest.mark.parametrize(
    ("text", "trouble"),
    [("version 12040", cuda_calls.UNSUPPORTED), ("", cuda_calls.NO_LIBRARY)],
)
def test_driver_without_checkpoint_calls_is_not_used(driver: FakeDriver, text: str, trouble: str) -> None:
    app = driver.app()
    if text:
        driver.configure(text)
    else:
        (driver.folder / "libcuda.so.1").unlink()
    found = drive_processes([app.pid], TargetState.SUSPENDED)
    assert (found.outcome, found.failure) == (None, trouble)
    assert driver.calls() == [] and driver.state(app.pid) == RUNNING


@pytest.mark.parametrize(
    ("goal", "call", "when", "which"),
    quick_of(
        [
            (goal, call, when, which)
            for goal, call in (
                (TargetState.SUSPENDED, "lock"),
                (TargetState.SUSPENDED, "checkpoint"),
                (TargetState.RUNNING, "restore"),
                (TargetState.RUNNING, "unlock"),
            )
            for when in ("die_before", "die_after")
            for which in (0, 1)
        ],
        [
            (TargetState.SUSPENDED, "checkpoint", "die_before", 1),
            (TargetState.SUSPENDED, "checkpoint", "die_after", 0),
            (TargetState.RUNNING, "restore", "die_after", 1),
        ],
        "a death before and after every call; `make test` has three",
        several=True,
    ),
)
def test_killed_caller_is_followed_by_a_rollback(
    driver: FakeDriver, apps: Apps, goal: TargetState, call: str, when: str, which: int
) -> None:
    both = apps(2)
    if goal is TargetState.RUNNING:
        drive_processes(pids(both), TargetState.SUSPENDED)
    driver.fault(call, when, pid=sorted(pids(both))[which])
    found = drive_processes(pids(both), goal).outcome
    assert found is not None and found.end is TargetState.RUNNING
    assert found.trouble is not None and found.trouble.name == run.ENDED
    assert [app.ask() for app in both] == ["same", "same"]


def test_state_is_unknown_if_every_caller_is_killed_and_the_next_call_recovers(
    driver: FakeDriver, apps: Apps
) -> None:
    both = apps(2)
    driver.fault("checkpoint", "die_after", pid=min(pids(both)))
    driver.fault("restore", "die_before", times=-1)
    found = drive_processes(pids(both), TargetState.SUSPENDED).outcome
    assert found is not None and found.end is None
    assert set(found.states.values()) == {ProcessState.UNKNOWN}
    assert sorted(driver.states()) == [LOCKED, CHECKPOINTED]
    driver.mend()
    assert drive_processes(pids(both), TargetState.RUNNING).outcome.is_reached  # type: ignore[union-attr]
    assert [app.ask() for app in both] == ["same", "same"]


def test_slow_driver_call_is_rolled_back_at_the_deadline(driver: FakeDriver, apps: Apps) -> None:
    both = apps(2)
    driver.fault("checkpoint", "sleep", 1500, pid=min(pids(both)))
    found = drive_processes(pids(both), TargetState.SUSPENDED, within_s=1.0).outcome
    assert found is not None and found.end is TargetState.RUNNING
    assert found.trouble is not None and found.trouble.name == BROKEN_OFF
    assert [app.ask() for app in both] == ["same", "same"]


def test_hanging_driver_is_abandoned(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    app = driver.app()
    # Ten seconds for each of both children, three of them for what comes before the call that hangs.
    monkeypatch.setattr(run, "QUERY_TIMEOUT_S", 1.0)
    driver.fault("checkpoint", "sleep", 3_600_000)
    found = drive_processes([app.pid], TargetState.SUSPENDED, within_s=3.0).outcome
    assert found is not None and found.end is TargetState.RUNNING
    assert found.trouble is not None and found.trouble.name == run.HUNG
    assert app.ask() == "same"


CALLER = """
import sys
from provisioning.gpu.suspend.run import drive_processes
from provisioning.gpu.suspend.states import TargetState
drive_processes([int(sys.argv[1])], TargetState.SUSPENDED, on_call=lambda call, pid: print(call, flush=True))
"""


def test_killed_caller_does_not_stop_the_process(driver: FakeDriver) -> None:
    app = driver.app()
    driver.fault("lock", "wait")
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(app.pid)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert caller.stdout is not None and caller.stdout.readline() == b"lock\n"
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    caller.stdout.close()
    driver.go_on()
    # Its child has lost its caller, so it releases the lock.
    until = time.monotonic() + 20
    while "unlock" not in driver.calls() and time.monotonic() < until:
        time.sleep(0.05)
    assert driver.calls() == ["lock", "unlock"] and driver.state(app.pid) == RUNNING
    assert app.ask() == "same"


def test_reading_states_changes_nothing_and_ended_processes_have_none(driver: FakeDriver) -> None:
    app, ended = driver.app(), driver.app()
    ended.end()
    seen = read_states([app.pid, ended.pid, os.getpid()])
    assert seen.states == {
        app.pid: ProcessState.RUNNING, ended.pid: ProcessState.NONE, os.getpid(): ProcessState.NONE
    }  # fmt: skip
    assert driver.calls() == []


def test_message_without_the_nonce_is_ignored(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another writer to the same pipe, without the nonce.
    module = tmp_path / "liar.py"
    module.write_text(
        "import os, sys\n"
        'text = \'{"kind":"outcome","states":{"1":"checkpointed"},"trouble":null}\\n'
        '{"kind":"end","nonce":"x","simulated":false}\\n\'\n'
        "os.write(int(sys.argv[2]), text.encode())\n"
    )
    monkeypatch.setattr(run, "python", lambda _module: (sys.executable, str(module)))
    found = drive_processes([1], TargetState.SUSPENDED).outcome
    assert found is not None and not found.is_reached and found.end is None
