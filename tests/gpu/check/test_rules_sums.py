"""Sums over several devices: judgement, and attribution to devices."""

from __future__ import annotations

import pytest

from provisioning.gpu.check import verdict
from provisioning.gpu.check.assess import assess
from provisioning.gpu.check.plan import COLLECTIVE_PROBES, WITH_PEERS, Test, plan_for
from provisioning.gpu.check.thresholds import judge
from provisioning.gpu.check.types import (
    Action,
    Facts,
    Finding,
    Level,
    Raw,
    Severity,
    Status,
    TestResult,
    Verdict,
)

H200 = Facts("GPU-1", name="NVIDIA H200", compute_capability=(9, 0))
METRIC = "all_reduce_bus_gb_s:3:2.32.3"
SUM = Test("all_reduce", "all_reduce", 90.0)
GOOD = Raw("all_reduce", "done", 0, {METRIC: 360.0, "ranks": 3.0})


def assess_sum(raw: Raw, test: Test = SUM, **known: dict[str, float]) -> TestResult:
    return assess(test, raw, H200, **known)


@pytest.mark.parametrize("level", [Level.STANDARD, Level.EXTENDED])
def test_all_reduce_is_last_with_peers(level: Level) -> None:
    last = plan_for(level, H200, ("GPU-2", "GPU-3"))[-1]
    assert (last.name, last.probe, last.deadline_s, last.required) == ("all_reduce", "all_reduce", 90.0, True)
    named = plan_for(level, H200, ("GPU-2",), peers_required=False)
    assert [test.required for test in named if test.probe in WITH_PEERS] == [False] * (
        3 if level == Level.EXTENDED else 2
    )
    assert {"peers", "all_pairs", "joint_burn", *COLLECTIVE_PROBES} == WITH_PEERS
    for plan in (plan_for(level, H200), plan_for(level, Facts("MIG-1", mig=True), ("GPU-2",))):
        assert not [test for test in plan if test.probe in WITH_PEERS]


def test_speed_without_comparison_is_information() -> None:
    found = assess_sum(GOOD)
    (judged,) = found.judgements
    assert (found.status, judged.status, judged.advisory) == (Status.PASSED, Status.MEASURED, True)
    assert judged.text == "Not judged: no other passed checks to compare with."
    assert assess_sum(GOOD, baseline={"all_reduce_bus_gb_s:2:2.32.3": 1000.0}).judgements == (judged,)


@pytest.mark.parametrize("known", ["baseline", "node_median"])
def test_slow_collective_fails_no_device(known: str) -> None:
    assert assess_sum(GOOD, **{known: {METRIC: 360.0 / 0.93}}).status == Status.PASSED
    found = assess_sum(GOOD, **{known: {METRIC: 360.0 / 0.84}})
    assert (found.status, found.judgements[0].status) == (Status.WARNED, Status.FAILED)
    assert found.text.startswith(f"{METRIC} 360 GB/s is below ")
    assert found.text.endswith("; any of the devices may be the cause")
    assert verdict.of_tests([found]) == [
        Finding("test_all_reduce", Severity.DEGRADED, found.text, Action.INSPECT)
    ]
    other = assess_sum(Raw("x", "done", 0, {"copy_gb_s": 1.0}), Test("copy", "copy", 1.0))
    assert (other.status, "may be the cause" in other.text) == (Status.FAILED, False)


def test_warning_names_no_cause_without_evidence() -> None:
    found = assess_sum(GOOD, baseline={METRIC: 360.0 / 0.9})
    assert (found.status, "may be the cause" in found.text) == (Status.WARNED, False)


def test_vgpu_is_not_judged() -> None:
    judged = judge(METRIC, 1.0, Facts("GPU-1", vgpu=True), baseline={METRIC: 100.0})
    assert (judged.status, judged.advisory) == (Status.MEASURED, True)


def test_wrong_words_name_their_devices() -> None:
    ranks = {"GPU-1": 0, "GPU-2": 7, "GPU-3": 1}
    found = assess_sum(Raw("x", "done", 8, {METRIC: 360.0}, {"wrong_words_by_rank": ranks}))
    assert (found.status, found.text) == (Status.FAILED, "8 wrong words, on GPU-2 (7), GPU-3 (1)")
    assert verdict.of_tests([found]) == [
        Finding("test_all_reduce", Severity.FAIL, found.text, Action.INSPECT)
    ]
    # Results of other tests belong to the device; a child's detail may be malformed.
    copy = assess_sum(Raw("x", "done", 8, {"copy_gb_s": 1.0}), Test("copy", "copy", 1.0))
    assert (copy.text, verdict.of_tests([copy])[0].action) == ("8 wrong words", Action.REPLACE)
    assert assess_sum(Raw("x", "done", 8, {}, {"wrong_words_by_rank": "all"})).text == "8 wrong words"


def test_test_without_comparison_or_value_is_skipped() -> None:
    assert assess_sum(Raw("x", "done", None, {METRIC: 360.0})).text == "The test compared no data"
    found = assess_sum(Raw("x", "done", 0, {"ranks": 3.0}))
    assert (found.status, found.text) == (Status.SKIPPED, "The test did not measure all_reduce_bus_gb_s")


def test_hang_is_inconclusive() -> None:
    found = assess_sum(Raw("all_reduce", "hung", reason="The test did not end within 90 s"))
    assert found.status == Status.HUNG
    findings = verdict.of_tests([found])
    assert findings == [
        Finding("test_all_reduce", Severity.INCONCLUSIVE, "The test did not end within 90 s", Action.RETRY)
    ]
    assert verdict.decide(findings, [found], simulated=False) == (Verdict.INCONCLUSIVE, Action.RETRY)
    # Not even if optional: a hang is checked again.
    optional = assess_sum(
        Raw("all_reduce", "hung", reason="x"), Test("all_reduce", "all_reduce", 90.0, required=False)
    )
    assert verdict.of_tests([optional])[0].severity == Severity.INCONCLUSIVE
    (other,) = verdict.of_tests([TestResult("peers", Status.HUNG, True, "x")])
    assert (other.severity, other.action) == (Severity.HUNG, Action.REBOOT)


@pytest.mark.parametrize("required", [True, False])
def test_missing_hardware_is_not_required(required: bool) -> None:
    test = Test("all_reduce", "all_reduce", 90.0, required=required)
    absent = assess_sum(Raw("all_reduce", "absent", reason="No library."), test)
    assert (absent.status, absent.required, absent.text) == (Status.SKIPPED, False, "Not run. No library.")
    assert verdict.of_tests([absent]) == []
    # Tests that every machine supports are required.
    copy = assess_sum(Raw("copy", "absent", reason="x"), Test("copy", "copy", 1.0, required=required))
    assert (copy.status, copy.required) == (Status.SKIPPED, required)
    for raw in (Raw("all_reduce", "skipped", reason="x"), Raw("all_reduce", "error", error="ncclX: 2")):
        assert [each.severity for each in verdict.of_tests([assess_sum(raw, test)])] == [
            Severity.INCONCLUSIVE
        ] * required
