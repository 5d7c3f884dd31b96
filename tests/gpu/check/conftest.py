"""A simulated device: the fake driver library, built once, and scripts for its faults."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from provisioning.gpu.check.compiler import nvrtc_version
from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.report import Report, schema
from provisioning.gpu.check.runner import run_check
from provisioning.gpu.check.session import Simulation, Timing
from tests.gpu.check.host import Host
from tests.gpu.check.host_build import host_build
from tests.gpu.check.sim_cuda import UUID

VALIDATOR = Draft202012Validator(schema())
SIMULATION = Simulation("tests.gpu.check.sim_cuda", "tests.gpu.check.sim_nvml")
# The product's timeouts; tests of hangs shorten single ones.
TIMING = Timing(term_s=0.3)


@pytest.fixture(scope="session")
def fake_cuda() -> Path:
    """The folder of the fake libcuda.so.1; cached between runs until a source changes."""
    return host_build().parent


@pytest.fixture(scope="module")
def host(fake_cuda: Path) -> Host:
    return Host(ctypes.CDLL(str(fake_cuda / "libcuda.so.1")))


@pytest.fixture
def setup_gpu(fake_cuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the behavior of the simulated device: `cuda` for the driver, `nvml` for NVML."""
    if not nvrtc_version():
        pytest.skip("cuda-bindings or NVRTC is not installed")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_cuda))
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def setup(cuda: dict[str, Any] | None = None, nvml: dict[str, Any] | None = None) -> None:
        values = {"uuid": UUID.removeprefix("GPU-").replace("-", ""), **(cuda or {})}
        (tmp_path / "fake-gpu.txt").write_text("".join(f"{k} {v}\n" for k, v in values.items()))
        (tmp_path / "fake-nvml.json").write_text(json.dumps(nvml or {}))

    setup()
    return setup


@pytest.fixture
def check(setup_gpu: Callable[..., None]) -> Callable[..., Report]:
    """A simulated check with a short plan."""

    def run(
        *tests: str | Test,
        cuda: dict[str, Any] | None = None,
        nvml: dict[str, Any] | None = None,
        level: str = "quick",
        uuid: str = UUID,
        **more: Any,
    ) -> Report:
        setup_gpu(cuda, nvml)
        plan = [t if isinstance(t, Test) else Test(t, t, 20.0) for t in tests] or None
        options = {"timing": TIMING, "simulation": SIMULATION, "plan": plan, **more}
        report = run_check(uuid, level, **options)
        # Every report of these tests must match the published schema.
        assert [e.message for e in VALIDATOR.iter_errors(report.to_dict())] == []
        return report

    return run
