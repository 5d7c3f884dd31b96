"""Simultaneous copies of several devices: their value, and wrong words between peers."""

from __future__ import annotations

from typing import Any

import pytest

from provisioning.gpu.check import thresholds, wrong_pairs
from provisioning.gpu.check.assess import assess, raw_of
from provisioning.gpu.check.plan import WITH_PEERS, Test, plan_for
from provisioning.gpu.check.types import Action, Facts, Level, Raw, Severity, Status
from provisioning.gpu.check.verdict import decide, of_tests
from provisioning.gpu.check.wrong_pairs import WrongPair
from tests.gpu.check.judging import H200, done, status_of

CROWD = Test("all_pairs", "all_pairs", 60.0)
ALL = "all_pairs_gb_s:3"


@pytest.mark.parametrize("level", [Level.STANDARD, Level.EXTENDED])
@pytest.mark.parametrize("required", [True, False])
def test_all_pairs_follows_peers_with_two_peers(level: Level, required: bool) -> None:
    plan = plan_for(level, H200, ("GPU-2", "GPU-3"), peers_required=required)
    at = [test.name for test in plan].index("peers")
    named = plan[at + 1]
    assert (named.name, named.probe, named.deadline_s, named.required) == (
        "all_pairs", "all_pairs", 60.0, required,
    )  # fmt: skip
    assert set(WITH_PEERS) >= {"peers", "all_pairs"}


@pytest.mark.parametrize(
    ("level", "peers", "facts"),
    [
        (Level.QUICK, ("GPU-2", "GPU-3"), H200),
        (Level.STANDARD, (), H200),
        (Level.STANDARD, ("GPU-2",), H200),
        (Level.STANDARD, ("GPU-2", "GPU-3"), Facts("MIG-1", mig=True)),
    ],
)
def test_plans_without_all_pairs(level: Level, peers: tuple[str, ...], facts: Facts) -> None:
    assert "all_pairs" not in [test.name for test in plan_for(level, facts, peers)]


@pytest.mark.parametrize(
    ("value", "known", "status"),
    [
        (1000.0, {}, Status.PASSED),
        (1000.0, {ALL: 1000.0}, Status.PASSED),
        (920.0, {ALL: 1000.0}, Status.PASSED),
        (919.9, {ALL: 1000.0}, Status.WARNED),
        (850.0, {ALL: 1000.0}, Status.WARNED),
        # However low: the slow device is unknown.
        (1.0, {ALL: 1000.0}, Status.WARNED),
        # Another number of devices is another metric.
        (1.0, {"all_pairs_gb_s:4": 1000.0}, Status.PASSED),
    ],
)
def test_measures_of_all_devices(value: float, known: dict[str, float], status: Status) -> None:
    raw = done(**{ALL: value, "all_pairs_sent_gb_s:GPU-1": 1.0})
    found = assess(CROWD, raw, H200, baseline=known)
    assert found.status == status
    assert [judgement.metric for judgement in found.judgements] == [ALL], "what one of them sent is told"
    assert found.text.endswith("; any of the devices may be the cause") is (value < 850.0 and bool(
        known.get(ALL)
    ))  # fmt: skip


@pytest.mark.parametrize(("value", "status"), [(850.0, Status.PASSED), (849.9, Status.WARNED)])
def test_comparison_with_the_node_median(value: float, status: Status) -> None:
    assert status_of(CROWD, done(**{ALL: value}), node_median={ALL: 1000.0})[0] == status


def test_missing_peers_are_reported() -> None:
    found = thresholds.judge(ALL, 1.0, H200)
    assert (found.status, found.advisory, found.unit) == (Status.MEASURED, True, "GB/s")
    assert found.text == "Not judged: no other passed checks to compare with."
    assert not thresholds.judge("copy_gb_s", 1.0, Facts("GPU-1", name="new")).advisory
    assert not thresholds.lacks_datasheet(ALL, "NVIDIA GH200 480GB")


def wrong_pairs_detail(*pairs: tuple[str, str, int, bool]) -> dict[str, Any]:
    return {"wrong_pairs": [{"from": a, "to": b, "errors": n, "own": own} for a, b, n, own in pairs]}


def test_wrong_words_on_links_of_the_device_fail() -> None:
    detail = wrong_pairs_detail(
        ("GPU-1", "GPU-2", 3, True), ("GPU-3", "GPU-1", 1, True), ("GPU-2", "GPU-3", 9, False)
    )
    raw = Raw("all_pairs", "done", 4, {ALL: 1000.0}, detail)
    found = assess(CROWD, raw, H200)
    assert (found.status, found.text) == (
        Status.FAILED, "4 wrong words (GPU-1 to GPU-2: 3; GPU-3 to GPU-1: 1)",
    )  # fmt: skip
    assert {test.code for test in of_tests([found])} == {"test_all_pairs", "peers_wrong"}
    assert decide(of_tests([found]), [found], simulated=False)[1] == Action.REPLACE


def test_wrong_words_without_pairs_are_counted() -> None:
    assert status_of(Test("peers", "peers", 1.0), Raw("x", "done", 2))[1] == "2 wrong words"


def test_error_between_two_peers_is_reported_without_changing_the_verdict() -> None:
    detail = wrong_pairs_detail(("GPU-2", "GPU-3", 9, False), ("GPU-3", "GPU-2", 2, False))
    found = assess(CROWD, Raw("all_pairs", "done", 0, {ALL: 1000.0}, detail), H200)
    assert found.status == Status.PASSED
    (told,) = of_tests([found])
    assert (told.code, told.severity, told.action) == (wrong_pairs.CODE, Severity.INFO, Action.NONE)
    assert "between other devices: GPU-2 to GPU-3: 9; GPU-3 to GPU-2: 2." in told.text
    assert decide([told], [found], simulated=False) == ("pass", Action.NONE)


def test_pairs_of_the_device_and_between_peers() -> None:
    detail = wrong_pairs_detail(("GPU-1", "GPU-2", 3, True), ("GPU-2", "GPU-3", 9, False))
    assert wrong_pairs.pairs_of(detail, own=True) == (WrongPair("GPU-1", "GPU-2", 3),)
    assert wrong_pairs.pairs_of(detail, own=False) == (WrongPair("GPU-2", "GPU-3", 9),)
    assert wrong_pairs.pairs_of({}, own=True) == ()


@pytest.mark.parametrize(
    "value", [[{"from": "GPU-1"}], [{"from": 1, "to": 2, "errors": "x", "own": False}], 7, ["x"]], ids=str
)
def test_malformed_pairs_are_rejected(value: object) -> None:
    message = {"test": "all_pairs", "state": "done", "errors": 0, "detail": {"wrong_pairs": value}}
    assert raw_of(message) is None


def test_test_without_comparison_is_skipped() -> None:
    assert status_of(CROWD, Raw("x", "done", None, {ALL: 1.0})) == (
        Status.SKIPPED,
        "The test compared no data",
    )
