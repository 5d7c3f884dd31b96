"""All GPUs of a node under load at once: each is compared with itself, and only the checked one is judged."""

from __future__ import annotations

from typing import Any

import pytest

from provisioning.gpu.check import joint_load, thresholds
from provisioning.gpu.check.assess import assess, raw_of
from provisioning.gpu.check.joint_load import JointResult
from provisioning.gpu.check.plan import JOINT_DEADLINE_S, Test, plan_for
from provisioning.gpu.check.types import Action, Facts, Finding, Level, Raw, Severity, Status, TestResult
from provisioning.gpu.check.verdict import decide, of_tests
from tests.gpu.check.judging import H200

JOINT = Test("joint_burn", "joint_burn", 105.0)
PERCENT = "joint_burn_percent:3"


def detail(*parts: tuple[str, float, int]) -> dict[str, Any]:
    return {"by_device": {uuid: part(percent, errors) for uuid, percent, errors in parts}}


def part(percent: float, errors: int, *, caught: bool = True) -> dict[str, Any]:
    speeds = {"alone_tflops": 600.0, "together_tflops": 6 * percent}
    return {**speeds, "percent": percent, "errors": errors, "canary_found": caught}


def raw(percent: float = 100.0, errors: int | None = 0, *parts: tuple[str, float, int]) -> Raw:
    return Raw("joint_burn", "done", errors, {PERCENT: percent}, detail(("GPU-1", percent, 0), *parts))


@pytest.mark.parametrize("required", [True, False])
def test_extended_level_with_peers_has_joint_burn(required: bool) -> None:
    plan = plan_for(Level.EXTENDED, H200, ("GPU-2", "GPU-3"), peers_required=required)
    names = [test.name for test in plan]
    assert names[names.index("joint_burn") - 1 : names.index("joint_burn") + 2] == [
        "power_steps", "joint_burn", "all_reduce",
    ]  # fmt: skip
    joint = plan[names.index("joint_burn")]
    assert (joint.probe, joint.required, joint.deadline_s) == ("joint_burn", required, 120.0)
    assert dict(joint.params) == {"dtype": "bf16", "seconds": 30.0}
    # Each GPU runs alone, too.
    eight = plan_for(Level.EXTENDED, H200, tuple(f"GPU-{n}" for n in range(7)))
    assert next(test for test in eight if test.name == "joint_burn").deadline_s == 195.0


def test_joint_check_covers_all_gpus_of_the_node() -> None:
    plan = plan_for(Level.QUICK, H200, ("GPU-2", "GPU-3"), peers_required=False, joint=True)
    required = {test.name: test.required for test in plan}
    assert required == {"canary": True, "joint_burn": True, "all_pairs": False, "all_reduce": False}
    assert dict(plan[1].params) == {"dtype": "bf16", "seconds": 120.0}
    deadlines = {test.name: test.deadline_s for test in plan}
    assert deadlines == {"canary": 15.0, "joint_burn": 210.0, "all_pairs": 60.0, "all_reduce": 90.0}
    assert sum(deadlines.values()) < JOINT_DEADLINE_S == 900.0
    assert "all_pairs" not in [test.name for test in plan_for(Level.QUICK, H200, ("GPU-2",), joint=True)]


def test_peer_that_misses_a_canary_is_named() -> None:
    blind = {"by_device": {"GPU-1": part(100.0, 0), "GPU-2": part(100.0, 0, caught=False)}}
    (note,) = joint_load.findings([TestResult("joint_burn", Status.PASSED, True, "x", detail=blind)])
    assert (note.code, note.severity) == (joint_load.BLIND, Severity.INFO)
    assert note.text == "A planted error was not detected on peers: GPU-2. Check each peer."


@pytest.mark.parametrize(
    ("level", "peers", "facts"),
    [
        (Level.QUICK, ("GPU-2",), H200),
        (Level.STANDARD, ("GPU-2",), H200),
        (Level.EXTENDED, (), H200),
        (Level.EXTENDED, ("GPU-2",), Facts("MIG-1", mig=True)),
    ],
)
def test_plans_without_joint_burn(level: Level, peers: tuple[str, ...], facts: Facts) -> None:
    assert "joint_burn" not in [test.name for test in plan_for(level, facts, peers)]


