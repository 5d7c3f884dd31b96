"""Joint checks of all GPUs of an idle node: refusals, reservations and results."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from django.urls import reverse

from portal.common.actors import SYSTEM
from portal.common.errors import NotAllowed, StateConflict
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.cordons import cordon_device
from portal.fleet.inventory.models import Device, Node, Pool
from portal.gpu_checks import joint, runs
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.models import CheckVerdict, GpuCheckRun, RunState
from provisioning.check_messages import CheckCommand
from tests.factories import rescript, simulated_pool
from tests.gpu_checks.helpers import (
    checked_pool,
    commands,
    fresh,
    linked_node,
    only,
    real_report,
    run_of,
    tell,
)

pytestmark = pytest.mark.django_db
SLOW, WRONG, BLIND = {"percent": 71.0}, {"errors": 9}, {"canary_found": False}


@pytest.fixture
def gpus(catalog) -> list[Device]:
    pool = checked_pool(linked_node("node-1", 4))
    Pool.objects.filter(pk=pool.pk).update(hand_out_max_age_hours=0)
    return list(Device.objects.filter(node__pool=pool).select_related("node").order_by("index"))


@pytest.fixture
def command(gpus, sent, django_capture_on_commit_callbacks) -> CheckCommand:
    with django_capture_on_commit_callbacks(execute=True):
        ask(gpus[0].node)
    return only(sent)


def ask(node: Node, actor: Any = SYSTEM) -> GpuCheckRun:
    return joint.request_joint_check(actor=actor, node_id=node.pk)


def refused(node: Node) -> CheckCode:
    with pytest.raises(StateConflict) as error:
        ask(node)
    assert error.value.code == "node_not_checkable"
    assert error.value.reason == joint.refusal(Node.objects.get(pk=node.pk))
    return error.value.reason.code


def joint_report(command: CheckCommand, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The report of a node, with changed results for some GPUs."""
    report = copy.deepcopy(real_report(command))
    (test,) = [test for test in report["tests"] if test["name"] == "joint_burn"]
    for uuid, changes in parts.items():
        test["detail"]["by_device"][uuid] |= changes
    return report


@pytest.fixture
def report_end(command, django_capture_on_commit_callbacks):
    def answered(**parts: dict[str, Any]) -> GpuCheckRun:
        report = joint_report(command, {f"GPU-node-1-{key[1:]}": part for key, part in parts.items()})
        with django_capture_on_commit_callbacks(execute=True):
            assert tell(command, report=report)
        return run_of(command)

    return answered


def test_all_gpus_are_reserved_until_the_end(gpus, command, report_end):
    assert (command.kind, command.uuid) == ("joint", gpus[0].uuid)
    assert command.peers == tuple(gpu.uuid for gpu in gpus[1:])
    assert Device.objects.filter(checking=True).count() == 4
    run = report_end()
    assert (run.state, run.verdict) == (RunState.DONE, CheckVerdict.PASS)
    assert not Device.objects.filter(checking=True).exists()
    assert not Device.objects.exclude(passed_at=None).exists(), "memory and links were not checked"


def test_each_gpu_is_judged_by_its_own_result(gpus, olga, report_end):
    run = report_end(g1=SLOW, g2=WRONG, g3=BLIND)
    assert run.verdict == CheckVerdict.PASS, "the run's own GPU is sound"
    first, slow, wrong, blind = map(fresh, gpus)
    assert (first.cordoned, first.warning) == (False, "")
    assert not slow.cordoned and slow.warning.startswith("71 % of its own speed while all GPUs of node-1")
    assert (wrong.cordoned, wrong.cordon_cause, wrong.recovery) == (True, "check", "replace")
    assert blind.cordoned and "planted error" in blind.cordon_reason
    assert Notification.objects.filter(user=olga, kind="device.joint_degraded").exists()
    kinds = (
        Event.objects.filter(kind__startswith="device.joint_").order_by("pk").values_list("kind", flat=True)
    )
    assert list(kinds) == [
        "device.joint_asked", "device.joint_passed", "device.joint_degraded", "device.joint_failed",
        "device.joint_failed",
    ]  # fmt: skip


