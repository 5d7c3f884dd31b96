"""All links of three devices at once, over a made-up device: real processes, faults on command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.report import Report, render
from provisioning.gpu.check.types import Action, Severity, Status, Verdict
from tests.gpu.check.sim_cuda import UUID

Check = Callable[..., Report]
pytestmark = pytest.mark.engine
PEERS = Test("peers", "peers", 20.0)
CROWD = Test("all_pairs", "all_pairs", 20.0)
THREE = {"devices": 3}
ALL = "all_pairs_gb_s:3"


def gpu(number: int) -> str:
    return f"{UUID[:-2]}{0x44 + number:02x}"


def statuses(report: Report) -> dict[str, Status]:
    return {test.name: test.status for test in report.tests}


def test_three_devices_that_are_well(check: Check) -> None:
    report = check(PEERS, CROWD, "residue", cuda=THREE)
    assert set(statuses(report).values()) == {Status.PASSED}, render(report)
    crowd = report.tests[1]
    assert crowd.errors == 0 and not crowd.detail
    assert crowd.measures[ALL] == pytest.approx(390, rel=0.01)
    assert {name for name in crowd.measures if ":GPU-" in name} == {
        f"all_pairs_sent_gb_s:{gpu(number)}" for number in range(3)
    }
    (judged,) = crowd.judgements
    assert (judged.metric, judged.status, judged.advisory) == (ALL, Status.MEASURED, True)
    assert report.tests[2].measures["free_mib"] == 16, "all is given back"


def test_a_pair_that_is_named_alone_has_no_crowd(check: Check) -> None:
    report = check(Test("all_pairs", "all_pairs", 20.0, required=False), cuda={"devices": 2})
    assert statuses(report) == {"all_pairs": Status.SKIPPED}
    assert "Fewer than two peers are visible" in report.tests[0].text


@pytest.mark.parametrize(("here", "there"), [(0, 2), (2, 0)])
def test_a_bit_that_is_wrong_only_when_all_copy(check: Check, here: int, there: int) -> None:
    """Of a copy to the checked device, or from it: by itself, and both ways, the link is well."""
    report = check(PEERS, CROWD, cuda={**THREE, "crowd_from": here, "crowd_to": there})
    assert statuses(report) == {"peers": Status.PASSED, "all_pairs": Status.FAILED}, render(report)
    assert (report.verdict, report.action) == (Verdict.FAIL, Action.REPLACE)
    crowd = report.tests[1]
    # One word in each of thirteen rounds.
    assert crowd.text == f"13 wrong words ({gpu(here)} to {gpu(there)}: 13)"
    assert crowd.detail["wrong_bits"] == f"{4:016x}"
    assert {each["in"] for each in crowd.detail["mismatches"]} == {f"{gpu(here)} to {gpu(there)}"}
    assert not [each for each in report.findings if each.code == "peers_wrong"]


def test_a_bit_that_is_wrong_between_two_peers_takes_out_nobody(check: Check) -> None:
    report = check(PEERS, CROWD, cuda={**THREE, "crowd_from": 1, "crowd_to": 2})
    assert statuses(report) == {"peers": Status.PASSED, "all_pairs": Status.PASSED}, render(report)
    assert {each.code for each in report.findings if each.severity != Severity.INFO} - {"unwatched"} == set()
    (told,) = [each for each in report.findings if each.code == "peers_wrong"]
    assert f"neither is this device: {gpu(1)} to {gpu(2)}: 13." in told.text
    assert told.text in render(report)
    assert report.tests[1].errors == 0


@pytest.mark.thorough("a check each; thresholds have quick tests")
@pytest.mark.parametrize(
    ("made", "known", "status"),
    [(300, {ALL: 390.0}, Status.WARNED), (390, {ALL: 390.0}, Status.PASSED), (300, {}, Status.PASSED),
     (300, {"all_pairs_gb_s:8": 3900.0}, Status.PASSED)],
)  # fmt: skip
@pytest.mark.parametrize("against", ["baseline", "node_median"])
def test_a_slow_crowd_is_worth_a_look(
    check: Check, made: int, known: dict[str, float], status: Status, against: str
) -> None:
    report = check(PEERS, CROWD, cuda={**THREE, "crowd_gb_s": made}, **{against: known})
    assert statuses(report) == {"peers": Status.PASSED, "all_pairs": status}, render(report)
    if status == Status.WARNED:
        assert report.tests[1].text.endswith("which of the devices makes it low is not known")
        assert "is below 331.5" in report.tests[1].text


@pytest.mark.parametrize(("here", "there"), [(1, 2), (2, 1), (0, 1), (2, 0)])
def test_no_access_between_two_of_them(check: Check, here: int, there: int) -> None:
    report = check(CROWD, "residue", cuda={**THREE, "apart_from": here, "apart_to": there})
    assert statuses(report) == {"all_pairs": Status.SKIPPED, "residue": Status.PASSED}
    assert report.tests[0].text == f"Not run: There is no peer access from {gpu(here)} to {gpu(there)}."
    assert report.verdict == Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"no_memory_on": 2}, f"Not run: The peer {gpu(2)} failed: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY."),
        ({"no_symbol": "cuMemcpyPeerAsync"}, "cuMemcpyPeerAsync: not offered by this driver"),
    ],
    ids=["memory", "copy"],
)
def test_an_error_half_way_leaves_nothing_behind(check: Check, fault: dict[str, Any], text: str) -> None:
    report = check(CROWD, "residue", cuda={**THREE, **fault})
    assert statuses(report) == {"all_pairs": Status.SKIPPED, "residue": Status.PASSED}, render(report)
    assert text in report.tests[0].text
    assert report.tests[1].measures["free_mib"] == 16