@pytest.mark.parametrize(
    ("percent", "status"),
    [(104.0, Status.PASSED), (85.0, Status.PASSED), (84.9, Status.WARNED), (1.0, Status.WARNED)],
)
def test_device_slower_than_alone_is_a_warning(percent: float, status: Status) -> None:
    found = assess(JOINT, raw(percent), H200)
    (judged,) = found.judgements
    assert (found.status, judged.status, judged.unit, judged.against) == (status, status, "%", "alone")
    assert (judged.fail_below, judged.warn_below, judged.advisory) == (None, 85.0, False)
    if status == Status.WARNED:
        assert found.text == f"{PERCENT} {percent:g} % is below the single-device limit of 85"
        assert of_tests([found]) == [
            Finding("test_joint_burn", Severity.DEGRADED, found.text, Action.INSPECT)
        ]


def test_wrong_words_of_the_device_fail() -> None:
    found = assess(JOINT, raw(100.0, 3), H200)
    assert (found.status, found.text) == (Status.FAILED, "3 wrong words")
    assert of_tests([found])[0].action == Action.REPLACE


def test_test_without_comparison_or_value_is_skipped() -> None:
    assert assess(JOINT, raw(100.0, None), H200).text == "The test compared no data"
    empty = assess(JOINT, Raw("x", "done", 0, {"joint_burn_alone": 1.0}), H200)
    assert (empty.status, empty.text) == (Status.SKIPPED, f"The test did not measure {thresholds.JOINT}")
    # Other tests do not need it.
    assert (
        assess(Test("address", "address", 1.0), Raw("x", "done", 0, {"coverage": 1.0}), H200).text
        == "No error"
    )


def test_peer_faults_are_noted_without_changing_the_verdict() -> None:
    parts = (("GPU-2", 85.0, 0), ("GPU-3", 84.9, 0), ("GPU-4", 100.0, 7))
    found = assess(JOINT, raw(100.0, 0, *parts), H200)
    slow, wrong = of_tests([found])
    assert (slow.code, slow.severity, slow.action) == (joint_load.SLOW, Severity.INFO, Action.NONE)
    assert slow.text == (
        "Slower when all GPUs are busy: GPU-3 (84.9 %). Check power and cooling of the node."
    )
    assert (wrong.code, wrong.severity, wrong.action) == (joint_load.WRONG, Severity.INFO, Action.NONE)
    assert wrong.text == "Wrong words on peers when all GPUs are busy: GPU-4 (7). Check each peer."
    assert decide([slow, wrong], [found], simulated=False) == ("pass", Action.NONE)
    (first,) = of_tests([assess(JOINT, raw(100.0, 0, ("GPU-2", 50.0, 0)), H200)])
    assert "GPU-2 (50 %)" in first.text


def test_checked_device_and_other_tests_have_no_peer_findings() -> None:
    slow = TestResult("joint_burn", Status.WARNED, True, "x", detail=detail(("GPU-1", 1.0, 9)))
    assert joint_load.findings([slow]) == []
    other = TestResult("copy", Status.PASSED, True, "x", detail=detail(("GPU-1", 1.0, 9), ("GPU-2", 1.0, 9)))
    assert joint_load.findings([other]) == []
    assert joint_load.results_of(detail(("GPU-1", 1.5, 9))) == (
        JointResult("GPU-1", 600.0, 9.0, 1.5, 9, False),
    )
    assert joint_load.results_of({}) == ()


@pytest.mark.parametrize(
    "value", [[1], {"GPU-1": {}}, {"GPU-1": 7}, {"GPU-1": {"percent": "x", "errors": 0}}, 7]
)
def test_malformed_device_results_are_rejected(value: object) -> None:
    message = {"test": "joint_burn", "state": "done", "errors": 0, "detail": {"by_device": value}}
    assert raw_of(message) is None


def test_hang_is_not_attributed_to_the_checked_device() -> None:
    hung = assess(JOINT, Raw("joint_burn", "hung", reason="The test did not end within 105 s"), H200)
    assert of_tests([hung]) == [
        Finding("test_joint_burn", Severity.INCONCLUSIVE, "The test did not end within 105 s", Action.RETRY)
    ]


def test_missing_duration_is_zero() -> None:
    found = raw_of({"test": "joint_burn", "state": "done", "errors": 0})
    assert found is not None and found.duration_ms == 0
