"""Wrong words between two peers of a check: both get a warning, operators are notified, none is cordoned."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.models import CheckLevel, Device
from portal.gpu_checks import presenters, runs
from portal.gpu_checks.models import CheckVerdict, GpuCheckRun
from tests.gpu_checks.helpers import checked_pool, fresh, linked_node, only, real_report, run_of, tell

pytestmark = pytest.mark.django_db


@pytest.fixture
def gpus(catalog) -> list[Device]:
    """Six linked GPUs on one node, all passed."""
    pool = checked_pool(linked_node("node-1", 6))
    Device.objects.filter(node__pool=pool).update(passed_at=timezone.now())
    return list(Device.objects.filter(node__pool=pool).order_by("index"))


def pair(
    source: Device | str, target: Device | str, *, own: bool = False, errors: object = 13
) -> dict[str, Any]:
    names = [each if isinstance(each, str) else each.uuid for each in (source, target)]
    return {"from": names[0], "to": names[1], "errors": errors, "own": own}


@pytest.fixture
def answered(gpus, sent, django_capture_on_commit_callbacks):
    """The first GPU's check with these wrong pairs; its peers are the second and third GPU."""

    def answer(*pairs: dict[str, Any], errors: int = 0, **changes: Any) -> GpuCheckRun:
        with django_capture_on_commit_callbacks(execute=True):
            runs.request_check(actor=SYSTEM, device_id=gpus[0].pk, level=CheckLevel.STANDARD)
        command = only(sent)
        report = real_report(command)
        status = "failed" if errors else "passed"
        test = report["tests"][-1] | {
            "name": "all_pairs", "required": False, "status": status, "errors": errors or 0,
            "judgements": [], "measures": {}, "detail": {"wrong_pairs": list(pairs)},
        }  # fmt: skip
        report["tests"].append(test)
        with django_capture_on_commit_callbacks(execute=True):
            assert tell(command, report=report | changes)
        return run_of(command)

    return answer


def warnings(gpus: list[Device]) -> dict[int, str]:
    return {device.index: text for device in gpus if (text := fresh(device).warning)}


def test_both_peers_get_a_warning_and_the_checked_device_passes(gpus, olga, answered):
    run = answered(pair(gpus[1], gpus[2]), pair(gpus[2], gpus[1], errors=2))
    assert run.verdict == CheckVerdict.PASS
    assert fresh(gpus[0]).passed_at == run.finished_at
    assert not Device.objects.filter(cordoned=True).exists()
    found = warnings(gpus)
    assert set(found) == {1, 2} and len(set(found.values())) == 1
    one, two = map(presenters.display_name, gpus[1:3])
    assert f"13 from {one} to {two}; 2 from {two} to {one}" in found[1]
    (note,) = Notification.objects.filter(user=olga)
    assert (note.kind, note.title) == ("device.check_degraded", f"{one} and {two} exchange corrupted data")
    assert note.body == found[1]
    told = Event.objects.filter(kind="device.check_degraded")
    assert {event.data["device"] for event in told} == {gpus[1].uuid, gpus[2].uuid}
    assert not Device.objects.filter(checking=True).exists()


def test_error_of_the_checked_device_fails_it_without_peer_warnings(gpus, olga, answered):
    run = answered(pair(gpus[0], gpus[2], own=True), errors=13, verdict="fail", exit_code=2, action="replace")
    assert run.verdict == CheckVerdict.FAIL
    assert [device.index for device in gpus if fresh(device).cordoned] == [0]
    assert warnings(gpus) == {}


def test_only_peers_of_the_run_are_concerned(gpus, olga, answered):
    answered(pair(gpus[1], gpus[4]), pair("GPU-elsewhere", gpus[2]))
    assert warnings(gpus) == {}
    assert not Notification.objects.filter(user=olga).exists()


@pytest.mark.parametrize(
    "bad", [{"from": "GPU-1"}, 7, {"from": "a", "to": "b", "errors": "many", "own": False}]
)
def test_malformed_pairs_make_the_report_inconclusive(gpus, answered, bad):
    run = answered(bad)
    assert run.verdict == CheckVerdict.INCONCLUSIVE
    assert "results for other devices are not valid" in run.summary
    assert warnings(gpus) == {}


def test_next_pass_of_a_peer_clears_its_warning(gpus, sent, answered, django_capture_on_commit_callbacks):
    answered(pair(gpus[1], gpus[2]))
    with django_capture_on_commit_callbacks(execute=True):
        runs.request_check(actor=SYSTEM, device_id=gpus[1].pk, level=CheckLevel.STANDARD)
    command = only(sent)
    with django_capture_on_commit_callbacks(execute=True):
        assert tell(command, report=real_report(command))
    assert set(warnings(gpus)) == {2}


def test_pages_describe_the_warning(client, gpus, olga, answered):
    answered(pair(gpus[1], gpus[2]))
    client.force_login(olga)
    page = client.get(reverse("fleet:device", args=[gpus[2].pk])).content.decode()
    assert "found wrong words on links between other devices" in page
    assert presenters.test_title("all_pairs") == "All links of these GPUs at once"
    assert presenters.metric_title("all_pairs_gb_s:3") == "All links of 3 GPUs at once"
    low = presenters.format_report_text("all_pairs_gb_s:3 300 GB/s is below the baseline limit of 331.5")
    assert low == "All links of 3 GPUs at once 300 GB/s is below the baseline limit of 331.5"
