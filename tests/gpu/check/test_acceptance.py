"""The acceptance script over a simulated device, with marked results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.gpu_check import __main__ as bench
from provisioning.gpu.check.plan import Test, dtypes, plan_for
from provisioning.gpu.check.session import Timing
from provisioning.gpu.check.types import Facts, Level
from tests.gpu.check.conftest import SIMULATION
from tests.gpu.check.sim_cuda import UUID
from tests.gpu.fake_nvml import FakeLibrary, installed

pytestmark = pytest.mark.engine


@pytest.mark.thorough("a check with every option; `make test` has each")
def test_acceptance_script_runs_over_a_simulated_device(
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
    # Speed is not checked here, as there is no device.
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
    assert seen["BF16 product, initial burst"]["seen"].endswith("of 989")
    assert seen["canary"]["seen"].endswith("8 of 8 checkers")
    assert seen["kill at the deadline"]["seen"].startswith("hung after")
    assert "simulated: these figures say nothing" in (tmp_path / "out" / "gpu-check.md").read_text()


def test_acceptance_reports_missed_limits(check: Callable[..., Any]) -> None:
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


def test_all_levels_take_less_than_eight_minutes() -> None:
    facts = Facts("GPU-1", compute_capability=(9, 0))
    plan = bench.shortened(plan_for(Level.EXTENDED, facts, ("GPU-2", "GPU-3")))
    assert [test.name for test in plan] == [
        test.name for test in plan_for(Level.EXTENDED, facts, ("GPU-2", "GPU-3"))
    ]
    seconds = {test.name: test.params["seconds"] for test in plan if "seconds" in test.params}
    assert {seconds[f"burn_{name}"] for name in dtypes((9, 0))} == {5.0}
    chosen = {name: seconds[name] for name in ("bit_fade", "steady", "joint_burn", "power_steps")}
    assert chosen == {"bit_fade": 15.0, "steady": 40.0, "joint_burn": 20.0, "power_steps": 1.0}
    limits = bench.QUICK_S * 3 + bench.STANDARD_S + bench.EXTENDED_S + bench.KILLED_WITHIN_S
    assert limits < 8 * 60


def test_durations_of_tests_are_a_table(check: Callable[..., Any]) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def run(uuid: str, level: str, **more: Any) -> Any:
        calls.append((level, more))
        tests = ("canary",) if level == "quick" else ("canary", "residue")
        return check(*tests, level=level)

    lines, reports = bench.accept(UUID, run, all_levels=True, peers=["GPU-2"])
    assert [level for level, _ in calls] == ["quick", "quick", "standard", "quick", "quick", "extended"]
    assert calls[2][1] == {"peers": ["GPU-2"]}
    extended = calls[-1][1]
    assert (extended["peers"], extended["deadline_s"]) == (["GPU-2"], bench.EXTENDED_S)
    assert "joint_burn" in [test.name for test in extended["plan"]]
    assert [line.name for line in lines][:4] == [
        "quick level", "quick level, first run", "standard level", "extended level",
    ]  # fmt: skip
    table = bench.times(reports).splitlines()
    assert table[0] == "| test, s | quick | standard | extended |"
    assert [re.sub(r"\d+\.\d", "N", row) for row in table[2:]] == [
        "| canary | N passed | N passed | N passed |",
        "| residue |  | N passed | N passed |",
    ]


def test_acceptance_without_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with installed(None):
        assert bench.main([]) == 4
    assert "No acceptance without a device" in capsys.readouterr().err
    with installed(FakeLibrary([])):
        assert bench.main([]) == 4
