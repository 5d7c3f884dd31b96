"""Baselines of checks: passed checks of other devices with the same driver and libraries."""

from __future__ import annotations

from typing import Any

import pytest

from portal.common.actors import SYSTEM
from portal.common.events.models import Notification
from portal.fleet.inventory.cordons import cordon_device, lift_cordon
from portal.fleet.inventory.models import CordonCause, Device
from portal.gpu_checks import baselines, runs
from portal.gpu_checks.models import GpuCheckRun
from provisioning.check_messages import CheckCommand
from tests.factories import node_info
from tests.gpu_checks.helpers import answer, checked_pool, only, real_report, run_of

pytestmark = pytest.mark.django_db
OLD = {"kernels": "nvrtc 12.9", "blas": "cublas 12.8"}
NEW = {"kernels": "nvrtc 13.5", "blas": "cublas 13.1"}
FACTS = {"uuid": "GPU-1", "name": "NVIDIA H100 80GB HBM3", "mig": False, "vgpu": False}


@pytest.fixture
def gpus(catalog: Any) -> list[Device]:
    pool = checked_pool(node_info("node-1", gpus=3), node_info("node-2", gpus=2))
    return list(Device.objects.filter(node__pool=pool).order_by("node__name", "index"))


@pytest.fixture
def check(sent: Any) -> Any:
    def passes(
        device: Device, software: dict[str, str], driver: str = "580.10", **wrong: Any
    ) -> CheckCommand:
        runs.request_check(actor=SYSTEM, device_id=device.pk)
        command = only(sent)
        assert answer(command, software=software, facts=FACTS | {"driver_version": driver}, **wrong)
        return command

    return passes


def requested_check(device: Device, sent: Any) -> CheckCommand:
    runs.request_check(actor=SYSTEM, device_id=device.pk)
    command = only(sent)
    GpuCheckRun.objects.filter(pk=command.run).delete()
    return command


def test_first_check_is_compared_with_the_datasheet_only(gpus: list[Device], sent: Any) -> None:
    command = requested_check(gpus[0], sent)
    assert (command.baseline, command.node_median, command.baseline_of) == ({}, {}, "")


def test_passed_checks_with_the_same_software_form_a_baseline(
    gpus: list[Device], check: Any, sent: Any
) -> None:
    for device in gpus[:4]:
        check(device, NEW)
    command = requested_check(gpus[0], sent)
    assert command.baseline_of == "580.10; nvrtc 13.5; cublas 13.1"
    expected = real_report(command)["tests"]
    copied = next(test["measures"]["copy_gb_s"] for test in expected if test["name"] == "copy")
    assert command.baseline["copy_gb_s"] == command.node_median["copy_gb_s"] == copied
    assert command.baseline["free_mib:ecc_unknown"] > 0
    # First check: the earlier free memory is unknown.
    assert "free_mib:ecc_unknown" not in requested_check(gpus[4], sent).baseline


@pytest.mark.parametrize("change", [{"software": OLD}, {"driver": "570.86"}])
def test_passed_checks_with_other_software_are_not_in_the_baseline(
    gpus: list[Device], check: Any, sent: Any, change: dict[str, Any]
) -> None:
    """A library update of the whole fleet must not fail it."""
    for device in gpus[:3]:
        check(device, change.get("software", NEW), change.get("driver", "580.10"))
    assert requested_check(gpus[3], sent).baseline["copy_gb_s"] > 0
    check(gpus[3], NEW)
    # The newest pass on the node determines the node's software.
    after = requested_check(gpus[4], sent)
    assert after.baseline_of == "580.10; nvrtc 13.5; cublas 13.1"
    assert "copy_gb_s" not in after.baseline and after.node_median == {}
    before = requested_check(gpus[0], sent)
    assert before.baseline_of != after.baseline_of and "copy_gb_s" in before.node_median
    assert "free_mib:ecc_unknown" in before.baseline


@pytest.mark.parametrize(
    "report",
    [
        pytest.param({"verdict": "inconclusive", "exit_code": 3}, id="no pass"),
        pytest.param({"driver": ""}, id="without its software"),
    ],
)
def test_only_passed_checks_with_known_software_count(
    gpus: list[Device], check: Any, sent: Any, report: dict[str, Any]
) -> None:
    for device in gpus[:4]:
        command = check(device, NEW, **report)
        assert run_of(command).verdict == report.get("verdict", "pass")
    assert baselines.baselines_for(gpus[4]) == baselines.Baselines()


# --- NVLinks ----------------------------------------------------------------------------------------


def linked(up: int, **more: Any) -> dict[str, Any]:
    links = [{"link": n, "active": n < up, "errors": 0} for n in range(12)]
    return {"health_before": {"unavailable": [], "nvlinks": links}, **more}


