"""Reads reports of nodes. A report that is invalid or about another run is never a pass.

The verdict is computed again from the report's tests and findings, and the worse verdict applies.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.gpu_checks import baselines
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.kinds.registry import handler_of
from portal.gpu_checks.models import CheckVerdict, GpuCheckRun
from provisioning import messages
from provisioning.check_messages import CheckAnswer
from provisioning.gpu.check import hardware_state, joint_load, wrong_pairs
from provisioning.gpu.check import verdict as judging
from provisioning.gpu.check.joint_load import JointResult
from provisioning.gpu.check.report import schema, software_key
from provisioning.gpu.check.types import Action, Finding, Severity, Status, TestResult, Verdict
from provisioning.gpu.check.wrong_pairs import WrongPair
from provisioning.gpu.scrub import ScrubResult, ScrubVerdict

log = logging.getLogger(__name__)

MAX_BYTES = 512 * 1024
MAX_COUNT = 1_000_000
HEALTH_OF_THE_GPU = (
    "ecc_", "xid_", "remap", "retired", "sram_", "recovery_action", "lost", "nvml_hung", "abandoned",
)  # fmt: skip
"""Code prefixes of findings about the whole GPU, even if they were seen on an instance."""
_WEIGHT = (
    CheckVerdict.PASS,
    CheckVerdict.DEGRADED,
    CheckVerdict.INCONCLUSIVE,
    CheckVerdict.FAIL,
    CheckVerdict.HUNG,
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. `action` is the recovery of the device; `report` is stored as received."""

    verdict: CheckVerdict
    action: str
    summary: str
    report: dict[str, Any] = field(default_factory=dict)
    measures: dict[str, Any] = field(default_factory=dict)
    free_mib: int | None = None
    of_the_parent: bool = False
    unjudged: bool = False
    between_peers: tuple[WrongPair, ...] = ()
    """Wrong words between two peers of the run, which do not count against its own device."""
    parts: tuple[JointResult, ...] = ()
    """Results of each device while all were under load. The run's own device comes first."""


class InvalidReport(Exception):
    """The report is not valid for the run. The message explains why."""


def read_check(answer: CheckAnswer, run: GpuCheckRun) -> RunResult:
    """Return the result of a check."""
    if answer.failure is not None:
        return _failed_reading(answer)
    try:
        report = _load_report(answer, run)
    except InvalidReport as problem:
        return _invalid_reading(run, problem)
    tests = tuple(messages.load(entry, TestResult) for entry in report["tests"])
    findings = tuple(messages.load(entry, Finding) for entry in report["findings"])
    simulated = bool(report["simulated"]) and run.device.node.pool.simulated
    decided, action = judging.decide(findings, tests, simulated=False)
    computed = CheckVerdict(decided.value)
    reported = CheckVerdict(report["verdict"])
    if simulated:
        # A simulated report is never a pass, except within its own pool.
        counts = CheckVerdict.INCONCLUSIVE if report["unavailable"] is not None else computed
    else:
        counts = max(reported, computed, key=_WEIGHT.index)
    return RunResult(
        verdict=counts,
        action=max(Action(report["action"]), action, key=tuple(Action).index).value,
        summary=_summary(report, counts, tests) if simulated else report["summary"],
        report=report,
        measures=_measures(tests, run, _software(report), _memory_metric(report)) | _own(report),
        between_peers=tuple(pair for test in tests for pair in wrong_pairs.pairs_of(test.detail, own=False)),
        parts=tuple(part for test in tests for part in joint_load.results_of(test.detail)),
        unjudged=counts == CheckVerdict.DEGRADED and not simulated and _is_unjudged(tests, findings),
        of_the_parent=any(
            finding.code.startswith(HEALTH_OF_THE_GPU) and finding.severity in (Severity.FAIL, Severity.HUNG)
            for finding in findings
        ),
    )


def _is_unjudged(tests: Sequence[TestResult], findings: Sequence[Finding]) -> bool:
    """Return whether only figures without a limit prevent a pass."""
    unjudged = {test.name for test in tests if test.unjudged}
    codes = {f"test_{name}" for name in unjudged}
    others = [test for test in tests if test.name not in unjudged]
    remaining = [finding for finding in findings if finding.code not in codes]
    decided, _ = judging.decide([*remaining, *judging.of_tests(others)], others, simulated=False)
    return bool(unjudged) and decided == Verdict.PASS


def read_scrub(answer: CheckAnswer, run: GpuCheckRun) -> RunResult:
    """Return the result of a scrub."""
    if answer.failure is not None:
        return _failed_reading(answer)
    try:
        _check_size(answer.report)
        try:
            result = messages.load(answer.report, ScrubResult)
        except ValueError as error:
            raise InvalidReport(str(error)) from error
        if result.uuid != run.device.uuid:
            raise InvalidReport("it is about another device")
        if result.simulated != run.device.node.pool.simulated:
            raise InvalidReport("a simulated result says nothing about a device")
    except InvalidReport as problem:
        return _invalid_reading(run, problem)
    verdict, action = _SCRUBS[result.verdict]
    prefix = "Simulated. " if result.simulated else ""
    return RunResult(
        verdict=verdict,
        action=action,
        summary=f"{prefix}{result.text}",
        report=messages.dump(result),
        measures={
            "free_mib": _free(result.free_mib, run),
            "coverage_per_mille": {"value": result.coverage_per_mille, "unit": "‰", "fail_below": 980},
        },
        free_mib=result.free_mib,
    )


