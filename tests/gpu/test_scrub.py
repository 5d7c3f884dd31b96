"""Scrubbing over host memory: residue is found, and only verified memory counts as clean."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioning import messages
from provisioning.gpu.check.thresholds import LEAK_MIB
from provisioning.gpu.scrub import (
    CHUNK_MIN,
    MIB,
    DeviceFault,
    OutOfMemory,
    ScrubCallFailed,
    ScrubResult,
    ScrubVerdict,
    allocate_by_halving,
    judge,
    scrub,
)
from provisioning.gpu.scrub_run import run_scrub
from tests.gpu import scrub_sim
from tests.suite.choice import examples


class HostGpu:
    """A device over numpy arrays. `hole` is memory reported as free that cannot be allocated."""

    def __init__(self, *, total_mib: int = 100, used_mib: int = 2, hole_mib: int = 0) -> None:
        self.total, self.used, self.hole = total_mib * MIB, used_mib * MIB, hole_mib * MIB
        self.blocks: dict[int, np.ndarray] = {}
        self.dirt: dict[int, int] = {}
        self.stuck = False
        self.fails: dict[str, Exception] = {}
        self.calls: dict[str, int] = {}
        self.given = 0

    def _call(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if error := self.fails.get(f"{name}:{self.calls[name]}"):
            raise error

    def memory(self) -> tuple[int, int]:
        self._call("memory")
        return self.total - self.used, self.total

    def alloc(self, size: int) -> int:
        self._call("alloc")
        if self.used + self.hole + size > self.total:
            raise OutOfMemory
        self.used += size
        block = np.zeros(size // 8, np.uint64)
        for at, value in self.dirt.items():
            if self.given <= at < self.given + len(block):
                block[at - self.given] = value
        self.given += len(block)
        self.blocks[self.given] = block
        return self.given

    def free(self, address: int) -> None:
        self._call("free")
        self.used -= self.blocks.pop(address).nbytes

    def clear(self, address: int, size: int) -> None:
        self._call("clear")
        assert self.blocks[address].nbytes == size
        self.blocks[address][:] = 0
        if self.stuck:
            self.blocks[address][-1] = 1 << 63

    def count_nonzero(self, chunks: Sequence[tuple[int, int]]) -> int:
        self._call("count_nonzero")
        return sum(int(np.count_nonzero(self.blocks[address])) for address, _ in chunks)

    def or_reduce(self, chunks: Sequence[tuple[int, int]]) -> int:
        self._call("or_reduce")
        return max((int(np.bitwise_or.reduce(self.blocks[address])) for address, _ in chunks), default=0)


def scrubbed(gpu: HostGpu, *, others=lambda: 0, **more) -> ScrubResult:
    return scrub(gpu, uuid="GPU-1", others=others, **more)


def test_clean_device_is_reported_clean_and_memory_released():
    gpu = HostGpu()
    stages: list[str] = []
    found = scrubbed(gpu, baseline_mib=98, progress=stages.append)
    assert (found.verdict, found.ok, found.residue_words, found.left_words) == ("clean", True, 0, 0)
    assert (found.free_mib, found.total_mib, found.scrubbed_mib, found.coverage_per_mille) == (
        98,
        100,
        98,
        1000,
    )
    assert stages == ["take", "count", "clear", "verify"]
    assert gpu.blocks == {} and gpu.used == 2 * MIB


def test_residue_is_counted_and_cleared():
    gpu = HostGpu()
    gpu.dirt = {0: 1, 5_000_000: 0xDEAD, 98 * MIB // 8 - 1: 1 << 63}
    found = scrubbed(gpu)
    assert (found.verdict, found.residue_words, found.left_words) == ("clean", 3, 0)


def test_memory_that_cannot_be_cleared_fails():
    gpu = HostGpu()
    gpu.stuck = True
    found = scrubbed(gpu)
    assert found.verdict is ScrubVerdict.FAILED and found.left_words == gpu.calls["clear"]
    assert "Cordon this GPU" in found.text and gpu.blocks == {}


def test_missing_memory_is_a_leak():
    found = scrubbed(HostGpu(total_mib=200, used_mib=106), baseline_mib=160)
    assert found.verdict is ScrubVerdict.LEAK and found.text.startswith("66 MiB") and not found.ok
    # The tolerance: a driver's own memory differs by some MiB.
    assert (
        scrubbed(HostGpu(total_mib=200, used_mib=104), baseline_mib=96 + LEAK_MIB).verdict
        is ScrubVerdict.CLEAN
    )
    assert (
        scrubbed(HostGpu(total_mib=200, used_mib=105), baseline_mib=96 + LEAK_MIB).verdict
        is ScrubVerdict.LEAK
    )
    assert scrubbed(HostGpu(used_mib=2), baseline_mib=90).verdict is ScrubVerdict.CLEAN


def test_first_scrub_requires_most_memory_free():
    assert scrubbed(HostGpu(used_mib=15)).verdict is ScrubVerdict.CLEAN
    assert scrubbed(HostGpu(used_mib=16)).verdict is ScrubVerdict.INCONCLUSIVE
    assert scrubbed(HostGpu(used_mib=16), baseline_mib=84).verdict is ScrubVerdict.CLEAN


def test_unallocatable_memory_is_unproven():
    found = scrubbed(HostGpu(total_mib=402, hole_mib=8))
    assert found.verdict is ScrubVerdict.CLEAN and found.coverage_per_mille == 980
    found = scrubbed(HostGpu(total_mib=402, hole_mib=10))
    assert found.verdict is ScrubVerdict.INCONCLUSIVE and "390 of 400 MiB" in found.text
    assert scrubbed(HostGpu(used_mib=100)).verdict is ScrubVerdict.INCONCLUSIVE


def test_busy_device_is_not_scrubbed():
    gpu = HostGpu()
    found = scrubbed(gpu, others=lambda: 2)
    assert found.verdict is ScrubVerdict.BUSY and "2 processes use this GPU" in found.text and gpu.calls == {}


def test_new_process_makes_it_inconclusive():
    answers = iter([0, 1])
    assert scrubbed(HostGpu(), others=lambda: next(answers)).verdict is ScrubVerdict.INCONCLUSIVE
    answers_2 = iter([0, None])
    assert scrubbed(HostGpu(), others=lambda: next(answers_2)).verdict is ScrubVerdict.INCONCLUSIVE


@pytest.mark.parametrize(
    "where",
    ["memory:1", "alloc:1", "alloc:2", "count_nonzero:1", "clear:1", "clear:2", "or_reduce:1", "free:1"],
)
@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (DeviceFault("CUDA_ERROR_ECC_UNCORRECTABLE"), ScrubVerdict.FAILED),
        (ScrubCallFailed("CUDA_ERROR_UNKNOWN"), ScrubVerdict.INCONCLUSIVE),
    ],
)
def test_failure_at_any_point_is_reported_and_memory_released(where, error, verdict):
    gpu = HostGpu()
    gpu.fails = {where: error}
    found = scrubbed(gpu)
    assert found.verdict is verdict and not found.ok and str(error) in found.text
    assert len(gpu.blocks) == (1 if where == "free:1" else 0)


@pytest.mark.parametrize(("baseline", "verdict"), [(101, ScrubVerdict.CLEAN), (100, ScrubVerdict.LEAK)])
def test_baseline_of_another_ecc_mode_is_ignored(baseline, verdict):
    """ECC reduces the total memory."""
    seen = {"free": 90 * MIB, "total": 100 * MIB, "scrubbed": 90 * MIB, "left": 0, "others": 0, "error": None}
    assert judge(**seen | {"free": 30 * MIB, "scrubbed": 30 * MIB}, baseline_mib=100)[0] is ScrubVerdict.LEAK
    small = seen if baseline > 100 else seen | {"free": 35 * MIB, "scrubbed": 35 * MIB}
    assert judge(**small, baseline_mib=baseline)[0] is verdict


def test_remaining_residue_takes_precedence():
    verdict, _ = judge(
        free=100 * MIB,
        total=100 * MIB,
        scrubbed=0,
        left=1,
        others=1,
        baseline_mib=200,
        error=ScrubCallFailed("x"),
    )
    assert verdict is ScrubVerdict.FAILED


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 200 * MIB), st.integers(0, 200 * MIB))
def test_halving_allocates_all_available_memory(free, there):
    taken: list[int] = []

    def take(size: int) -> bool:
        if sum(taken) + size > there:
            return False
        taken.append(size)
        return True

    total = allocate_by_halving(free, take)
    assert total == sum(taken) <= min(free, there)
    assert min(free, there) - total < CHUNK_MIN
    assert all(size >= CHUNK_MIN and size & (size - 1) == 0 for size in taken)
    assert taken == sorted(taken, reverse=True)


def test_result_round_trips():
    found = scrubbed(HostGpu())
    assert messages.load(json.loads(json.dumps(messages.dump(found))), ScrubResult) == found


# -- in a process of its own --------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def run(*, baseline_mib=None, deadline_s=30.0, uuid=scrub_sim.UUID, **scenario) -> ScrubResult:
        (tmp_path / "scrub.json").write_text(json.dumps({"total_mib": 103, **scenario}))
        return run_scrub(
            uuid,
            baseline_mib=baseline_mib,
            deadline_s=deadline_s,
            simulate="tests.gpu.scrub_sim",
            nvml="tests.gpu.scrub_sim",
        )

    return run


def test_simulated_scrub_completes_and_is_never_ok(run):
    found = run(dirty=12)
    assert (found.verdict, found.residue_words, found.left_words) == (ScrubVerdict.CLEAN, 12, 0)
    assert found.simulated and not found.ok and found.duration_ms > 0
    assert found.coverage_per_mille >= 980 and found.total_mib == 103


def test_child_reports_leaks_faults_and_other_processes(run):
    assert run(total_mib=203, context_mib=101, baseline_mib=100 + LEAK_MIB).verdict is ScrubVerdict.CLEAN
    assert run(total_mib=203, context_mib=101, baseline_mib=101 + LEAK_MIB).verdict is ScrubVerdict.LEAK
    assert run(stuck=True).verdict is ScrubVerdict.FAILED
    assert run(processes=1).verdict is ScrubVerdict.BUSY
    assert run(late=True).verdict is ScrubVerdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("scenario", "verdict", "words"),
    [
        ({"fault": "cuMemsetD8Async", "with": "CUDA_ERROR_ECC_UNCORRECTABLE"}, ScrubVerdict.FAILED, "ECC"),
        ({"fault": "cuMemAlloc", "with": "CUDA_ERROR_UNKNOWN"}, ScrubVerdict.INCONCLUSIVE, "UNKNOWN"),
        ({"fault": "cuModuleLoadData", "with": "CUDA_ERROR_X"}, ScrubVerdict.INCONCLUSIVE, "ERROR_X"),
        ({"die": "cuMemcpyDtoHAsync"}, ScrubVerdict.INCONCLUSIVE, "without a result"),
        ({"cuda_uuid": "GPU-99999999-1111-2222-3333-444444444444"}, ScrubVerdict.INCONCLUSIVE, "CUDA opened"),
    ],
)  # fmt: skip
def test_errors_in_the_child_process(run, scenario, verdict, words):
    found = run(**scenario)
    assert found.verdict is verdict and words in found.text


def test_hanging_child_that_ignores_sigterm_is_killed(run):
    found = run(hang="cuMemsetD8Async", deaf=True, deadline_s=2.0)
    assert found.verdict is ScrubVerdict.HUNG and found.duration_ms < 15_000


def test_unknown_device_and_missing_driver_are_reported(run):
    assert run(uuid="GPU-unknown").verdict is ScrubVerdict.INCONCLUSIVE
    found = run_scrub("GPU-1", deadline_s=30)
    if found.verdict is ScrubVerdict.UNAVAILABLE:  # a machine with a driver knows no such device
        assert found.library == "libnvidia-ml.so.1" and "install the NVIDIA driver" in found.text
    else:
        assert found.verdict is ScrubVerdict.INCONCLUSIVE
    assert not found.simulated and not found.ok
