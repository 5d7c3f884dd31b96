"""Reset of a GPU that our sampler and watcher have open: they release NVML and reopen it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioning.gpu.reset_run import holders_of, run_reset
from tests.gpu.driver.machine import BUS, GPU, Machine, line_of, uuid_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.thorough("processes that reset; `make test` has the steps in tests/gpu"),
]
Make = Callable[..., Machine]
OTHER = uuid_of(2)
TOOL = Path(__file__).parent / "nvidia_smi.py"


@pytest.fixture
def reset_machine(machine: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Two H100, and a tool that resets them."""
    made = machine(570, f"gpu H100 {GPU}", f"gpu H100 {OTHER}")
    tool = made.folder / "nvidia-smi"
    tool.write_text(f"#!{sys.executable}\n{TOOL.read_text()}")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("BERTH_HOME", str(tmp_path))
    return made


def until(what: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_open(made: Machine) -> bool:
    return bool(holders_of(made.root / "dev/nvidia0"))


def worker(made: Machine) -> subprocess.Popen[str]:
    process = made.start("tests.gpu.driver.worker", "holds", str(made.root))
    until(lambda: process.pid in holders_of(made.root / "dev/nvidia0"))
    return process


def reset(
    made: Machine, uuid: str = GPU, *, deadline_s: float = 90, release_s: float = 60
) -> subprocess.Popen[str]:
    limits = str(deadline_s), str(release_s)
    return made.start("tests.gpu.driver.worker", "resets", str(made.root), uuid, *limits)


def resets(made: Machine) -> list[str]:
    path = made.folder / "resets"
    return path.read_text().split() if path.exists() else []


def test_own_processes_release_the_gpu_for_a_reset_and_return(reset_machine: Machine) -> None:
    node = worker(reset_machine)
    by_hand = subprocess.run(
        ["nvidia-smi", "--gpu-reset", "-i", BUS.format(0x1B)], capture_output=True, text=True, timeout=30
    )
    assert by_hand.returncode == 255 and "In use by another client" in by_hand.stdout
    told = line_of(reset(reset_machine))
    assert (told["verdict"], resets(reset_machine)) == ("done", [BUS.format(0x1B)])
    until(lambda: node.pid in holders_of(reset_machine.root / "dev/nvidia0"))
    assert not (reset_machine.folder / "persistence-off").exists(), "persistence mode is as before"


def test_process_that_keeps_the_gpu_is_named_and_the_reset_skipped(
    reset_machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the release request the same reset is refused."""
    node = worker(reset_machine)
    monkeypatch.setenv("BERTH_HOME", str(tmp_path / "another"))
    told = line_of(reset(reset_machine, release_s=0.5))
    assert told["verdict"] == "refused" and f"(process {node.pid})" in told["text"]
    assert resets(reset_machine) == []


def test_killed_reset_does_not_stop_monitoring(reset_machine: Machine) -> None:
    """NVML stays released as long as the tool runs."""
    node = worker(reset_machine)
    (reset_machine.folder / "tool").write_text("hangs")
    resetting = reset(reset_machine)
    until((reset_machine.folder / "tool-pid").exists)
    resetting.kill()
    resetting.wait()
    assert not is_open(reset_machine)
    time.sleep(1.5)  # more than one reading of sampler and watcher
    assert not is_open(reset_machine)
    os.kill(int((reset_machine.folder / "tool-pid").read_text()), signal.SIGKILL)
    until(lambda: node.pid in holders_of(reset_machine.root / "dev/nvidia0"))


def test_hanging_reset_is_abandoned(reset_machine: Machine) -> None:
    (reset_machine.folder / "tool").write_text("hangs")
    told = line_of(reset(reset_machine, deadline_s=1))
    assert told["verdict"] == "hung" and "reboot" in told["text"]
    worker(reset_machine)  # has NVML open at once


@pytest.mark.parametrize(
    ("mood", "verdict", "says"),
    [
        ("linked", "refused", "together with the GPUs linked by NVLink"),
        (
            "fails",
            "failed",
            "Output of nvidia-smi: GPU 0000:1b:00.0 could not be reset",
        ),
    ],
)
def test_tool_output_is_interpreted(reset_machine: Machine, mood: str, verdict: str, says: str) -> None:
    (reset_machine.folder / "tool").write_text(mood)
    told = line_of(reset(reset_machine))
    assert (told["verdict"], says in told["text"]) == (verdict, True)


def test_computing_gpu_is_untouched_and_lost_gpu_is_reset(reset_machine: Machine) -> None:
    reset_machine.busy(OTHER, os.getpid())
    told = line_of(reset(reset_machine, OTHER))
    assert told["verdict"] == "refused" and f"(process {os.getpid()})" in told["text"]
    reset_machine.fault("lost")
    assert line_of(reset(reset_machine))["verdict"] == "done"
    assert "does not list GPU" in line_of(reset(reset_machine, uuid_of(7)))["text"]


def test_reset_without_root_prints_the_command(
    reset_machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = run_reset(GPU, bus=BUS.format(0x1B), root=reset_machine.root)
    assert done.verdict == "refused" and "sudo nvidia-smi --gpu-reset -i 0000:1b:00.0" in done.text
    assert resets(reset_machine) == []