def test_results_for_gpus_outside_the_run_are_ignored(gpus, command, report_end):
    report = joint_report(command, {})
    (test,) = [test for test in report["tests"] if test["name"] == "joint_burn"]
    stranger = dict(test["detail"]["by_device"][gpus[1].uuid], errors=5)
    Device.objects.filter(pk=gpus[3].pk).update(uuid="GPU-elsewhere")
    GpuCheckRun.objects.get().peers.remove(gpus[3])
    test["detail"]["by_device"]["GPU-elsewhere"] = stranger
    assert tell(command, report=report)
    assert not fresh(gpus[3]).cordoned


def test_report_with_malformed_parts_is_inconclusive(gpus, report_end):
    run = report_end(g1={"percent": "fast"})
    assert (
        run.verdict == CheckVerdict.INCONCLUSIVE and "results for other devices are not valid" in run.summary
    )


def test_joint_check_is_refused_unless_the_node_is_idle(gpus, make, alice, olga, sent):
    node = gpus[0].node
    with pytest.raises(NotAllowed):
        ask(node, alice)
    made = make(alice, "nvidia-h100-80gb-hbm3-x1")
    assert made.state and refused(node) == CheckCode.JOINT_NODE_IN_USE
    made.allocations.all().delete()
    first = runs.request_check(actor=SYSTEM, device_id=gpus[0].pk)
    assert refused(node) == CheckCode.JOINT_NODE_BUSY
    runs.cancel_check(actor=SYSTEM, run_id=first.pk)
    for gpu in gpus[1:]:
        cordon_device(actor=olga, device_id=gpu.pk, reason="")
    assert refused(node) == CheckCode.JOINT_TOO_FEW
    Node.objects.update(online=False)
    assert refused(node) == CheckCode.NODE_NOT_ANSWERING


def test_drained_node_is_checked_without_its_cordoned_gpu(gpus, olga, sent):
    Node.objects.update(cordoned=True)
    cordon_device(actor=olga, device_id=gpus[0].pk, reason="")
    run = ask(gpus[0].node, olga)
    assert run.device == gpus[1] and set(run.peers.all()) == {gpus[2], gpus[3]}
    assert ask(gpus[0].node) == run, "idempotent"


def test_other_checks_on_the_node_are_refused_during_a_joint_check(gpus, command, sent):
    with pytest.raises(StateConflict):
        runs.request_check(actor=SYSTEM, device_id=gpus[2].pk)
    assert commands(sent) == []


def test_joint_check_over_rest_and_on_pages_shows_each_gpu(gpus, client, olga, report_end):
    run = report_end(g2=SLOW)
    client.force_login(olga)
    page = client.get(reverse("gpu_checks:check", args=[run.pk])).content.decode()
    assert "All GPUs of node-1 at once" in page and "Checked at the same time:" in page
    assert page.count('<th scope="row">GPU') == 4 and ">71<" in page
    node = reverse("fleet:node", args=[gpus[0].node_id])
    assert "Check all GPUs" in client.get(node).content.decode()
    asked = client.post(f"/api/v1/nodes/{gpus[0].node_id}/check-joint")
    assert (asked.status_code, asked.json()["kind"], len(asked.json()["peers"])) == (202, "joint", 3)
    assert "in progress" in client.get(node).content.decode()


def test_simulated_node_runs_a_joint_check(catalog, tmp_path, olga, run_node, settle):
    pool = simulated_pool(str(tmp_path))
    run = ask(pool.nodes.order_by("name")[0], olga)
    settle()
    run.refresh_from_db()
    assert (run.state, run.verdict, run.simulated) == (RunState.DONE, CheckVerdict.PASS, True)
    assert run.measures["joint_burn_percent:4"]["value"] == 97.0


def test_simulated_slow_gpu_under_joint_load_is_found(catalog, tmp_path, olga, settle):
    pool = simulated_pool(str(tmp_path))
    rescript(pool, fault_slow_joint="sim-001:0")
    run = ask(pool.nodes.order_by("name")[0], olga)
    settle()
    run.refresh_from_db()
    assert (run.state, run.verdict, run.simulated) == (RunState.DONE, CheckVerdict.DEGRADED, True)
    assert run.measures["joint_burn_percent:4"]["value"] < 90
