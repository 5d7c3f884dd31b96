"""Simultaneous copies between several GPUs in real processes: contexts, streams and events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.report import Report, render
from provisioning.gpu.check.types import Severity, Status, Verdict
from tests.gpu.driver.machine import Machine, uuid_of
from tests.suite.choice import sample

pytestmark = pytest.mark.engine
Make = Callable[..., Machine]
Check = Callable[..., Report]

GPUS = [uuid_of(number) for number in range(1, 5)]
PEERS = Test("peers", "peers", 20.0, required=False)
CROWD = Test("all_pairs", "all_pairs", 20.0, required=False)
RESIDUE = Test("residue", "residue", 20.0)
H100 = 18 * 25
"""GB/s of all NVLinks of one, each way."""


def failing_codes(report: Report) -> set[str]:
    """The findings, except that NVML may not have been read during so short a plan."""
    return {finding.code for finding in report.findings if finding.severity != Severity.INFO} - {"unwatched"}


def checked(check: Check, *tests: Test, peers: int = 2, **more: Any) -> tuple[Report, dict[str, Status]]:
    report = check(GPUS[0], "standard", plan=tests, peers=GPUS[1 : peers + 1], **more)
    return report, {test.name: test.status for test in report.tests}


@pytest.mark.parametrize("peers", sample([2, 3], 2, "the rows take the same path"))
def test_measures_of_all_links_together(linked: Make, check: Check, peers: int) -> None:
    made = linked(4)
    open_at: dict[str, set[str]] = {}

    def look(progress: Any) -> None:
        if progress.phase == "result":
            open_at[progress.test] = {each.stem for each in (made.folder / "contexts").iterdir()}

    # The test that follows has the device alone, so nobody opens a peer meanwhile.
    for test in (PEERS, CROWD):
        report, found = checked(check, test, RESIDUE, peers=peers, on_progress=look)
        assert set(found.values()) == {Status.PASSED}, render(report)
        assert open_at[test.name] == {GPUS[0]}, "those of the peers are given back"
    crowd = report.tests[0].measures
    # Each sends all that its links carry, beside the others.
    assert crowd[f"all_pairs_gb_s:{peers + 1}"] == pytest.approx(H100 * (peers + 1), rel=0.01)
    sent = {name.rpartition(":")[2]: value for name, value in crowd.items() if "_sent_" in name}
    assert sent == {uuid: pytest.approx(H100, rel=0.01) for uuid in GPUS[: peers + 1]}


@pytest.mark.thorough("`make test` has a fault of each kind")
def test_pcie_is_used_without_nvlink(linked: Make, check: Check) -> None:
    linked(3, "T4")
    report, found = checked(check, PEERS, CROWD)
    assert set(found.values()) == {Status.PASSED}, render(report)
    assert report.tests[1].measures["all_pairs_gb_s:3"] == pytest.approx(3 * 24, rel=0.01)


def test_error_during_simultaneous_copies_only_fails(linked: Make, check: Check) -> None:
    linked().fault("crowd_flip", 0, gpu=1)
    report, found = checked(check, PEERS, CROWD)
    assert found == {"peers": Status.PASSED, "all_pairs": Status.FAILED}, render(report)
    assert f"{GPUS[1]} to {GPUS[0]}: 13" in report.tests[1].text
    assert report.verdict == Verdict.FAIL


def test_existing_peer_access_is_accepted(linked: Make, check: Check) -> None:
    made = linked()
    for each in range(3):
        made.fault("keeps_access", gpu=each)
    report, found = checked(check, CROWD, Test("again", "all_pairs", 20.0))
    assert set(found.values()) == {Status.PASSED}, render(report)


def test_data_of_another_device_is_wrong(linked: Make, check: Check) -> None:
    linked().fault("crowd_mixed", 0, gpu=1)
    report, found = checked(check, PEERS, CROWD)
    assert found == {"peers": Status.PASSED, "all_pairs": Status.FAILED}, render(report)
    words = 13 * (1 << 20) // 2 // 2 // 8
    assert report.tests[1].text == f"{words} wrong words ({GPUS[1]} to {GPUS[0]}: {words})"


def test_missing_data_is_wrong(linked: Make, check: Check) -> None:
    """Although the words of the previous round would be correct."""
    linked().fault("crowd_lost", 0, gpu=1)
    report, found = checked(check, CROWD)
    assert found == {"all_pairs": Status.FAILED}, render(report)
    words = 6 * (1 << 20) // 2 // 2 // 8
    assert report.tests[0].text == f"{words} wrong words ({GPUS[1]} to {GPUS[0]}: {words})"


def test_error_between_two_peers_is_reported(linked: Make, check: Check) -> None:
    linked().fault("crowd_flip", 2, gpu=1)
    report, found = checked(check, PEERS, CROWD)
    assert found == {"peers": Status.PASSED, "all_pairs": Status.PASSED}, render(report)
    assert failing_codes(report) == set()
    (told,) = [finding for finding in report.findings if finding.code == "peers_wrong"]
    assert f"{GPUS[1]} to {GPUS[2]}: 13" in told.text


@pytest.mark.thorough("`make test` has a fault of each kind")
def test_errors_before_a_peer_failure_count(linked: Make, check: Check) -> None:
    made = linked()
    made.fault("crowd_flip", 1)
    made.fault("ecc", "check_mix", gpu=2)
    report, found = checked(check, CROWD)
    assert found == {"all_pairs": Status.FAILED}, render(report)
    assert report.tests[0].text == f"1 wrong word ({GPUS[0]} to {GPUS[1]}: 1)"


@pytest.mark.parametrize("there", sample([0, 2], 2, "the rows take the same path"))
def test_sender_time_ends_with_its_last_copy(linked: Make, check: Check, there: int) -> None:
    linked().fault("slow_to", there, 250, gpu=1)
    report, found = checked(check, CROWD)
    assert set(found.values()) == {Status.PASSED}, render(report)
    sent = report.tests[0].measures
    assert sent[f"all_pairs_sent_gb_s:{GPUS[1]}"] == pytest.approx(H100 / 4, rel=0.01)
    assert sent[f"all_pairs_sent_gb_s:{GPUS[0]}"] == pytest.approx(H100, rel=0.01)
    assert sent["all_pairs_gb_s:3"] == pytest.approx(3 * H100 / 4, rel=0.01)


@pytest.mark.thorough("`make test` has a fault of each kind")
def test_slow_simultaneous_copies(linked: Make, check: Check) -> None:
    linked().fault("slow_crowd", 500, gpu=1)
    report, found = checked(check, PEERS, CROWD, baseline={"all_pairs_gb_s:3": 3.0 * H100})
    assert found == {"peers": Status.PASSED, "all_pairs": Status.WARNED}, render(report)
    assert failing_codes(report) == {"test_all_pairs"}
    sent = report.tests[1].measures
    assert sent[f"all_pairs_sent_gb_s:{GPUS[1]}"] == pytest.approx(H100 / 2, rel=0.01)
    assert sent[f"all_pairs_sent_gb_s:{GPUS[2]}"] == pytest.approx(H100, rel=0.01)


@pytest.mark.parametrize(("here", "there"), sample([(0, 2), (2, 1)], 2, "the rows take the same path"))
def test_missing_peer_access_between_two_devices(linked: Make, check: Check, here: int, there: int) -> None:
    linked().fault("no_peer", there, gpu=here)
    report, found = checked(check, CROWD, RESIDUE)
    assert found == {"all_pairs": Status.SKIPPED, "residue": Status.PASSED}
    assert f"{GPUS[here]} has no peer access to {GPUS[there]}" in report.tests[0].text
    assert failing_codes(report) == set()


@pytest.mark.parametrize(
    ("fault", "gpu"),
    sample(
        [
            (("no_memory",), 2),
            (("no_context", 2), 1),
            (("no_context", 2), 2),
            (("ecc", "fill_mix"), 1),
            (("ecc", "check_mix"), 2),
        ],
        3,
        "the rows take the same path",
    ),
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_peer_failure_does_not_fail_the_checked_device(
    linked: Make, check: Check, fault: tuple[Any, ...], gpu: int
) -> None:
    """It also leaves no stream behind: the third run would have one too many."""
    made = linked()
    made.fault(*fault, gpu=gpu)
    for each in range(3):
        made.fault("most_streams", 9, gpu=each)
    plan = [Test(f"all_pairs_{number}", "all_pairs", 20.0, required=False) for number in range(3)]
    report, found = checked(check, *plan, RESIDUE)
    assert [*found.values()] == [Status.SKIPPED] * 3 + [Status.PASSED], render(report)
    assert failing_codes(report) == set()
    # A broken context is broken from its start then.
    texts = [test.text for test in report.tests[: 1 if fault[0] == "ecc" else 3]]
    name = "" if fault[0] == "no_context" else f" {GPUS[gpu]}"
    assert all(text.startswith(f"Not run. The peer{name} failed: cu") for text in texts)
    assert len(set(texts)) == 1
    assert report.tests[3].measures["free_mib"] == 16


def test_measurement_releases_all_memory(linked: Make, check: Check) -> None:
    made = linked()
    for each in range(3):
        made.fault("most_streams", 9, gpu=each)
    plan = [Test(f"all_pairs_{number}", "all_pairs", 20.0) for number in range(3)]
    report, found = checked(check, *plan, RESIDUE)
    assert set(found.values()) == {Status.PASSED}, render(report)
    assert report.tests[3].measures["free_mib"] == 16


def test_failure_of_the_checked_device_fails_it(linked: Make, check: Check) -> None:
    linked().fault("ecc", "check_mix")
    report, found = checked(check, CROWD)
    assert found == {"all_pairs": Status.FAILED}, render(report)
    assert "CUDA_ERROR_ECC_UNCORRECTABLE" in report.tests[0].text