_SCRUBS: dict[ScrubVerdict, tuple[CheckVerdict, str]] = {
    ScrubVerdict.CLEAN: (CheckVerdict.PASS, "none"),
    ScrubVerdict.FAILED: (CheckVerdict.FAIL, "inspect"),
    ScrubVerdict.LEAK: (CheckVerdict.FAIL, "reset"),
    ScrubVerdict.BUSY: (CheckVerdict.INCONCLUSIVE, "retry"),
    ScrubVerdict.INCONCLUSIVE: (CheckVerdict.INCONCLUSIVE, "retry"),
    ScrubVerdict.UNAVAILABLE: (CheckVerdict.INCONCLUSIVE, "inspect"),
    ScrubVerdict.HUNG: (CheckVerdict.HUNG, "reboot"),
}


def _failed_reading(answer: CheckAnswer) -> RunResult:
    """Return the result of a run that failed to run on the node, or hung."""
    assert answer.failure is not None
    verdict = CheckVerdict.HUNG if answer.failure.code == "hung" else CheckVerdict.INCONCLUSIVE
    action = "reboot" if verdict == CheckVerdict.HUNG else "retry"
    return RunResult(verdict, action, answer.failure.message, of_the_parent=verdict == CheckVerdict.HUNG)


def _invalid_reading(run: GpuCheckRun, problem: InvalidReport) -> RunResult:
    noun = handler_of(run.kind).noun
    log.warning("rejected report of %s of %s: %s", noun, run.device.uuid, problem)
    summary = message_of(Reason(CheckCode.REPORT_UNSOUND, {"kind": run.kind, "problem": str(problem)}))[:500]
    return RunResult(CheckVerdict.INCONCLUSIVE, "retry", summary)


def _check_size(report: dict[str, Any] | None) -> None:
    if report is None:
        raise InvalidReport("it is missing")
    size = len(json.dumps(report))
    if size > MAX_BYTES:
        raise InvalidReport(f"it has {size // 1024} KiB, more than {MAX_BYTES // 1024}")


def _load_report(answer: CheckAnswer, run: GpuCheckRun) -> dict[str, Any]:
    report = answer.report
    _check_size(report)
    assert report is not None
    problem = next(iter(_validator().iter_errors(report)), None)
    if problem is not None:
        raise InvalidReport(f"{problem.json_path}: {problem.message}"[:300])
    if report["uuid"] != run.device.uuid or answer.uuid != run.device.uuid:
        raise InvalidReport("it is about another device")
    if report["level"] != run.level:
        raise InvalidReport(f"its level is {report['level']}")
    if report["simulated"] != run.device.node.pool.simulated:
        raise InvalidReport("a simulated report says nothing about a device")
    try:
        for test in report["tests"]:
            wrong_pairs.pairs_of(test["detail"], own=False)
            joint_load.results_of(test["detail"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidReport("its results for other devices are not valid") from error
    return report


@lru_cache(maxsize=1)
def _validator() -> Any:
    return jsonschema.Draft202012Validator(schema())


def _software(report: dict[str, Any]) -> str:
    facts = report.get("facts") or {}
    return software_key(str(facts.get("driver_version") or ""), report["software"])


def _memory_metric(report: dict[str, Any]) -> str:
    """Return the key of the free memory for this ECC mode and display; empty if the report lacks them."""
    ecc = (report.get("facts") or {}).get("ecc")
    try:
        return hardware_state.memory_state(ecc, (report["health_before"], report["health_after"])).metric
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""


def _measures(
    tests: tuple[TestResult, ...], run: GpuCheckRun, software: str, memory_metric: str
) -> dict[str, Any]:
    """Return the judged figures by name with their limits, for trends."""
    measures: dict[str, Any] = {}
    for test in tests:
        for judgement in test.judgements:
            measures[judgement.metric] = {
                "value": judgement.value,
                "unit": judgement.unit,
                "status": judgement.status.value,
                "fail_below": judgement.fail_below,
                "warn_below": judgement.warn_below,
                "against": judgement.against,
                "test": test.name,
            }
        if "free_mib" in test.measures:
            measures["free_mib"] = _free(test.measures["free_mib"], run) | {
                "test": test.name,
                baselines.SOFTWARE: software,
                baselines.METRIC: memory_metric,
            }
    return measures


def _own(report: dict[str, Any]) -> dict[str, Any]:
    try:
        own = hardware_state.own_figures(report["health_before"] or {})
    except (AttributeError, KeyError, TypeError, ValueError):
        own = {}
    return {name: {"value": value} for name, value in own.items() if 0 <= value < MAX_COUNT}


def _free(mib: float, run: GpuCheckRun) -> dict[str, Any]:
    return {"value": mib, "unit": "MiB", baselines.DRIVER: run.device.node.driver_version}


def _summary(report: dict[str, Any], verdict: CheckVerdict, tests: tuple[TestResult, ...]) -> str:
    """Return the summary of a simulated report that would have been a pass."""
    if verdict != CheckVerdict.PASS:
        return str(report["summary"])
    passed = sum(1 for test in tests if test.status == Status.PASSED)
    return f"Simulated: {passed} of {len(tests)} tests passed. It says nothing about a device."
