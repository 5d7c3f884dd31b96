"""Repeat a measurement below its floor alone, if nothing else is wrong, before it counts. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from provisioning.gpu.check.types import Finding, Severity, Status, TestResult


def repeatable_tests(tests: Sequence[TestResult], findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return tests that fail the device only by a measurement; empty if something else fails it already."""
    low = [test.name for test in tests if _is_low(test)]
    codes = {f"test_{name}" for name in low}
    other_findings = [finding for finding in findings if finding.code not in codes]
    if any(finding.severity in (Severity.FAIL, Severity.HUNG) for finding in other_findings):
        return ()
    return tuple(low)


def _is_low(test: TestResult) -> bool:
    figures = any(judgement.status == Status.FAILED for judgement in test.judgements)
    return test.status == Status.FAILED and figures and not test.errors


def merge_results(
    first: Sequence[TestResult], second: Sequence[TestResult], repeated: Sequence[str]
) -> tuple[TestResult, ...]:
    """Return the tests with the repeated results; one without a new result counts as not run."""
    repeated_tests = {test.name: test for test in second}
    return tuple(
        _merged_result(test, repeated_tests.get(test.name)) if test.name in repeated else test
        for test in first
    )


def _merged_result(test: TestResult, repetition: TestResult | None) -> TestResult:
    if repetition is None or repetition.status == Status.SKIPPED:
        why = repetition.text if repetition is not None else "Not reached"
        text = f"{test.text}; a second measurement, alone, gave no result. {why}"
        # A low value that was not measured again is unknown, even if the test was optional.
        return replace(test, status=Status.SKIPPED, required=True, text=text)
    if repetition.status == Status.FAILED:
        return replace(repetition, text=f"{repetition.text}; confirmed by a second measurement, alone")
    return replace(
        repetition, text=f"{repetition.text}; second measurement, alone. First measurement: {test.text}"
    )


def findings_of_both(
    first: Sequence[Finding], second: Sequence[Finding], tests: Sequence[Finding]
) -> tuple[Finding, ...]:
    """Return the findings of both runs and of the merged `tests`, without duplicates."""
    measured = [finding for finding in (*first, *second) if not finding.code.startswith("test_")]
    return tuple(dict.fromkeys((*measured, *tests)))
