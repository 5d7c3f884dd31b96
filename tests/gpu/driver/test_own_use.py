"""The agent's measurement of its own processes on shares and MIG instances, over NVML in C."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioning.agent.program import own_gpu_use
from provisioning.agent.program.gpus import Gpus
from tests.gpu.driver.machine import GPU, HALF, MIG, SEVENTH, Machine

NEIGHBOUR = 999_999
OPEN = "import sys, time; files = [open(name) for name in sys.argv[1:]]; print(flush=True); time.sleep(600)"


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Files that replace the device files of CUDA and of the first GPU."""
    cuda, gpu = tmp_path / "nvidia-uvm", tmp_path / "nvidia0"
    cuda.touch()
    gpu.touch()
    monkeypatch.setattr(own_gpu_use, "CUDA_FILE", str(cuda))
    monkeypatch.setattr(own_gpu_use, "GPU_FILE", str(tmp_path / "nvidia"))
    return cuda, gpu


@pytest.fixture
def program() -> Iterator[Callable[..., int]]:
    """Start a process of this workspace with these files open; returns its PID."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*files: Path) -> int:
        process = subprocess.Popen([sys.executable, "-c", OPEN, *map(str, files)], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


LOADED: list[ctypes.CDLL] = []


@pytest.fixture(autouse=True)
def unloaded() -> Iterator[None]:
    """Unload the fake libraries, which would otherwise be found by the name of the real ones."""
    yield
    while LOADED:
        _ctypes.dlclose(LOADED.pop()._handle)


def agent(machine: Machine, uuids: list[str], shared: list[str]) -> Gpus:
    gpus = Gpus(uuids, shared, by_process=True)
    gpus.library = ctypes.CDLL(str(machine.folder / "libnvidia-ml.so.1"))
    LOADED.append(gpus.library)
    assert gpus.library.nvmlInit_v2() == 0
    return gpus


def percents(gpus: Gpus) -> list[int | None]:
    gpus.answer = None
    return [device["utilization_percent"] for device in gpus._devices()]


def test_busy_neighbour_does_not_count_as_own_use(machine, devices, program):
    made = machine(570, f"gpu H100 {GPU}")
    gpus = agent(made, [GPU], [GPU])
    made.holds(GPU, {NEIGHBOUR: 70_000})
    made.uses({(GPU, NEIGHBOUR): 99})
    assert percents(gpus) == [0]
    own = program(*devices)
    made.holds(GPU, {NEIGHBOUR: 70_000, own: 500})
    assert percents(gpus) == [0]
    made.uses({(GPU, NEIGHBOUR): 99, (GPU, own): 3})
    assert percents(gpus) == [3]
    # A whole GPU of one workspace is measured as before.
    assert percents(agent(made, [GPU], [])) == [63]


def test_hidden_processes_are_unknown_and_not_idle(machine, devices, program):
    """As by a driver that lists PIDs of another namespace."""
    made = machine(535, f"gpu H100 {GPU}")
    gpus = agent(made, [GPU], [GPU])
    program(*devices)
    made.holds(GPU, {NEIGHBOUR: 500})
    made.uses({(GPU, NEIGHBOUR): 99})
    assert percents(gpus) == [None]
    made.holds(GPU, {})
    assert percents(gpus) == [None]


def test_monitoring_process_does_not_count_as_use(machine, devices, program):
    made = machine(570, f"gpu H100 {GPU}")
    _cuda, gpu = devices
    program(gpu)
    made.holds(GPU, {NEIGHBOUR: 500})
    made.uses({(GPU, NEIGHBOUR): 99})
    assert percents(agent(made, [GPU], [GPU])) == [0]


def test_mig_instance_has_its_own_counters(machine, devices, program):
    made = machine(570, *MIG)
    gpus = agent(made, [HALF, SEVENTH], [])
    # Without a process on it, nothing needs to be measured.
    made.uses({(HALF, 0): 80, (SEVENTH, 0): 0})
    assert percents(gpus) == [0, 0]
    own = program(*devices)
    made.holds(HALF, {own: 500})
    assert percents(gpus) == [80, 0]
    made.uses({(HALF, 0): 0, (SEVENTH, 0): 0})
    assert percents(gpus) == [0, 0]


def test_instance_without_counters_is_unknown_only_while_in_use(machine, devices, program):
    made = machine(550, f"gpu A100 {GPU} mig", f"instance {HALF} 3g 4", f"instance {SEVENTH} 1g 0")
    gpus = agent(made, [HALF, SEVENTH], [])
    assert percents(gpus) == [0, 0]
    made.holds(HALF, {program(*devices): 500})
    assert percents(gpus) == [None, 0]


def test_only_processes_of_the_workspace_are_inspected(devices):
    cuda, gpu = devices
    with cuda.open(), gpu.open():
        # This process is the agent here, and no descendant of itself.
        present = own_gpu_use.holders()
    assert (present.cuda, present.others & {os.getpid()}) == (set(), set())