def test_links_are_compared_with_the_last_check_of_the_device(
    gpus: list[Device], check: Any, sent: Any
) -> None:
    assert "nvlinks_up" not in requested_check(gpus[0], sent).baseline
    for device, up in zip(gpus[:4], (8, 12, 12, 12), strict=True):
        check(device, NEW, **linked(up))
    command = requested_check(gpus[0], sent)
    assert command.baseline["nvlinks_up"] == 8 and "nvlinks_up" not in command.node_median
    # Other devices do not count, and a driver update changes no links.
    assert "nvlinks_up" not in requested_check(gpus[4], sent).baseline
    check(gpus[1], OLD, driver="570.86")
    check(gpus[0], OLD, driver="570.86", **linked(7, verdict="degraded", exit_code=1))
    assert requested_check(gpus[0], sent).baseline["nvlinks_up"] == 7
    check(gpus[0], OLD, driver="570.86", **linked(3, verdict="fail", exit_code=2))
    assert requested_check(gpus[0], sent).baseline["nvlinks_up"] == 7


def test_operator_uncordon_accepts_the_current_links(
    gpus: list[Device], check: Any, sent: Any, olga: Any
) -> None:
    check(gpus[0], NEW, **linked(12))
    for actor, kept in ((SYSTEM, True), (olga, False)):
        cordon_device(actor=actor, device_id=gpus[0].pk, reason="few links")
        lift_cordon(actor=actor, device_id=gpus[0].pk)
        assert ("nvlinks_up" in requested_check(gpus[0], sent).baseline) is kept
    check(gpus[0], NEW, **linked(4))
    assert requested_check(gpus[0], sent).baseline["nvlinks_up"] == 4


@pytest.mark.parametrize("links", [None, [], "12", [{}], [12], {"active": True}])
def test_unreported_links_are_not_in_the_baseline(
    gpus: list[Device], check: Any, sent: Any, links: Any
) -> None:
    assert run_of(check(gpus[0], NEW, health_before={"unavailable": [], "nvlinks": links})).verdict == "pass"
    assert "nvlinks_up" not in requested_check(gpus[0], sent).baseline


# --- models without a datasheet -----------------------------------------------------------------------

UNKNOWN = "NVIDIA GH200 480GB"


def unjudged(command: CheckCommand, copied: float = 3600.0, *more: dict[str, Any], **changes: Any) -> bool:
    """The result of a sound device of a model without floors; `more` are further findings."""
    report = real_report(command)
    for test in report["tests"]:
        if test["name"] == "copy":
            (judged,) = test["judgements"]
            judged |= {"value": copied, "status": "measured", "fail_below": 0.0, "warn_below": 0.0}
            judged |= {"against": "none", "text": "Not judged: no datasheet limit."}
            test |= {"status": "warned", "text": "Not judged", "measures": {"copy_gb_s": copied}}
    found = {"code": "test_copy", "severity": "degraded", "text": "Not judged", "action": "inspect"}
    facts = {**report["facts"], "name": UNKNOWN, "driver_version": "580.10"}
    given = {"verdict": "degraded", "exit_code": 1, "findings": [found, *more], "software": NEW}
    return answer(command, tests=report["tests"], facts=facts, **(given | changes))


@pytest.fixture
def unlisted(gpus: list[Device], sent: Any) -> Any:
    """Check devices of a model without a datasheet, with these copy rates."""
    Device.objects.update(model=UNKNOWN)

    def check(*copied: float, **changes: Any) -> list[GpuCheckRun]:
        found = []
        for device, figure in zip(gpus, copied, strict=False):
            runs.request_check(actor=SYSTEM, device_id=device.pk)
            command = only(sent)
            assert unjudged(command, figure, **changes)
            found.append(run_of(command))
        return found

    return check


def test_three_similar_devices_form_the_first_baseline_of_a_model(
    gpus: list[Device], unlisted: Any, sent: Any
) -> None:
    assert [(run.verdict, run.unjudged) for run in unlisted(3600, 3700)] == [("degraded", True)] * 2
    assert "copy_gb_s" not in requested_check(gpus[2], sent).baseline
    unlisted(3600, 3700, 3650)
    command = requested_check(gpus[3], sent)
    assert command.baseline["copy_gb_s"] == 3650
    assert command.baseline_of == "580.10; nvrtc 13.5; cublas 13.1"
    # The three are compared as well, so they can pass and be allocated.
    assert requested_check(gpus[0], sent).baseline["copy_gb_s"] == 3650


def test_device_without_floors_is_in_service_with_a_warning(
    gpus: list[Device], unlisted: Any, olga: Any
) -> None:
    """One or two devices form no baseline, so correct results decide alone."""
    cordon_device(actor=SYSTEM, device_id=gpus[0].pk, reason="its check failed", cause=CordonCause.CHECK)
    unlisted(3600)
    gpus[0].refresh_from_db()
    assert (gpus[0].cordoned, gpus[0].warning != "") == (False, True)
    notices = Notification.objects.filter(kind="device.check_degraded")
    before = notices.count()
    assert before
    unlisted(3600)
    assert notices.count() == before, "said once"


