"""Automatic checks; and a simulated pool from faults through cordon to return."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.catalog.models import Flavor
from portal.common.actors import SYSTEM
from portal.common.events import services as events
from portal.common.events.models import Event, TargetKind
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.cordons import cordon_device
from portal.fleet.inventory.models import AllocatedDevice, CheckLevel, CordonCause, Device, Pool
from portal.gpu_checks import policy, runs
from portal.gpu_checks.models import CheckCause, CheckVerdict, GpuCheckRun, RunState
from portal.workspaces.lifecycle import State
from tests.factories import inventory_of, node_info, rescript, simulated_pool
from tests.gpu_checks.helpers import answer, checked_pool, commands, fresh, only, run_of, unavailable
from tests.gpu_checks.helpers import tell as node_tells

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


@pytest.fixture
def site(clock, catalog) -> Pool:
    """Two nodes with eight real GPUs each, checked weekly."""
    return checked_pool(node_info("node-1", gpus=8), node_info("node-2", gpus=8))


def causes(sent) -> list[CheckCause]:
    return [CheckCause(run_of(command).cause) for command in commands(sent)]


def stay_seen(pool: Pool) -> None:
    pool.nodes.update(online=True, seen_at=timezone.now())
    Pool.objects.filter(pk=pool.pk).update(state="online", inventory_at=timezone.now())


def test_new_devices_are_checked_a_few_at_a_time(site, sent, clock):
    most = 0
    seen: set[str] = set()
    for _ in range(40):
        policy.run()
        under_way = commands(sent)
        if not under_way:
            break
        most = max(most, len(under_way))
        per_node = [run_of(each).device.node.name for each in under_way]
        assert max(map(per_node.count, per_node)) <= policy.MAX_ON_NODE
        for each in under_way:
            assert run_of(each).cause == CheckCause.NEW
            assert answer(each)
            seen.add(each.uuid)
    assert len(seen) == 16
    assert 2 <= most <= 4
    policy.run()
    assert not commands(sent)


def test_devices_are_checked_on_schedule_with_the_level_of_the_pool(site, sent, clock):
    for device in Device.objects.all():
        GpuCheckRun.objects.create(
            device=device, cause=CheckCause.NEW, state=RunState.DONE, verdict=CheckVerdict.PASS,
            finished_at=timezone.now(),
        )  # fmt: skip
    clock.shift(7 * DAY - timedelta(minutes=1))
    stay_seen(site)
    policy.run()
    assert not commands(sent)
    clock.shift(timedelta(minutes=2))
    Pool.objects.update(check_level="extended")
    stay_seen(site)
    policy.run()
    found = commands(sent)
    assert {run_of(each).cause for each in found} == {CheckCause.SCHEDULE}
    assert {each.level for each in found} == {"extended"}


def test_preflight_checks_do_not_delay_the_scheduled_check(site, sent, clock):
    """Otherwise a device allocated daily would never have its scheduled check."""
    device = Device.objects.get(node__name="node-1", index=0)
    Device.objects.exclude(pk=device.pk).delete()

    def checked(level: CheckLevel, cause: CheckCause) -> None:
        GpuCheckRun.objects.create(
            device=device, level=level, cause=cause, state=RunState.DONE, verdict=CheckVerdict.PASS,
            finished_at=timezone.now(),
        )  # fmt: skip

    checked(CheckLevel.QUICK, CheckCause.NEW)
    for _week in range(2):
        for _day in range(7):
            stay_seen(site)
            policy.run()
            assert not commands(sent)
            clock.shift(DAY)
            checked(CheckLevel.QUICK, CheckCause.HAND_OUT)
        stay_seen(site)
        policy.run()
        command = only(sent)
        assert (run_of(command).cause, command.level) == (CheckCause.SCHEDULE, "standard")
        assert answer(command)
    clock.shift(DAY)
    checked(CheckLevel.EXTENDED, CheckCause.OPERATOR)
    clock.shift(6 * DAY + timedelta(hours=23))
    stay_seen(site)
    policy.run()
    assert not commands(sent), "a more thorough one counts as well"


@pytest.mark.parametrize(
    "how", ["off", "disabled", "unreachable", "offline", "cordoned node", "cordoned", "unhealthy", "gone"]
)
def test_devices_without_automatic_checks(site, sent, olga, how):
    match how:
        case "off":
            Pool.objects.update(check_every_hours=0)
        case "disabled":
            Pool.objects.update(enabled=False)
        case "unreachable":
            Pool.objects.update(state="unreachable")
        case "offline":
            site.nodes.update(online=False)
        case "cordoned node":
            site.nodes.update(cordoned=True)
        case "cordoned":
            for device in Device.objects.all():
                cordon_device(actor=olga, device_id=device.pk, reason="mine")
        case "unhealthy":
            Device.objects.update(healthy=False)
        case "gone":
            Device.objects.update(present=False)
    policy.run()
    assert not commands(sent)


def test_simulated_pool_is_not_checked_automatically(pool, sent):
    policy.run()
    assert not commands(sent)


def test_policy_query_count_is_constant(clock, catalog, tmp_path, sent, django_assert_max_num_queries):
    pool = simulated_pool(str(tmp_path / "big"), nodes=20, gpus=8)
    with django_assert_max_num_queries(6):
        policy.run()
    Pool.objects.filter(pk=pool.pk).update(check_every_hours=1)
    now = timezone.now()
    GpuCheckRun.objects.bulk_create(
        GpuCheckRun(device=device, cause=CheckCause.NEW, state=RunState.DONE, finished_at=now)
        for device in Device.objects.all()
    )
    with django_assert_max_num_queries(10):
        policy.run()
    assert not commands(sent)


def test_last_free_device_is_left_to_waiting_workspaces(clock, catalog, make, alice, bob, sent):
    checked_pool(node_info(gpus=1))
    Pool.objects.update(hand_out_max_age_hours=0)
    Device.objects.update(checking=True)
    waiting = make(alice, Flavor.objects.get(accelerator_count=1).slug)
    assert waiting.state == State.PENDING
    Device.objects.update(checking=False)
    policy.run()
    assert not commands(sent)
    type(waiting).objects.filter(pk=waiting.pk).update(state=State.STOPPED)
    policy.run()
    assert causes(sent) == [CheckCause.NEW]


def test_devices_in_use_are_not_checked(clock, catalog, make, alice, sent):
    checked_pool(node_info(gpus=4))
    Pool.objects.update(hand_out_max_age_hours=0)
    workspace = make(alice, Flavor.objects.get(accelerator_count=2).slug)
    used = set(AllocatedDevice.objects.values_list("device__uuid", flat=True))
    assert workspace.state == State.PROVISIONING and len(used) == 2
    for _ in range(4):
        policy.run()
        for command in commands(sent):
            assert command.uuid not in used
            assert answer(command)
    assert GpuCheckRun.objects.count() == 2


def test_returned_device_is_checked_even_if_cordoned_by_a_check(site, sent, clock):
    device = Device.objects.first()
    Device.objects.update(passed_at=timezone.now())
    for each in Device.objects.all():
        GpuCheckRun.objects.create(
            device=each, cause=CheckCause.NEW, state=RunState.DONE, verdict=CheckVerdict.PASS
        )
    runs.request_check(actor=SYSTEM, device_id=device.pk)
    assert answer(only(sent), "xid79")
    policy.run()
    assert not commands(sent), "somebody has to reboot it first"
    clock.shift(60)
    events.record(
        actor=SYSTEM, kind="device.returned", pool=site, message="found it again",
        targets=[events.Target(TargetKind.DEVICE, device.uuid)],
    )  # fmt: skip
    clock.shift(1)
    policy.run()
    command = only(sent)
    assert (command.uuid, run_of(command).cause) == (device.uuid, CheckCause.RETURNED)
    assert answer(command)
    assert not fresh(device).cordoned
    policy.run()
    assert not commands(sent)


def test_transient_failure_is_retried_with_backoff(site, sent, clock):
    Pool.objects.update(check_every_hours=0, check_required=True)
    device = Device.objects.first()
    cordon_device(
        actor=SYSTEM, device_id=device.pk, reason="no verdict", cause=CordonCause.CHECK, recovery="retry"
    )
    GpuCheckRun.objects.create(
        device=device, cause=CheckCause.HAND_OUT, state=RunState.LOST, finished_at=timezone.now()
    )
    waits = []
    for _ in range(3):
        passed = 0
        while not sent.of("node.gpu_check"):
            clock.shift(60)
            passed += 1
            stay_seen(site)
            policy.run()
            assert passed < 60
        waits.append(passed)
        command = only(sent)
        assert (run_of(command).cause, command.level) == (CheckCause.RECHECK, "standard")
        assert node_tells(command, report=unavailable(command))
        assert fresh(device).cordoned
    assert waits == [5, 10, 20]
    clock.shift(3600)
    stay_seen(site)
    policy.run()
    assert answer(only(sent))
    assert not fresh(device).cordoned


@pytest.mark.parametrize("recovery", ["reset", "drain_and_reset", "reboot", "replace", "inspect"])
def test_manual_repair_waits_for_an_operator(site, sent, clock, recovery):
    """Error counters restart with each check, so another check would find nothing."""
    Pool.objects.update(check_every_hours=0)
    cordon_device(
        actor=SYSTEM, device_id=Device.objects.first().pk, reason="bad", cause=CordonCause.CHECK,
        recovery=recovery,
    )  # fmt: skip
    clock.shift(DAY)
    stay_seen(site)
    policy.run()
    assert not commands(sent)


def test_lost_check_is_swept_and_retried_later(site, sent, clock):
    Device.objects.exclude(pk=Device.objects.first().pk).delete()
    for _ in range(6):
        policy.run()
        sent.take("node.gpu_check")
        clock.shift(runs.BEGIN_WITHIN_S + 1)
        stay_seen(site)
    assert GpuCheckRun.objects.count() == 1
    assert GpuCheckRun.objects.get().state == RunState.LOST
    clock.shift(policy.RETRY_UNDECIDED_AFTER)
    stay_seen(site)
    policy.run()
    assert causes(sent) == [CheckCause.NEW]


def test_faulty_simulated_device_is_never_allocated(clock, catalog, tmp_path, make, alice, settle):
    pool = simulated_pool(str(tmp_path / "sim"), nodes=1, gpus=2, fault_xid79="sim-001:0,sim-001:1")
    Pool.objects.filter(pk=pool.pk).update(hand_out_max_age_hours=1)
    rescript(pool, fault_xid79="sim-001:0")
    workspace = make(alice, "sim-h100-x1")
    settle()
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    assert AllocatedDevice.objects.get(active=True).device.index == 1
    told = Event.objects.filter(workspace=workspace).order_by("pk").values_list("kind", flat=True)
    if GpuCheckRun.objects.filter(verdict=CheckVerdict.FAIL).exists():
        assert "workspace.no_capacity" in told


def test_repeated_inventory_does_not_affect_checks(site, sent):
    policy.run()
    first = commands(sent)
    infos = [node_info(name, gpus=8) for name in ("node-1", "node-2")]
    inventory.apply_inventory(pool=site, inventory=inventory_of(*infos))
    policy.run()
    assert not {command.uuid for command in commands(sent)} & {each.uuid for each in first}
