"""Combine results and findings into one verdict. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from provisioning.gpu.check import joint_load, wrong_pairs
from provisioning.gpu.check.plan import ANY_CAN_HANG, COLLECTIVE_PROBES
from provisioning.gpu.check.types import Action, Finding, Severity, Status, TestResult, Verdict

_ORDER = (Severity.INFO, Severity.DEGRADED, Severity.INCONCLUSIVE, Severity.FAIL, Severity.HUNG)
_VERDICTS = {
    Severity.INFO: Verdict.PASS,
    Severity.DEGRADED: Verdict.DEGRADED,
    Severity.INCONCLUSIVE: Verdict.INCONCLUSIVE,
    Severity.FAIL: Verdict.FAIL,
    Severity.HUNG: Verdict.HUNG,
}
_ACTIONS = tuple(Action)


def of_tests(tests: Sequence[TestResult]) -> list[Finding]:
    """Return findings for test results. A required test without a result is inconclusive."""
    findings = []
    for test in tests:
        code = f"test_{test.name}"
        if test.status == Status.FAILED:
            action = Action.REPLACE if test.errors and test.name not in COLLECTIVE_PROBES else Action.INSPECT
            findings.append(Finding(code, Severity.FAIL, test.text, action))
        elif test.status == Status.HUNG and test.name in ANY_CAN_HANG:
            # Any of the devices may be the cause, so this is neither a failure of this one nor a pass.
            findings.append(Finding(code, Severity.INCONCLUSIVE, test.text, Action.RETRY))
        elif test.status == Status.HUNG:
            findings.append(Finding(code, Severity.HUNG, test.text, Action.REBOOT))
        elif test.status == Status.WARNED:
            findings.append(Finding(code, Severity.DEGRADED, test.text, Action.INSPECT))
        elif test.required and test.status in (Status.SKIPPED, Status.MEASURED):
            findings.append(Finding(code, Severity.INCONCLUSIVE, test.text, Action.RETRY))
    return findings + wrong_pairs.findings(tests) + joint_load.findings(tests)


def decide(
    findings: Sequence[Finding], tests: Sequence[TestResult], *, simulated: bool
) -> tuple[Verdict, Action]:
    """Return the verdict, and the strongest action of its reasons.

    Without any test there is no pass. A simulated run is neither a pass nor degraded, since it says nothing
    about a device.
    """
    worst = max((f.severity for f in findings), key=_ORDER.index, default=Severity.INFO)
    verdict = _VERDICTS[worst]
    if verdict in (Verdict.PASS, Verdict.DEGRADED) and (simulated or not tests):
        verdict = Verdict.INCONCLUSIVE
    reasons = [f.action for f in findings if f.severity != Severity.INFO]
    return verdict, max(reasons, key=_ACTIONS.index, default=Action.NONE)
