"""Several GPUs under full load at once in real processes: contexts, streams and events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.report import Report, render
from provisioning.gpu.check.types import Action, Severity, Status, Verdict
from tests.gpu.driver.machine import Machine, uuid_of
from tests.suite.choice import quick_of, sample

pytestmark = pytest.mark.engine
Make = Callable[..., Machine]
Check = Callable[..., Report]

GPUS = [uuid_of(number) for number in range(1, 5)]
JOINT = Test("joint_burn", "joint_burn", 40.0, required=False, params={"dtype": "bf16", "seconds": 0.1})
RESIDUE = Test("residue", "residue", 20.0)
PERCENT = "joint_burn_percent:3"


def checked(check: Check, *tests: Test, peers: int = 2) -> tuple[Report, dict[str, Status]]:
    report = check(GPUS[0], "extended", plan=tests or (JOINT, RESIDUE), peers=GPUS[1 : peers + 1])
    return report, {test.name: test.status for test in report.tests}


def codes(report: Report) -> set[str]:
    """The codes of findings, except that NVML may not have been read during so short a plan."""
    return {finding.code for finding in report.findings if finding.severity != Severity.INFO} - {"unwatched"}


@pytest.mark.thorough("two devices each; `make test` has a fault of each of the two")
def test_all_devices_are_as_fast_together_as_alone(linked: Make, check: Check) -> None:
    linked()
    report, found = checked(check)
    assert set(found.values()) == {Status.PASSED}, render(report)
    joint = report.tests[0]
    assert joint.measures[PERCENT] == pytest.approx(100, abs=1)
    assert joint.errors == 0
    assert list(joint.detail["by_device"]) == GPUS[:3]
    assert {round(each["percent"]) for each in joint.detail["by_device"].values()} == {100}
    assert {each["canary_found"] for each in joint.detail["by_device"].values()} == {True}
    assert report.tests[1].measures["free_mib"] == 16, "all is given back"


@pytest.mark.thorough("two devices each; `make test` has a fault of each of the two")
def test_slow_checked_device_is_a_warning(linked: Make, check: Check) -> None:
    linked().fault("slow_joint", 700)
    report, found = checked(check)
    assert found == {"joint_burn": Status.WARNED, "residue": Status.PASSED}, render(report)
    assert codes(report) == {"test_joint_burn"}
    joint = report.tests[0]
    assert joint.text.endswith("% is below the single-device limit of 85")
    assert joint.measures[PERCENT] == pytest.approx(70, abs=2)
    others = [each["percent"] for each in joint.detail["by_device"].values()][1:]
    assert others == [pytest.approx(100, abs=1)] * 2, "the others are not slower for it"


def test_slow_peer_is_named_without_changing_the_verdict(linked: Make, check: Check) -> None:
    linked().fault("slow_joint", 500, gpu=2)
    report, found = checked(check)
    assert set(found.values()) == {Status.PASSED}, render(report)
    (note,) = [finding for finding in report.findings if finding.code == "peers_slow_together"]
    assert GPUS[2] in note.text and GPUS[1] not in note.text
    assert codes(report) == set()


@pytest.mark.parametrize("gpu", quick_of([0, 1], [1], "both devices take the same path"))
def test_wrong_word_is_attributed_to_its_device(linked: Make, check: Check, gpu: int) -> None:
    linked().fault("product", 100, 1, gpu=gpu)
    report, found = checked(check, JOINT)
    if gpu == 0:
        assert found == {"joint_burn": Status.FAILED}, render(report)
        assert (report.verdict, report.action) == (Verdict.FAIL, Action.REPLACE)
    else:
        assert found == {"joint_burn": Status.PASSED}, render(report)
        (note,) = [finding for finding in report.findings if finding.code == "peers_wrong_together"]
        assert GPUS[1] in note.text


@pytest.mark.parametrize(
    ("fault", "gpu"),
    sample(
        [(("no_memory",), 2), (("no_context", 2), 1), (("ecc", "gate"), 1)], 3, "the rows take the same path"
    ),
)
def test_peer_failure_does_not_fail_the_checked_device(
    linked: Make, check: Check, fault: tuple[Any, ...], gpu: int
) -> None:
    linked().fault(*fault, gpu=gpu)
    report, found = checked(check)
    assert found == {"joint_burn": Status.SKIPPED, "residue": Status.PASSED}, render(report)
    assert report.tests[0].text.startswith("Not run. The peer")
    assert codes(report) == set()
    assert report.tests[1].measures["free_mib"] == 16


@pytest.mark.thorough("two devices each; `make test` has a fault of each of the two")
def test_hanging_peer_is_inconclusive(linked: Make, check: Check) -> None:
    linked().fault("hang", "gemm_bf16_wg", gpu=1)
    short = Test("joint_burn", "joint_burn", 3.0, params=JOINT.params)
    report, found = checked(check, short)
    assert found == {"joint_burn": Status.HUNG}, render(report)
    assert (report.verdict, report.action) == (Verdict.INCONCLUSIVE, Action.RETRY)
    assert GPUS[1] in report.tests[0].text


def test_joint_load_without_a_peer(linked: Make, check: Check) -> None:
    linked(1)
    report, found = checked(check, JOINT, peers=0)
    assert found == {"joint_burn": Status.SKIPPED}
    assert report.tests[0].text == "Not run. No peer GPU is visible."
