"""Verdicts: the deciding finding and the recommended action."""

from __future__ import annotations

import pytest

from provisioning.gpu.check.assess import assess
from provisioning.gpu.check.types import (
    Action,
    Finding,
    Judgement,
    Severity,
    Status,
    TestResult,
    Verdict,
)
from provisioning.gpu.check.verdict import decide, of_tests
from tests.gpu.check.judging import COPY, H200, done, found


def result(status: Status, *, required: bool = True, errors: int | None = None) -> TestResult:
    return TestResult("x", status, required, "text", errors=errors)


@pytest.mark.parametrize(
    ("test", "severity", "action"),
    [
        (result(Status.FAILED, errors=3), Severity.FAIL, Action.REPLACE),
        (result(Status.FAILED, errors=0), Severity.FAIL, Action.INSPECT),
        (result(Status.FAILED, required=False), Severity.FAIL, Action.INSPECT),
        (result(Status.HUNG), Severity.HUNG, Action.REBOOT),
        (result(Status.WARNED), Severity.DEGRADED, Action.INSPECT),
        (result(Status.SKIPPED), Severity.INCONCLUSIVE, Action.RETRY),
        (result(Status.MEASURED), Severity.INCONCLUSIVE, Action.RETRY),
    ],
)
def test_finding_of_a_test(test: TestResult, severity: Severity, action: Action) -> None:
    assert found(of_tests([test])) == [("test_x", severity, action)]


def test_passed_skipped_and_measured_tests_have_no_findings() -> None:
    assert (
        of_tests(
            [
                result(Status.PASSED),
                result(Status.SKIPPED, required=False),
                result(Status.MEASURED, required=False),
            ]
        )
        == []
    )


ORDER = [Severity.INFO, Severity.DEGRADED, Severity.INCONCLUSIVE, Severity.FAIL, Severity.HUNG]
VERDICTS = [Verdict.PASS, Verdict.DEGRADED, Verdict.INCONCLUSIVE, Verdict.FAIL, Verdict.HUNG]
ONE = [result(Status.PASSED)]


def finding(severity: Severity, action: Action = Action.NONE) -> Finding:
    return Finding("x", severity, "text", action)


def test_worst_finding_decides() -> None:
    for i, one in enumerate(ORDER):
        for j, other in enumerate(ORDER):
            verdict, _ = decide([finding(one), finding(other)], ONE, simulated=False)
            assert verdict == VERDICTS[max(i, j)]


def test_no_tests_are_inconclusive() -> None:
    assert decide([], ONE, simulated=False) == (Verdict.PASS, Action.NONE)
    assert decide([], [], simulated=False)[0] == Verdict.INCONCLUSIVE
    assert decide([finding(Severity.DEGRADED)], [], simulated=False)[0] == Verdict.INCONCLUSIVE


@pytest.mark.parametrize("severity", ORDER)
def test_simulated_run_never_passes(severity: Severity) -> None:
    verdict, _ = decide([finding(severity)], ONE, simulated=True)
    assert verdict == {Severity.FAIL: Verdict.FAIL, Severity.HUNG: Verdict.HUNG}.get(
        severity, Verdict.INCONCLUSIVE
    )


def test_strongest_action_is_recommended() -> None:
    weak, strong = finding(Severity.FAIL, Action.RETRY), finding(Severity.DEGRADED, Action.REPLACE)
    assert decide([weak, strong], ONE, simulated=False) == (Verdict.FAIL, Action.REPLACE)
    assert decide([weak, finding(Severity.INFO, Action.REPLACE)], ONE, simulated=False)[1] == Action.RETRY
    assert list(Action) == ["none", "retry", "inspect", "reset", "drain_and_reset", "reboot", "replace"]


def test_judgement_is_reported() -> None:
    text = assess(COPY, done(copy_gb_s=3000.0), H200).text
    assert text == "copy_gb_s 3000 GB/s is below the datasheet limit of 3456"
    warned = assess(COPY, done(copy_gb_s=3500.0), H200).text
    assert warned == "copy_gb_s 3500 GB/s is below the datasheet limit of 3840"
    judged = assess(COPY, done(copy_gb_s=3000.0), H200).judgements
    assert all(isinstance(one, Judgement) for one in judged)
