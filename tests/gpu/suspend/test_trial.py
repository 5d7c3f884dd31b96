"""Trials of suspend: results, and that a fake driver never grants anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.gpu.suspend import grant, trial
from provisioning.gpu.suspend.grant import Trial
from provisioning.gpu.suspend.run import GpuSnapshot, GpuUse, read_states
from provisioning.gpu.suspend.subject import SIZE
from provisioning.gpu.suspend.trial import run_trial
from provisioning.machine_id import machine_id
from tests.gpu.suspend.conftest import GPU_A, GPU_B, GPU_C, FakeDriver

DRIVER = "580.65.06"
MODULE = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (dvs-builder)\n"
NO_MEMORY = 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with the kernel module loaded."""
    path = tmp_path / "root" / grant.KERNEL_MODULE
    path.parent.mkdir(parents=True)
    path.write_text(MODULE)
    return tmp_path / "root"


def successful_trial(**changes: object) -> Trial:
    made = Trial(GPU_A, "H100", DRIVER, machine=machine_id("one"), suspend_ms=1, resume_ms=1)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_successful_trial_on_a_simulated_driver_grants_nothing(driver: FakeDriver, root: Path) -> None:
    stages: list[str] = []
    found = run_trial("one", on_stage=stages.append)
    assert (found.problem, found.uuid, found.model, found.driver) == ("", GPU_A, "H100", DRIVER)
    assert stages == ["looking", "starting", "suspending", "resuming", "comparing"]
    assert found.simulated and found.suspend_ms > 0 and found.resume_ms > 0
    # Even where everything else is as on a real machine.
    assert grant.refusal(found, driver=DRIVER, instance="one", root=root) == grant.SIMULATED
    assert read_states().before.gpus[GPU_A].users == ()


def test_trial_resumes_on_another_gpu(driver: FakeDriver) -> None:
    assert run_trial("one", GPU_A, GPU_B).problem == ""


@pytest.mark.parametrize(
    ("uuid", "onto", "problem"),
    [
        (GPU_A, GPU_C, "other_model"),
        ("GPU-none", "", "no_gpu: GPU-none"),
        ("MIG-1", "", "split"),
        (GPU_B, "", "in_use"),
        (GPU_A, GPU_B, "in_use"),
    ],
)
def test_busy_or_different_devices_are_untouched(
    driver: FakeDriver, uuid: str, onto: str, problem: str
) -> None:
    other = driver.app(gpu=GPU_B)
    assert run_trial("one", uuid, onto).problem == problem
    assert driver.calls() == [] and other.ask() == "same"


@pytest.mark.parametrize(
    ("call", "kind", "arg", "problem"),
    [
        ("restore", "corrupt", 0, "lost"),
        ("checkpoint", "keep", 0, "still_there"),
        ("checkpoint", "error", NO_MEMORY, "not_suspended: checkpoint CUDA_ERROR_OUT_OF_MEMORY"),
        ("restore", "error", NO_MEMORY, "not_resumed: restore CUDA_ERROR_OUT_OF_MEMORY"),
        ("checkpoint", "lie", 0, "not_suspended: checkpoint no_change"),
    ],
)
def test_driver_that_reports_false_success_is_detected(
    driver: FakeDriver, call: str, kind: str, arg: int, problem: str
) -> None:
    driver.fault(call, kind, arg)
    assert run_trial("one").problem == problem
    # Its process has ended in any case.
    assert read_states().before.gpus[GPU_A].users == ()


@pytest.mark.parametrize(
    ("users", "used", "free"),
    [
        ((), 100, True),
        ((), 101, False),  # nobody is named, and the memory is not back
        (((7, 0),), 100, False),  # it is back, and the process is still named
        (((8, 50),), 100, True),  # somebody else
        (None, 100, False),  # nobody tells
    ],
)
def test_gpu_is_free_when_process_and_memory_are_gone(
    users: tuple[tuple[int, int | None], ...] | None, used: int, free: bool
) -> None:
    seen = GpuSnapshot({GPU_A: GpuUse("H100", 200 + SIZE, used, users)}, DRIVER, "")
    assert trial._is_free(seen, GPU_A, 7, 100 + SIZE) is free
    assert not trial._is_free(None, GPU_A, 7, 100 + SIZE)


def test_trial_without_a_driver_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = run_trial("one")
    assert found.problem.startswith("not_told: The NVIDIA driver is not installed")
    assert grant.refusal(found, driver="", instance="one") == grant.FAILED


@pytest.mark.parametrize(
    ("made", "driver_now", "refusal"),
    [
        (None, DRIVER, grant.NOT_TRIED),
        (successful_trial(), DRIVER, ""),
        (successful_trial(problem="lost"), DRIVER, grant.FAILED),
        (successful_trial(simulated=True), DRIVER, grant.SIMULATED),
        (successful_trial(machine=machine_id("two", Path("/none"))), DRIVER, grant.OTHER_MACHINE),
        (successful_trial(), "580.70", grant.OTHER_DRIVER),
        (successful_trial(), "", grant.OTHER_DRIVER),
        (successful_trial(driver="580.70"), "580.70", grant.NO_KERNEL_MODULE),
    ],
)
def test_trial_is_valid_for_its_machine_and_driver(
    root: Path, made: Trial | None, driver_now: str, refusal: str
) -> None:
    assert grant.refusal(made, driver=driver_now, instance="one", root=root) == refusal


def test_missing_kernel_module_grants_nothing(tmp_path: Path) -> None:
    assert (
        grant.refusal(successful_trial(), driver=DRIVER, instance="one", root=tmp_path)
        == grant.NO_KERNEL_MODULE
    )


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (MODULE, DRIVER),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed\nGCC version: 12\n", "570.124.06"),
        ("580.65.06\n", ""),
        ("", ""),
    ],
)
def test_kernel_module_version_is_read(root: Path, text: str, version: str) -> None:
    (root / grant.KERNEL_MODULE).write_text(text)
    assert grant.kernel_module(root) == version


def test_stored_state_is_reloaded_and_damaged_state_ignored(tmp_path: Path) -> None:
    base = tmp_path / "local"
    assert grant.load(base) is None
    grant.save(base, successful_trial(onto=GPU_B))
    assert grant.load(base) == successful_trial(onto=GPU_B)
    assert [path.name for path in base.iterdir()] == [grant.FILE]
    for damage in (b"", b"{}", b'{"uuid": 1}', b"\xff"):
        (base / grant.FILE).write_bytes(damage)
        assert grant.load(base) is None
