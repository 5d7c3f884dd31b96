"""The report: its published schema, its texts, and the command line."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from provisioning.gpu.check import __main__ as command
from provisioning.gpu.check.report import Report, Unavailable, render, schema, summarise, summary_of
from provisioning.gpu.check.types import (
    Action,
    Facts,
    Finding,
    Judgement,
    Level,
    Severity,
    Status,
    TestResult,
    Verdict,
)

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
COPY = TestResult(
    "copy", Status.PASSED, True, "fine", 300, 0,
    (Judgement("copy_gb_s", 4300.0, "GB/s", Status.PASSED, 3456.0, 3840.0, "datasheet"),),
    {"copy_gb_s": 4300.0},
)  # fmt: skip
RESIDUE = TestResult("residue", Status.PASSED, True, "No error", measures={"free_mib": 142_000.0})


def report(**changes: Any) -> Report:
    values: dict[str, Any] = {
        "uuid": "GPU-1", "level": Level.QUICK, "verdict": Verdict.PASS, "action": Action.NONE,
        "summary": "Good.",
        "findings": (), "tests": (RESIDUE, COPY), "started_at": START,
        "finished_at": START + timedelta(seconds=4.2), "nonce": "0" * 32,
        "facts": Facts("GPU-1", name="NVIDIA H200", compute_capability=(9, 0), links={"GPU-2": 18}),
        "health_before": {"unavailable": []}, "health_after": {"unavailable": []}, **changes,
    }  # fmt: skip
    return Report(**values)


def problems(value: dict[str, Any]) -> list[str]:
    return [e.message for e in Draft202012Validator(schema()).iter_errors(value)]


def test_schema_is_valid() -> None:
    Draft202012Validator.check_schema(schema())


def test_passed_report_as_json() -> None:
    value = report().to_dict()
    assert problems(value) == []
    assert value["started_at"] == "2026-01-02T03:04:05.000Z"
    assert (value["duration_ms"], value["exit_code"], value["schema"]) == (4200, 0, "berth.gpu-check/1")
    assert value["facts"]["compute_capability"] == [9, 0]
    assert json.loads(json.dumps(value)) == value


@pytest.mark.parametrize(
    "changes",
    [
        {"simulated": True},
        {"abandoned": True},
        {"tests": ()},
        {"tests": (TestResult("copy", Status.SKIPPED, True, "Not run"),)},
        {"tests": (TestResult("copy", Status.MEASURED, True, "Not judged"),)},
        {"findings": (Finding("busy", Severity.INCONCLUSIVE, "Others."),)},
        {"unavailable": Unavailable("No driver.", "libcuda.so.1", "Install it.")},
        {"simulated": True, "verdict": Verdict.DEGRADED},
        {"nonce": ""},
        {"summary": ""},
    ],
    ids=lambda value: "-".join(value),
)
def test_schema_rejects_inconsistent_passes(changes: dict[str, Any]) -> None:
    assert problems(report(**changes).to_dict())


def test_schema_rejects_unknown_values_and_fields() -> None:
    value = report().to_dict()
    assert problems({**value, "verdict": "good"})
    assert problems({**value, "more": 1})
    assert problems({k: v for k, v in value.items() if k != "tests"})


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.PASS, 0),
        (Verdict.DEGRADED, 1),
        (Verdict.FAIL, 2),
        (Verdict.INCONCLUSIVE, 3),
        (Verdict.HUNG, 5),
    ],
)
def test_exit_codes(verdict: Verdict, code: int) -> None:
    assert report(verdict=verdict).exit_code == code
    unavailable = Unavailable("No driver.", "libcuda.so.1", "Install it.")
    assert report(verdict=verdict, unavailable=unavailable).exit_code == 4


def test_measures_for_the_baseline() -> None:
    assert report().measures == {"copy_gb_s": 4300.0, "free_mib:ecc_unknown": 142_000.0}
    links = {"nvlinks": [{"active": True}, {"active": False}], "display_active": True}
    seen = report(facts=Facts("GPU-1", ecc=True), health_before=links)
    assert seen.measures == {"copy_gb_s": 4300.0, "free_mib:ecc:display": 142_000.0, "nvlinks_up": 1.0}


def test_samples_are_summarized() -> None:
    looks = [{"power_mw": value, "temperature_c": None} for value in (300, 100, 200)]
    assert summarise(looks) == {"count": 3, "power_mw": {"min": 100, "median": 200, "max": 300}}
    assert summarise([]) == {"count": 0}


def test_summaries() -> None:
    bad = Finding("a", Severity.FAIL, "Broken.")
    odd = Finding("b", Severity.DEGRADED, "Odd.")
    note = Finding("c", Severity.INFO, "By the way.")
    assert summary_of(Verdict.PASS, [note], [COPY], False) == "All 1 tests passed."
    assert summary_of(Verdict.FAIL, [odd, bad], [COPY], False) == "Broken. (1 more)"
    assert summary_of(Verdict.INCONCLUSIVE, [], [], False) == "No tests were run."
    assert summary_of(Verdict.INCONCLUSIVE, [], [COPY], True).startswith("Simulated")
    text = render(report(findings=(bad, note), action=Action.DRAIN_AND_RESET, verdict=Verdict.FAIL))
    assert "FAIL: Good." in text
    assert "recovery: drain and reset" in text
    assert "By the way." in text


# --- command line ---


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--uuid", "0"],
        ["--uuid", "GPU-1", "--level", "thorough"],
        ["--uuid", "GPU-1", "--deadline", "0"],
        ["--uuid", "GPU-1", "--deadline", "nan"],
        ["--uuid", "GPU-1", "--baseline", "/nonexistent"],
        ["--uuid", "GPU-1", "--what"],
    ],
)
def test_invalid_arguments_exit_with_64(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        command.main(arguments)
    assert stop.value.code == 64
    assert "usage:" in capsys.readouterr().err


def test_command_passes_all_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}

    def fake(uuid: str, level: str, **more: Any) -> Report:
        seen.update(more, uuid=uuid, level=level)
        return report(verdict=Verdict.DEGRADED)

    monkeypatch.setattr(command, "run_check", fake)
    (tmp_path / "b.json").write_text('{"copy_gb_s": 4300}')
    (tmp_path / "l.json").write_text("[]")
    arguments = [
        "--uuid",
        "GPU-1",
        "--level",
        "standard",
        "--baseline",
        str(tmp_path / "b.json"),
        "--deadline",
        "9",
    ]
    assert command.main([*arguments, "--peer", "GPU-2", "--json"]) == 1
    assert problems(json.loads(capsys.readouterr().out)) == []
    assert (seen["uuid"], seen["level"], seen["baseline"]) == ("GPU-1", "standard", {"copy_gb_s": 4300.0})
    assert (seen["deadline_s"], seen["peers"], seen["node_median"]) == (9.0, ["GPU-2"], None)
    assert command.main(arguments) == 1
    assert "DEGRADED" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        command.main(["--uuid", "GPU-1", "--node-median", str(tmp_path / "l.json")])
    assert stop.value.code == 64


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def test_command_without_a_driver_names_library_and_fix() -> None:
    if _has_driver():
        pytest.skip("this machine has a driver")
    ran = subprocess.run(
        [sys.executable, "-m", "provisioning.gpu.check", "--uuid", "GPU-1", "--json"],
        capture_output=True, text=True, timeout=60, check=False,
        cwd=Path(command.__file__).parents[3],
    )  # fmt: skip
    assert ran.returncode == 4, ran.stderr
    value = json.loads(ran.stdout)
    assert problems(value) == []
    assert value["unavailable"]["library"] == "libnvidia-ml.so.1"
    assert "Install the NVIDIA driver" in value["unavailable"]["fix"]