def test_values_of_a_faulty_device_are_not_in_the_baseline(
    gpus: list[Device], unlisted: Any, sent: Any
) -> None:
    unlisted(3600, 1800, 3700, 3650)
    assert requested_check(gpus[1], sent).baseline["copy_gb_s"] == 3650


def test_dissimilar_devices_form_no_baseline(gpus: list[Device], unlisted: Any, sent: Any) -> None:
    unlisted(3600, 1800, 3700)
    assert "copy_gb_s" not in requested_check(gpus[3], sent).baseline


def test_passed_checks_take_precedence_over_unjudged_values(
    gpus: list[Device], unlisted: Any, sent: Any
) -> None:
    unlisted(3600, 3700, 3650)
    for device in gpus[:4]:
        runs.request_check(actor=SYSTEM, device_id=device.pk)
        assert answer(only(sent), software=NEW, facts=FACTS | {"driver_version": "580.10"})
    passed = GpuCheckRun.objects.filter(verdict="pass").first()
    assert passed is not None and not passed.unjudged
    expected = passed.measures["copy_gb_s"]["value"]
    assert requested_check(gpus[4], sent).baseline["copy_gb_s"] == expected


def test_fleet_of_three_keeps_its_baseline_after_passing(
    gpus: list[Device], unlisted: Any, sent: Any
) -> None:
    """Each device has only two others, too few for a median."""
    unlisted(3600, 3700, 3650)
    for device in gpus[:3]:
        runs.request_check(actor=SYSTEM, device_id=device.pk)
        assert answer(only(sent), software=NEW, facts=FACTS | {"driver_version": "580.10"})
    assert "copy_gb_s" in requested_check(gpus[0], sent).baseline


def test_other_driver_resets_the_baseline(gpus: list[Device], unlisted: Any, sent: Any) -> None:
    unlisted(3600, 3700, 3650, 3600)
    unlisted(3000, 3100, software=OLD)
    assert "copy_gb_s" not in requested_check(gpus[0], sent).baseline
    unlisted(3000, 3100, 3050, software=OLD)
    assert requested_check(gpus[0], sent).baseline["copy_gb_s"] == 3050


def test_values_of_a_standard_check_are_kept_after_a_quick_one(
    gpus: list[Device], unlisted: Any, sent: Any
) -> None:
    made = unlisted(3600, 3700, 3650)
    for run in made:
        figures = run.measures | {"gemm_bf16_tflops": {"value": 600.0, "unit": "TFLOP/s"}}
        GpuCheckRun.objects.filter(pk=run.pk).update(level="standard", measures=figures)
    unlisted(3000, 3000, 3000)
    found = requested_check(gpus[3], sent).baseline
    assert (found["copy_gb_s"], found["gemm_bf16_tflops"]) == (3000, 600)


@pytest.mark.parametrize(
    "finding",
    [
        {"code": "ecc_corrected", "severity": "degraded", "text": "x", "action": "inspect"},
        {"code": "processes_unknown", "severity": "inconclusive", "text": "x", "action": "inspect"},
    ],
)
def test_device_with_other_findings_is_not_in_the_baseline(
    gpus: list[Device], unlisted: Any, sent: Any, finding: dict[str, Any]
) -> None:
    for device in gpus[:4]:
        runs.request_check(actor=SYSTEM, device_id=device.pk)
        command = only(sent)
        assert unjudged(command, 3600, finding)
        assert not run_of(command).unjudged
    assert baselines.baselines_for(gpus[4]) == baselines.Baselines()


def test_skipped_test_is_not_an_unjudged_value(gpus: list[Device], sent: Any) -> None:
    Device.objects.update(model=UNKNOWN)
    runs.request_check(actor=SYSTEM, device_id=gpus[0].pk)
    command = only(sent)
    skipped = [
        test | ({"status": "skipped", "text": "Not run"} if test["name"] == "address" else {})
        for test in real_report(command)["tests"]
    ]
    found = {"code": "test_address", "severity": "inconclusive", "text": "Not run", "action": "retry"}
    assert answer(command, tests=skipped, findings=[found], verdict="inconclusive", exit_code=3)
    assert not run_of(command).unjudged


def test_listed_model_uses_its_datasheet(gpus: list[Device], unlisted: Any, sent: Any) -> None:
    unlisted(3600, 3700, 3650, 3600)
    Device.objects.update(model="NVIDIA H100 80GB HBM3")
    assert "copy_gb_s" not in requested_check(gpus[4], sent).baseline
