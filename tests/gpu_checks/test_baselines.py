"""What a check is held against: passes of others, measured with the same driver and the same libraries."""

from __future__ import annotations

from typing import Any

import pytest

from portal.common.actors import SYSTEM
from portal.gpu_checks import baselines, runs
from portal.gpu_checks.models import GpuCheckRun
from portal.inventory.models import Device
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


def asked(device: Device, sent: Any) -> CheckCommand:
    runs.request_check(actor=SYSTEM, device_id=device.pk)
    command = only(sent)
    GpuCheckRun.objects.filter(pk=command.run).delete()
    return command


def test_the_first_check_is_held_against_the_datasheet_alone(gpus: list[Device], sent: Any) -> None:
    command = asked(gpus[0], sent)
    assert (command.baseline, command.node_median, command.baseline_of) == ({}, {}, "")


def test_passes_with_the_same_software_are_a_baseline(gpus: list[Device], check: Any, sent: Any) -> None:
    for device in gpus[:4]:
        check(device, NEW)
    command = asked(gpus[0], sent)
    assert command.baseline_of == "580.10; nvrtc 13.5; cublas 13.1"
    expected = real_report(command)["tests"]
    copied = next(test["measures"]["copy_gb_s"] for test in expected if test["name"] == "copy")
    assert command.baseline["copy_gb_s"] == command.node_median["copy_gb_s"] == copied
    assert command.baseline["free_mib"] > 0
    # Its first check: nobody knows what it had free.
    assert "free_mib" not in asked(gpus[4], sent).baseline


@pytest.mark.parametrize("change", [{"software": OLD}, {"driver": "570.86"}])
def test_passes_with_other_software_are_none(
    gpus: list[Device], check: Any, sent: Any, change: dict[str, Any]
) -> None:
    """A library that everybody gets at once must not take a fleet out."""
    for device in gpus[:3]:
        check(device, change.get("software", NEW), change.get("driver", "580.10"))
    assert asked(gpus[3], sent).baseline["copy_gb_s"] > 0
    check(gpus[3], NEW)
    # The newest pass of its node says what its node has.
    after = asked(gpus[4], sent)
    assert after.baseline_of == "580.10; nvrtc 13.5; cublas 13.1"
    assert "copy_gb_s" not in after.baseline and after.node_median == {}
    before = asked(gpus[0], sent)
    assert before.baseline_of != after.baseline_of and "copy_gb_s" in before.node_median
    assert "free_mib" in before.baseline


def test_only_passes_count(gpus: list[Device], check: Any, sent: Any) -> None:
    for device in gpus[:4]:
        command = check(device, NEW, verdict="inconclusive", exit_code=3)
        assert run_of(command).verdict == "inconclusive"
    assert baselines.of(gpus[4]) == baselines.Baselines()


def test_a_pass_that_does_not_say_its_software_is_none(gpus: list[Device], check: Any, sent: Any) -> None:
    for device in gpus[:4]:
        check(device, NEW, driver="")
    assert baselines.of(gpus[4]) == baselines.Baselines()
