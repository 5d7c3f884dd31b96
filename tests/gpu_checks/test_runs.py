"""Checks of devices: requests, messages, verdicts, and repeated, late or invalid results."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.catalog.models import Flavor
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, NotFound, NotPossible, StateConflict
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.cordons import cordon_device, lift_cordon
from portal.fleet.inventory.models import CordonCause, Device, Pool
from portal.gpu_checks import lost_runs, results, runs, selectors
from portal.gpu_checks.models import CheckCause, CheckKind, CheckVerdict, GpuCheckRun, RunState
from portal.scheduling import capacity, snapshot, snapshot_cache
from portal.scheduling.engine.codes import PlacementCode
from provisioning.types import DeviceInfo, DeviceKind
from tests import sites
from tests.factories import node_info
from tests.gpu_checks.helpers import (
    answer,
    checked_pool,
    commands,
    failure,
    fresh,
    only,
    real_report,
    run_of,
    scrubbed,
    tell,
    unavailable,
)

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog


@pytest.fixture
def gpus(catalog) -> list[Device]:
    """Four real GPUs on one node; the test answers for it."""
    pool = checked_pool(node_info(gpus=4))
    return list(Device.objects.filter(node__pool=pool).order_by("index"))


@pytest.fixture
def gpu(gpus) -> Device:
    return gpus[0]


def ask(device: Device, **fields) -> GpuCheckRun:
    return runs.request_check(actor=SYSTEM, device_id=device.pk, **fields)


def kinds(device: Device) -> list[str]:
    told = Event.objects.filter(kind__startswith="device.").exclude(kind="device.appeared").order_by("pk")
    return [event.kind for event in told if event.data.get("device") == device.uuid]


# --- requests -------------------------------------------------------------------------------------


def test_check_is_sent_to_its_node_and_reserves_the_device(gpu, olga, sent, clock):
    run = runs.request_check(actor=olga, device_id=gpu.pk, level="standard")
    assert (run.state, run.requester, run.cause) == (RunState.QUEUED, olga, CheckCause.OPERATOR)
    assert fresh(gpu).checking
    (message,) = sent.of("node.gpu_check")
    assert message.queue == "node.node-1"
    command = only(sent)
    assert (command.uuid, command.level, command.run) == (gpu.uuid, "standard", str(run.pk))
    state = next(iter(capacity.load().values())).nodes[0]
    unusable = {device.uuid: device.unusable for device in state.devices}
    assert unusable[gpu.uuid].code is PlacementCode.DEVICE_CHECKING
    assert kinds(gpu) == ["device.check_asked"]


def test_permission_to_request_and_allowed_resources(gpu, alice, sent):
    with pytest.raises(NotAllowed):
        runs.request_check(actor=alice, device_id=gpu.pk)
    with pytest.raises(NotAllowed):
        runs.request_scrub(actor=alice, device_id=gpu.pk)
    with pytest.raises(InvalidInput) as wrong:
        ask(gpu, level="thorough")
    assert "level" in wrong.value.extra["errors"]
    with pytest.raises(NotFound):
        runs.request_check(actor=SYSTEM, device_id="00000000-0000-0000-0000-000000000000")
    assert not GpuCheckRun.objects.exists()


def test_repeated_request_is_one_run_and_others_wait(gpu, sent):
    first = ask(gpu)
    assert ask(gpu) == first
    for other in (
        lambda: ask(gpu, level="standard"),
        lambda: runs.request_scrub(actor=SYSTEM, device_id=gpu.pk),
    ):
        with pytest.raises(StateConflict) as refused:
            other()
        assert refused.value.extra["run"] == str(first.pk)
        assert refused.value.next_action


def test_missing_or_partitioned_device_is_not_checked(gpu, sent):
    Device.objects.filter(pk=gpu.pk).update(present=False)
    with pytest.raises(StateConflict, match="is missing"):
        ask(gpu)
    Device.objects.filter(pk=gpu.pk).update(present=True, mig_mode=True)
    with pytest.raises(NotPossible, match="partitioned"):
        ask(gpu)
    assert not fresh(gpu).checking


def test_device_in_use_is_not_checked(gpus, make, alice, sent):
    Pool.objects.update(hand_out_max_age_hours=0)
    workspace = make(alice, flavor_of_one_gpu())
    taken = Device.objects.get(allocated__allocation__workspace=workspace)
    with pytest.raises(StateConflict, match="in use") as refused:
        ask(taken)
    assert refused.value.code == "device_in_use"


def flavor_of_one_gpu() -> str:
    return Flavor.objects.filter(accelerator_count=1).order_by("slug").first().slug


def test_only_queued_runs_can_be_cancelled(gpu, olga, sent):
    run = ask(gpu)
    command = only(sent)
    runs.cancel_check(actor=olga, run_id=run.pk)
    assert not fresh(gpu).checking
    assert run_of(command).state == RunState.LOST
    assert answer(command) is False
    again = ask(gpu)
    assert results.apply_progress(run_id=again.pk, lease=only(sent).lease, progress={"phase": "start"})
    with pytest.raises(StateConflict):
        runs.cancel_check(actor=olga, run_id=again.pk)


def test_node_runs_a_limited_number_of_checks_at_a_time(catalog, sent):
    pool = checked_pool(node_info(gpus=6))
    for device in Device.objects.filter(node__pool=pool):
        ask(device)
    first = commands(sent)
    assert len(first) == runs.AT_ONCE_ON_NODE
    assert answer(first[0])
    assert len(commands(sent)) == 1


# --- verdicts --------------------------------------------------------------------------------------


def test_pass_is_recorded_and_clears_the_warning(gpu, sent):
    Device.objects.filter(pk=gpu.pk).update(warning="slow once")
    run = ask(gpu)
    command = only(sent)
    assert results.apply_progress(run_id=run.pk, lease=command.lease, progress={"phase": "start", "done": 3})
    run.refresh_from_db()
    assert (run.state, run.progress["done"]) == (RunState.RUNNING, 3)
    assert answer(command)
    run.refresh_from_db()
    device = fresh(gpu)
    assert (run.state, run.verdict, run.recovery) == (RunState.DONE, CheckVerdict.PASS, "none")
    assert (device.passed_at, device.warning, device.checking) == (run.finished_at, "", False)
    assert run.measures["copy_gb_s"]["value"] > run.measures["copy_gb_s"]["warn_below"] > 0
    assert run.measures["copy_gb_s"]["unit"] == "GB/s"
    assert run.report["uuid"] == gpu.uuid
    assert kinds(gpu) == ["device.check_asked", "device.check_passed"]
    assert selectors.runs_up_to(run) == [run]
    assert not Notification.objects.exists()


def test_each_step_is_published(gpu, sent, monkeypatch):
    told = []
    monkeypatch.setattr("portal.common.events.live.publish_check", told.append)
    run = ask(gpu)
    command = only(sent)
    for _ in range(2):
        assert results.apply_progress(run_id=run.pk, lease=command.lease, progress={"phase": "beat"})
    assert not results.apply_progress(run_id=run.pk, lease="other", progress={"phase": "beat"})
    assert answer(command)
    assert told == [run.pk] * 3


def test_warnings_are_published_to_placement(gpu, sent):
    kept = snapshot.load()

    def warned() -> list[str]:
        assert snapshot_cache.apply_changes(kept, timezone.now())
        nodes = kept.pools[gpu.node.pool_id].nodes
        return [device.uuid for node in nodes for device in node.devices if device.warned]

    assert warned() == []
    ask(gpu)
    assert answer(only(sent), "slow_memory")
    assert warned() == [gpu.uuid]
    ask(gpu)
    assert answer(only(sent))
    assert warned() == []


def test_degraded_device_stays_in_service_with_a_warning(gpu, olga, sent):
    ask(gpu)
    assert answer(only(sent), "slow_memory")
    device = fresh(gpu)
    assert not device.cordoned
    assert "copy_gb_s" in device.warning
    assert device.passed_at is None
    assert [note.kind for note in Notification.objects.filter(user=olga)] == ["device.check_degraded"]


@pytest.mark.parametrize(
    ("wrong", "verdict", "recovery"),
    [("ecc", "fail", "drain_and_reset"), ("xid79", "fail", "reboot"), ("hang", "hung", "reboot")],
)
def test_failed_device_is_cordoned_until_it_passes(gpu, olga, sent, wrong, verdict, recovery):
    ask(gpu)
    assert answer(only(sent), wrong)
    device = fresh(gpu)
    assert (device.cordoned, device.cordon_cause, device.recovery) == (True, CordonCause.CHECK, recovery)
    assert device.cordon_reason
    assert device.checks.get().verdict == verdict
    (note,) = Notification.objects.filter(user=olga)
    assert recovery.replace("_", " ") in note.body
    assert note.url == f"/gpus/devices/{gpu.pk}/"
    ask(gpu)
    assert answer(only(sent))
    device = fresh(gpu)
    assert (device.cordoned, device.cordon_cause, device.recovery) == (False, "", "")
    assert kinds(gpu)[-2:] == ["device.check_passed", "device.uncordoned"]


def test_pass_does_not_lift_other_cordons(gpu, olga, sent):
    cordon_device(actor=olga, device_id=gpu.pk, reason="new cooling")
    for wrong in ("ecc", ""):
        ask(gpu)
        assert answer(only(sent), *filter(None, [wrong]))
        device = fresh(gpu)
        assert (device.cordoned, device.cordon_cause) == (True, CordonCause.OPERATOR)
        assert device.cordon_reason == "new cooling"
    lift_cordon(actor=olga, device_id=gpu.pk)
    runs.request_scrub(actor=olga, device_id=gpu.pk)
    assert scrubbed(only(sent), "leak")
    assert fresh(gpu).cordon_cause == CordonCause.SCRUB
    ask(gpu)
    assert answer(only(sent))
    assert fresh(gpu).cordon_cause == CordonCause.SCRUB


@pytest.mark.parametrize("how", ["unavailable", "busy", "failure"])
def test_check_that_could_not_run_changes_nothing(gpu, olga, sent, how):
    before = timezone.now() - timedelta(days=3)
    Device.objects.filter(pk=gpu.pk).update(passed_at=before)
    ask(gpu)
    command = only(sent)
    if how == "failure":
        assert tell(command, failure=failure())
    else:
        report = unavailable(command) if how == "unavailable" else real_report(command, "busy")
        assert tell(command, report=report)
    device = fresh(gpu)
    assert run_of(command).verdict == CheckVerdict.INCONCLUSIVE
    assert (device.cordoned, device.checking, device.passed_at) == (False, False, before)
    assert kinds(gpu)[-1] == "device.check_inconclusive"
    assert not Notification.objects.exists()


def test_hung_node_failure_cordons_the_device(gpu, sent):
    ask(gpu)
    assert tell(only(sent), failure=failure("hung"))
    device = fresh(gpu)
    assert (device.cordoned, device.recovery) == (True, "reboot")


def test_failed_mig_instance_cordons_its_gpu_until_all_instances_pass(catalog, sent):
    parent = DeviceInfo("GPU-p", 0, "NVIDIA H100 80GB HBM3", 81_559, mig_mode=True)
    parts = [
        DeviceInfo(
            f"MIG-{n}", 0, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9_728, DeviceKind.MIG, "GPU-p",
            mig_profile="1g.10gb", mig_start=n,
        )
        for n in range(2)
    ]  # fmt: skip
    checked_pool(node_info(devices=(parent, *parts)))
    whole, first, second = (Device.objects.get(uuid=each.uuid) for each in (parent, *parts))
    ask(first)
    assert answer(only(sent), "xid79")
    assert fresh(first).cordoned and fresh(whole).cordoned and not fresh(second).cordoned
    assert "1g.10gb" in fresh(whole).cordon_reason
    # A leak concerns the instance only.
    ask(second)
    assert answer(only(sent), "hang")
    assert fresh(second).cordoned
    ask(first)
    assert answer(only(sent))
    assert not fresh(first).cordoned
    assert fresh(whole).cordoned, "its other instance is out"
    ask(second)
    assert answer(only(sent))
    assert not fresh(whole).cordoned


def test_instance_leak_does_not_cordon_its_gpu(catalog, sent):
    parent = DeviceInfo("GPU-p", 0, "NVIDIA H100 80GB HBM3", 81_559, mig_mode=True)
    part = DeviceInfo("MIG-0", 0, "x", 9_728, DeviceKind.MIG, "GPU-p", mig_profile="1g.10gb", mig_start=0)
    checked_pool(node_info(devices=(parent, part)))
    instance = Device.objects.get(uuid="MIG-0")
    ask(instance)
    assert answer(only(sent), "leak")
    assert fresh(instance).cordoned
    assert not Device.objects.get(uuid="GPU-p").cordoned


# --- invalid reports ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"verdict": "fine"}, "fine"),
        ({"uuid": "GPU-other"}, "another device"),
        ({"level": "standard"}, "level"),
        ({"simulated": True, "verdict": "inconclusive", "exit_code": 3}, "simulated"),
        ({"tests": []}, "tests"),
        ({"software": {"note": "x" * 600_000}}, "KiB"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_invalid_report_is_inconclusive(gpu, sent, changes, why):
    ask(gpu)
    command = only(sent)
    assert answer(command, **changes)
    run = run_of(command)
    assert run.verdict == CheckVerdict.INCONCLUSIVE
    assert why in run.summary
    assert (run.report, fresh(gpu).passed_at) == ({}, None)


def test_no_report_and_a_text_for_a_report_are_inconclusive(gpu, sent):
    ask(gpu)
    assert tell(only(sent))
    assert fresh(gpu).checks.get().verdict == CheckVerdict.INCONCLUSIVE
    runs.request_scrub(actor=SYSTEM, device_id=gpu.pk)
    assert tell(only(sent), report={"verdict": "clean"})
    assert fresh(gpu).clean_free_mib is None


def test_worse_of_reported_and_computed_verdict_counts(gpu, sent):
    """A report with a failed test cannot be only degraded."""
    ask(gpu)
    command = only(sent)
    report = real_report(command, "leak") | {"verdict": "degraded", "exit_code": 1}
    assert tell(command, report=report)
    assert fresh(gpu).cordoned


# --- repeated, late and lost messages -------------------------------------------------------------


def state_of_device(device: Device) -> tuple:
    rows = GpuCheckRun.objects.filter(device=device).order_by("pk").values()
    return (Device.objects.filter(pk=device.pk).values().get(), list(rows), Event.objects.count())


def test_result_counts_once_and_only_with_its_lease(gpu, sent):
    ask(gpu)
    command = only(sent)
    before = state_of_device(gpu)
    for lease in ("", "0" * 32):
        wrong = type(command)(**{**_fields(command), "lease": lease})
        assert answer(wrong) is False
        assert not results.apply_progress(run_id=command.run, lease=lease, progress={})
    assert state_of_device(gpu) == before
    assert answer(command)
    after = state_of_device(gpu)
    assert answer(command, "ecc") is False
    assert not results.apply_progress(run_id=command.run, lease=command.lease, progress={})
    assert state_of_device(gpu) == after


def _fields(command) -> dict:
    return {name: getattr(command, name) for name in command.__slots__}


def test_lost_run_is_sent_again_twice_and_then_abandoned(gpu, sent, clock):
    run = ask(gpu)
    leases = {only(sent).lease}
    for _ in range(2):
        clock.shift(runs.BEGIN_WITHIN_S + 1)
        assert lost_runs.sweep_lost() == 0
        leases.add(only(sent).lease)
    assert len(leases) == 3
    clock.shift(runs.BEGIN_WITHIN_S + 1)
    assert lost_runs.sweep_lost() == 1
    run.refresh_from_db()
    assert (run.state, run.verdict) == (RunState.LOST, "")
    assert not fresh(gpu).checking and not fresh(gpu).cordoned
    assert kinds(gpu)[-1] == "device.check_lost"
    assert not commands(sent)
    assert lost_runs.sweep_lost() == 0


def test_device_of_a_deleted_run_is_released(gpus, sent):
    for device in gpus[:2]:
        ask(device)
    GpuCheckRun.objects.filter(device=gpus[0]).delete()
    lost_runs.sweep_lost()
    assert [fresh(device).checking for device in gpus[:2]] == [False, True]


def test_run_with_progress_is_not_lost(gpu, sent, clock):
    run = ask(gpu, level="standard")
    lease = only(sent).lease
    for _ in range(4):
        clock.shift(runs.SILENT_S - 5)
        assert results.apply_progress(run_id=run.pk, lease=lease, progress={"phase": "beat"})
        assert lost_runs.sweep_lost() == 0
    assert len(sent) == 0
    clock.shift(runs.SILENT_S + 1)
    lost_runs.sweep_lost()
    run.refresh_from_db()
    assert run.state == RunState.QUEUED


def test_run_with_endless_heartbeats_is_abandoned(gpu, sent, clock):
    run = ask(gpu)
    lease = only(sent).lease
    for _ in range(20):
        results.apply_progress(run_id=run.pk, lease=lease, progress={"phase": "beat"})
        clock.shift(20)
        lost_runs.sweep_lost()
    run.refresh_from_db()
    assert (run.state, run.attempts) == (RunState.LOST, 1)
    assert not fresh(gpu).checking


def test_run_is_sent_again_after_a_long_node_outage(gpu, sent, clock):
    run = ask(gpu)
    sent.take()
    clock.shift(3600)
    assert lost_runs.sweep_lost() == 0
    assert answer(only(sent))
    run.refresh_from_db()
    assert run.verdict == CheckVerdict.PASS


def test_unsent_message_is_sent_by_the_sweep(gpu, sent, clock):
    sent.away = True
    ask(gpu)
    sent.away = False
    assert len(sent) == 0
    clock.shift(runs.BEGIN_WITHIN_S + 1)
    lost_runs.sweep_lost()
    assert answer(only(sent))


def test_result_for_a_missing_device(gpu, sent):
    ask(gpu)
    command = only(sent)
    Device.objects.filter(pk=gpu.pk).update(present=False)
    assert answer(command, "xid79")
    assert fresh(gpu).cordoned
    ask_again = GpuCheckRun.objects.create(device=gpu, cause=CheckCause.OPERATOR, lease="abc")
    outdated = type(command)(**{**_fields(command), "run": str(ask_again.pk), "lease": "abc"})
    Device.objects.filter(pk=gpu.pk).delete()
    assert answer(outdated) is False


def test_reported_progress_is_bounded(gpu, sent):
    run = ask(gpu)
    lease = only(sent).lease
    odd = {"phase": "x" * 9000, "test": "a\0b", "done": -3, "total": "many", "elapsed_ms": 10**20, "more": 1}
    assert results.apply_progress(run_id=run.pk, lease=lease, progress=odd)
    run.refresh_from_db()
    assert run.progress["phase"] == "x" * 500
    assert (run.progress["test"], run.progress["done"], run.progress["total"]) == ("ab", 0, 0)
    assert "more" not in run.progress


# --- scrubs ----------------------------------------------------------------------------------------


def test_clean_scrub_is_the_baseline_of_the_next(gpu, sent):
    runs.request_scrub(actor=SYSTEM, device_id=gpu.pk)
    first = only(sent)
    assert first.baseline_mib is None
    assert scrubbed(first, free_mib=80_123)
    assert fresh(gpu).clean_free_mib == 80_123
    runs.request_scrub(actor=SYSTEM, device_id=gpu.pk)
    assert only(sent).baseline_mib == 80_123
    # Another driver uses another amount, so the value is no baseline.
    GpuCheckRun.objects.filter(state=RunState.QUEUED).delete()
    fresh(gpu).node.__class__.objects.update(driver_version="999.1")
    runs.request_scrub(actor=SYSTEM, device_id=gpu.pk)
    assert only(sent).baseline_mib is None


@pytest.mark.parametrize(
    ("verdict", "recovery"), [("leak", "reset"), ("failed", "inspect"), ("hung", "reboot")]
)
def test_unclean_memory_cordons_the_device_until_a_clean_scrub(gpu, olga, sent, verdict, recovery):
    runs.request_scrub(actor=olga, device_id=gpu.pk)
    assert scrubbed(only(sent), verdict)
    device = fresh(gpu)
    assert (device.cordoned, device.cordon_cause, device.recovery) == (True, CordonCause.SCRUB, recovery)
    assert device.passed_at is None
    runs.request_scrub(actor=olga, device_id=gpu.pk)
    assert scrubbed(only(sent))
    assert not fresh(gpu).cordoned


@pytest.mark.parametrize("verdict", ["unavailable", "busy", "inconclusive"])
@pytest.mark.parametrize("required", [None, False, True])
def test_inconclusive_scrub_is_reported_once_and_the_pool_decides(gpu, sent, verdict, required):
    """By default, the device is kept back."""
    if required is not None:
        Pool.objects.update(scrub_required=required)
    for _ in range(3):
        runs.request_scrub(actor=SYSTEM, device_id=gpu.pk)
        assert scrubbed(only(sent), verdict)
    assert kinds(gpu).count("device.scrub_inconclusive") == 1
    assert fresh(gpu).cordoned is (required is not False)
    assert not fresh(gpu).checking


def test_simulated_scrub_does_not_clear_a_real_device(gpu, sent):
    runs.request_scrub(actor=SYSTEM, device_id=gpu.pk)
    command = only(sent)
    assert scrubbed(command, simulated=True)
    assert run_of(command).verdict == CheckVerdict.INCONCLUSIVE
    assert fresh(gpu).clean_free_mib is None


def test_result_of_another_kind_is_refused(gpu, sent):
    ask(gpu)
    command = only(sent)
    other = type(command)(**{**_fields(command), "kind": "scrub"})
    assert scrubbed(other) is False
    assert run_of(command).kind == CheckKind.CHECK
    assert run_of(command).open
