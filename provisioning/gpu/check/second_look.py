"""A figure below its floor, where nothing else is wrong, is measured again alone before it counts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from provisioning.gpu.check.types import Finding, Severity, Status, TestResult


def to_repeat(tests: Sequence[TestResult], findings: Sequence[Finding]) -> tuple[str, ...]:
    """Tests that would take the device out for a figure alone; none where something else does so already."""
    low = [test.name for test in tests if _is_low(test)]
    codes = {f"test_{name}" for name in low}
    others = [each for each in findings if each.code not in codes]
    if any(each.severity in (Severity.FAIL, Severity.HUNG) for each in others):
        return ()
    return tuple(low)


def _is_low(test: TestResult) -> bool:
    figures = any(each.status == Status.FAILED for each in test.judgements)
    return test.status == Status.FAILED and figures and not test.errors


def merged(
    first: Sequence[TestResult], second: Sequence[TestResult], repeated: Sequence[str]
) -> tuple[TestResult, ...]:
    """The tests with what the second look came to; what it did not reach is open, and no failure."""
    again = {test.name: test for test in second}
    return tuple(_of_both(test, again.get(test.name)) if test.name in repeated else test for test in first)


def _of_both(test: TestResult, again: TestResult | None) -> TestResult:
    if again is None or again.status == Status.SKIPPED:
        why = again.text if again is not None else "Not reached"
        text = f"{test.text}; it could not be measured again alone: {why}"
        # What was low once and not measured again is not known, though nobody had asked for it.
        return replace(test, status=Status.SKIPPED, required=True, text=text)
    if again.status == Status.FAILED:
        return replace(again, text=f"{again.text}; measured twice, the second time alone")
    return replace(again, text=f"{again.text}; measured again alone, after: {test.text}")


def findings_of_both(
    first: Sequence[Finding], second: Sequence[Finding], tests: Sequence[Finding]
) -> tuple[Finding, ...]:
    """What both looks hold against the device, and `tests`, what the merged tests do; each once."""
    kept = [each for each in (*first, *second) if not each.code.startswith("test_")]
    return tuple(dict.fromkeys((*kept, *tests)))
