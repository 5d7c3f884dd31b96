"""Simultaneous copies between three simulated devices, in real processes with injected faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.report import Report, render
from provisioning.gpu.check.types import Action, Status, Verdict
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


def test_three_healthy_devices_pass(check: Check) -> None:
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


def test_all_pairs_is_skipped_with_one_peer(check: Check) -> None:
    report = check(Test("all_pairs", "all_pairs", 20.0, required=False), cuda={"devices": 2})
    assert statuses(report) == {"all_pairs": Status.SKIPPED}
    assert "at least 2 peer GPUs" in report.tests[0].text


@pytest.mark.parametrize(("here", "there"), [(0, 2), (2, 0)])
def test_wrong_bit_during_simultaneous_copies_is_found(check: Check, here: int, there: int) -> None:
    """To or from the checked device; the link passes when tested alone."""
    report = check(PEERS, CROWD, cuda={**THREE, "crowd_from": here, "crowd_to": there})
    assert statuses(report) == {"peers": Status.PASSED, "all_pairs": Status.FAILED}, render(report)
    assert (report.verdict, report.action) == (Verdict.FAIL, Action.REPLACE)
    crowd = report.tests[1]
    # One word in each of thirteen rounds.
    assert crowd.text == f"13 wrong words ({gpu(here)} to {gpu(there)}: 13)"
    assert crowd.detail["wrong_bits"] == f"{4:016x}"
    assert {mismatch["in"] for mismatch in crowd.detail["mismatches"]} == {f"{gpu(here)} to {gpu(there)}"}
    assert not [finding for finding in report.findings if finding.code == "peers_wrong"]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"no_memory_on": 2}, f"Not run. The peer {gpu(2)} failed: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY."),
        ({"no_symbol": "cuMemcpyPeerAsync"}, "cuMemcpyPeerAsync: not supported by this driver"),
    ],
    ids=["memory", "copy"],
)
def test_failed_test_releases_all_memory(check: Check, fault: dict[str, Any], text: str) -> None:
    report = check(CROWD, "residue", cuda={**THREE, **fault})
    assert statuses(report) == {"all_pairs": Status.SKIPPED, "residue": Status.PASSED}, render(report)
    assert text in report.tests[0].text
    assert report.tests[1].measures["free_mib"] == 16
