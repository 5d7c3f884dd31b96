"""When a value is measured again, and the result of both measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioning.gpu.check.second_look import findings_of_both, merge_results, repeatable_tests
from provisioning.gpu.check.types import Finding, Judgement, Severity, Status, TestResult


def result(
    name: str, status: Status, *figures: Status, errors: int | None = 0, text: str = "x"
) -> TestResult:
    judged = tuple(Judgement("pcie", 1.0, "GB/s", figure) for figure in figures)
    return TestResult(name, status, True, text, errors=errors, judgements=judged)


def found(code: str, severity: Severity) -> Finding:
    return Finding(code, severity, code)


LOW = result("pcie", Status.FAILED, Status.PASSED, Status.FAILED, text="5 is below 48")
GOOD = result("address", Status.PASSED)
OWN = found("test_pcie", Severity.FAIL)


def test_low_value_is_measured_again() -> None:
    assert repeatable_tests([GOOD, LOW], [OWN]) == ("pcie",)
    assert repeatable_tests([GOOD, LOW], [OWN, found("ecc_corrected", Severity.DEGRADED)]) == ("pcie",)
    assert repeatable_tests([LOW, result("copy", Status.FAILED, Status.FAILED, errors=None)], [OWN]) == (
        "pcie",
        "copy",
    )


@pytest.mark.parametrize(
    "test",
    [
        result("pcie", Status.FAILED, Status.FAILED, errors=3),
        result("pcie", Status.FAILED),
        result("pcie", Status.FAILED, Status.WARNED),
        result("pcie", Status.WARNED, Status.FAILED),
        GOOD,
    ],
)
def test_findings_without_low_values_are_not_rechecked(test: TestResult) -> None:
    assert repeatable_tests([test], []) == ()


@pytest.mark.parametrize("severity", [Severity.FAIL, Severity.HUNG])
def test_device_with_another_fault_is_not_measured_again(severity: Severity) -> None:
    assert repeatable_tests([LOW], [OWN, found("lost", severity)]) == ()


def merge(*second: TestResult) -> Any:
    first, last = merge_results([GOOD, LOW], second, ("pcie",))
    assert first is GOOD
    return last


def test_second_measurement_decides() -> None:
    assert merge(result("pcie", Status.PASSED, text="54")).text == (
        "54; second measurement, alone. First measurement: 5 is below 48"
    )
    assert merge(result("pcie", Status.WARNED)).status == Status.WARNED
    again = merge(result("pcie", Status.FAILED, Status.FAILED, text="6 is below 48"))
    assert (again.status, again.text) == (
        Status.FAILED,
        "6 is below 48; confirmed by a second measurement, alone",
    )


def test_unrepeatable_measurement_is_inconclusive() -> None:
    skipped = merge(result("pcie", Status.SKIPPED, text="busy"))
    assert (skipped.status, skipped.judgements) == (Status.SKIPPED, LOW.judgements)
    assert skipped.text == "5 is below 48; a second measurement, alone, gave no result. busy"
    assert merge().text.endswith("gave no result. Not reached")
    assert merge(result("address", Status.FAILED)).status == Status.SKIPPED
    optional = replace(LOW, required=False)
    (open_,) = merge_results([optional], [], ("pcie",))
    assert open_.required, "what was low once is not passed over"


def test_each_finding_is_reported_once() -> None:
    xid, heat = found("xid_13", Severity.INFO), found("heat", Severity.DEGRADED)
    assert findings_of_both([OWN, xid], [xid, OWN, heat], []) == (xid, heat)
    assert findings_of_both([OWN], [], [OWN]) == (OWN,)
