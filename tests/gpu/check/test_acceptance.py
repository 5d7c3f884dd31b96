"""The acceptance script runs to its end, over a made-up device; what it says there is marked as simulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.gpu_check import __main__ as bench
from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.session import Timing
from tests.gpu.check.conftest import SIMULATION
from tests.gpu.check.sim_cuda import UUID
from tests.gpu.fake_nvml import FakeLibrary, installed

pytestmark = pytest.mark.engine


@pytest.mark.thorough("a check with every option; `make test` has each")
def test_the_acceptance(
    setup_gpu: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "cublas").touch()
    short = [
        Test("canary", "canary", 10.0),
        Test("residue", "residue", 10.0),
        Test("bandwidth", "memory", 10.0),
        Test("burn_bf16", "burn", 20.0, params={"dtype": "bf16", "seconds": 0.05}),
    ]
    timing = Timing(term_s=0.3)
    # How fast this machine is at the moment is not asked here: it has no device.
    for limit in ("QUICK_S", "STANDARD_S", "KILLED_WITHIN_S"):
        monkeypatch.setattr(bench, limit, 600.0)
    options: dict[str, Any] = {"simulation": SIMULATION, "timing": timing, "plan": short}
    assert bench.main(["--uuid", UUID, "--out", str(tmp_path / "out")], **options) == 0, (
        capsys.readouterr().out
    )
    value = json.loads((tmp_path / "out" / "gpu-check.json").read_text())
    seen = {line["what"]: line for line in value["lines"]}
    assert value["simulated"]
    assert seen["device copy"]["seen"] == "4300 GB/s = 0.896 of 4800"
    assert seen["BF16 product, at first"]["seen"].endswith("of 989")
    assert seen["canary"]["seen"].endswith("8 of 8 checkers")
    assert seen["kill at the deadline"]["seen"].startswith("hung after")
    assert "simulated: these figures say nothing" in (tmp_path / "out" / "gpu-check.md").read_text()


def test_lines_that_are_missed(check: Callable[..., Any]) -> None:
    burn = Test("burn_bf16", "burn", 20.0, params={"dtype": "bf16", "seconds": 0.02})
    report = check(
        "canary",
        "residue",
        burn,
        Test("bandwidth", "memory", 10.0),
        cuda={"blind": 1, "driver_copy_gb_s": 3000},
    )
    assert bench._copy(report).met is False
    assert bench._canary(report).met is False
    assert bench._coverage(report).met is True
    own = bench._bf16(report)
    assert (own.met, "own kernel" in own.cause) == (None, True)
    assert bench._time("quick", report, 1.0, 5.0).met is False
    empty = check("address", nvml={"strangers": [1]})
    assert [line(empty).met for line in (bench._copy, bench._bf16, bench._canary, bench._coverage)] == [
        None
    ] * 4


def test_without_a_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with installed(None):
        assert bench.main([]) == 4
    assert "No acceptance without a device" in capsys.readouterr().err
    with installed(FakeLibrary([])):
        assert bench.main([]) == 4
