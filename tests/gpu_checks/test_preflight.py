"""A quick check before allocation if the last is too old; a scrub after release."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from portal.catalog.models import Flavor
from portal.common.actors import SYSTEM
from portal.common.events.models import Event
from portal.fleet.inventory.cordons import cordon_device, lift_cordon
from portal.fleet.inventory.models import CordonCause, Device, Pool
from portal.fleet.inventory.services import create_pool
from portal.gpu_checks import policy, preflight, results, runs
from portal.gpu_checks.models import CheckCause, CheckKind, GpuCheckRun, RunState
from portal.scheduling import cycle
from portal.workspaces import selectors, services
from portal.workspaces.domain_events import AllocationsReleased
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.types import Op
from tests import sites
from tests.factories import node_info
from tests.gpu_checks.helpers import (
    answer,
    checked_pool,
    commands,
    failure,
    fresh,
    held,
    only,
    run_of,
    scrubbed,
    tell,
    unavailable,
)
from tests.rows import error_message
from tests.sweeps import sweep
from tests.workspaces.helpers import answer as node_says
from tests.workspaces.helpers import check_invariants, run_until_ready, taken

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog


@pytest.fixture
def gpus(clock, catalog) -> list[Device]:
    """Two real, unchecked GPUs on one node."""
    pool = checked_pool(node_info(gpus=2))
    return list(Device.objects.filter(node__pool=pool).order_by("index"))


def flavor(count: int) -> str:
    return Flavor.objects.get(accelerator_count=count, name__contains="× NVIDIA").slug


@pytest.fixture
def workspace(gpus, make, alice) -> Workspace:
    """Placed on one of the GPUs, with its preflight check pending."""
    return make(alice, flavor(1))


def device_of(workspace: Workspace) -> Device:
    return Device.objects.get(allocated__active=True, allocated__allocation__workspace=workspace)


def stages(workspace: Workspace) -> dict[str, str]:
    workspace.refresh_from_db()
    return {stage.key: stage.state for stage in selectors.stages(workspace)}


def messages_of(workspace: Workspace) -> list[str]:
    return [event.sentence for event in Event.objects.filter(workspace=workspace).order_by("pk")]


def test_workspace_starts_only_after_its_device_passed(workspace, sent, clock):
    assert (workspace.state, workspace.lease) == (State.PROVISIONING, "")
    assert not sent.commands
    command = only(sent)
    run = run_of(command)
    assert (run.cause, run.level, run.workspace) == (CheckCause.HAND_OUT, "quick", workspace)
    assert command.uuid == device_of(workspace).uuid
    assert stages(workspace)["checked"] == "current"
    assert stages(workspace)["starting"] == "todo"
    for _ in range(5):
        clock.shift(2)
        sweep()
    assert not sent.commands
    assert answer(command)
    assert stages(workspace) == {
        "requested": "done", "admitted": "done", "placed": "done", "checked": "done", "starting": "current",
        "ready": "todo",
    }  # fmt: skip
    run_until_ready(sent, workspace)
    check_invariants()


def test_recent_pass_needs_no_check(gpus, make, alice, sent):
    Device.objects.update(passed_at=timezone.now() - timedelta(hours=23))
    workspace = make(alice, flavor(1))
    assert taken(sent, Op.START)
    assert "checked" not in stages(workspace)
    assert not GpuCheckRun.objects.exists()


def test_old_pass_needs_a_check_and_degraded_devices_are_not_checked_each_time(gpus, make, alice, sent):
    Device.objects.update(passed_at=timezone.now() - timedelta(hours=25))
    first = make(alice, flavor(1))
    assert answer(only(sent), "slow_memory")
    assert node_says(sent, "start", "running", ready=True)
    services.stop(actor=alice, workspace_id=first.pk)
    assert node_says(sent, "stop", "stopped")
    assert scrubbed(only(sent))
    Device.objects.exclude(pk=run_device(first)).update(cordoned=True)
    services.start(actor=alice, workspace_id=first.pk)
    assert taken(sent, Op.START)


def run_device(workspace: Workspace):
    return GpuCheckRun.objects.filter(workspace=workspace).latest("created_at").device_id


def test_preflight_can_be_disabled_per_pool(gpus, make, alice, sent):
    Pool.objects.update(hand_out_max_age_hours=0)
    make(alice, flavor(1))
    assert taken(sent, Op.START)
    assert not commands(sent)


@pytest.mark.parametrize("wrong", ["ecc", "xid79", "hang"])
def test_failed_device_is_cordoned_and_another_is_allocated(workspace, sent, settle, wrong):
    bad = device_of(workspace)
    requested = workspace.requested_at
    assert answer(only(sent), wrong)
    workspace.refresh_from_db()
    assert workspace.state == State.PENDING
    assert (workspace.requested_at, workspace.pool) == (requested, None)
    assert "failed its check. The workspace is queued again" in error_message(workspace)
    assert not held(bad) and fresh(bad).cordoned
    # No scrub, as it was unused. And the queue is notified.
    assert not sent.of("node.gpu_scrub")
    assert sent.of("control.schedule")
    assert any("queued again" in text for text in messages_of(workspace))
    check_invariants()
    cycle.run()
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING
    good = device_of(workspace)
    assert good != bad
    assert answer(only(sent))
    run_until_ready(sent, workspace)
    check_invariants()


def test_workspace_keeps_its_queue_position_after_a_failed_check(gpus, make, alice, bob, sent, clock):
    cordon_device(actor=SYSTEM, device_id=gpus[1].pk, reason="away")
    first = make(alice, flavor(1))
    clock.shift(5)
    second = make(bob, flavor(1))
    assert second.state == State.PENDING
    assert answer(only(sent), "ecc")
    lift_cordon(actor=SYSTEM, device_id=gpus[1].pk)
    cycle.run()
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, second.state) == (State.PROVISIONING, State.PENDING)


def test_checks_are_required_by_default_for_real_devices_only(gpus, olga):
    pool = gpus[0].node.pool
    assert (pool.check_required, pool.scrub_required) == (True, True)
    trial = create_pool(actor=olga, slug="trial", name="Trial", driver="simulated")
    assert (trial.check_required, trial.scrub_required) == (False, False)


@pytest.mark.parametrize("how", ["unavailable", "failure"])
def test_unchecked_device_is_cordoned_and_the_workspace_waits(workspace, sent, how):
    device, command = device_of(workspace), only(sent)
    if how == "unavailable":
        assert tell(command, report=unavailable(command))
    else:
        assert tell(command, failure=failure())
    workspace.refresh_from_db()
    assert workspace.state == State.PENDING
    assert not sent.commands
    assert "could not be checked" in error_message(workspace)
    assert (fresh(device).cordon_cause, fresh(device).recovery) == (CordonCause.CHECK, "retry")


@pytest.mark.parametrize("how", ["unavailable", "failure"])
def test_unchecked_device_is_allocated_with_a_warning_if_allowed(workspace, sent, how):
    Pool.objects.update(check_required=False)
    command = only(sent)
    if how == "unavailable":
        assert tell(command, report=unavailable(command))
    else:
        assert tell(command, failure=failure())
    assert taken(sent, Op.START)
    (event,) = Event.objects.filter(workspace=workspace, kind="workspace.unchecked")
    assert "unchecked" in event.message
    assert not Device.objects.filter(cordoned=True).exists()


def test_missing_library_is_not_retried_at_each_start(workspace, make, alice, sent, clock):
    Pool.objects.update(check_required=False, scrub_required=False)
    command = only(sent)
    assert tell(command, report=unavailable(command))
    assert node_says(sent, "start", "running", ready=True)
    services.stop(actor=alice, workspace_id=workspace.pk)
    assert node_says(sent, "stop", "stopped")
    assert scrubbed(only(sent), "unavailable")
    Device.objects.exclude(pk=run_device(workspace)).update(cordoned=True)
    services.start(actor=alice, workspace_id=workspace.pk)
    assert taken(sent, Op.START)
    assert not commands(sent)


def test_silent_node_does_not_block_the_start_indefinitely(workspace, sent, clock):
    Pool.objects.update(check_required=False)
    for _ in range(preflight.DEADLINE_S // 10 + 1):
        sent.take("node.gpu_check")
        clock.shift(10)
        policy.run()
        sweep()
        if sent.commands:
            break
    assert taken(sent, Op.START)
    assert Event.objects.filter(workspace=workspace, kind="workspace.unchecked").count() == 1
    assert not device_of(workspace).checking
    assert preflight.runs_of(workspace).get().state == RunState.LOST


def test_check_on_a_silent_node_is_abandoned(workspace, sent, clock):
    device = device_of(workspace)
    for _ in range(preflight.DEADLINE_S // 10 + 1):
        sent.take("node.gpu_check")
        clock.shift(10)
        sweep()
    assert not sent.commands
    assert (fresh(device).cordon_cause, fresh(device).recovery) == (CordonCause.CHECK, "retry")
    assert device_of(workspace) != device


def test_deadline_applies_although_the_node_reports_progress(workspace, sent, clock):
    Pool.objects.update(check_required=False)
    command = only(sent)
    for _ in range(preflight.DEADLINE_S // 10 + 1):
        results.apply_progress(run_id=command.run, lease=command.lease, progress={"phase": "beat"})
        clock.shift(10)
        sweep()
    assert taken(sent, Op.START)
    assert answer(command, "ecc") is False


def test_check_time_does_not_count_toward_the_start_timeout(workspace, sent, clock):
    Workspace.objects.filter(pk=workspace.pk).update(next_reconcile_at=timezone.now())
    limit = workspace.template.start_timeout_s
    command = only(sent)
    clock.shift(min(limit, preflight.DEADLINE_S) - 1)
    assert answer(command)
    taken(sent, Op.START)
    clock.shift(25)
    sweep()
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING, error_message(workspace)


@pytest.mark.parametrize("act", ["stop", "delete"])
def test_workspace_can_be_stopped_or_deleted_during_its_check(workspace, alice, sent, act):
    device = device_of(workspace)
    command = only(sent)
    getattr(services, act)(actor=alice, workspace_id=workspace.pk)
    assert node_says(sent, "stop" if act == "stop" else "delete", "absent")
    workspace.refresh_from_db()
    assert workspace.state == (State.STOPPED if act == "stop" else State.TERMINATED)
    assert not held(device)
    assert fresh(device).checking, "its check goes on, and nobody else gets it meanwhile"
    assert not commands(sent)
    assert answer(command)
    assert not fresh(device).checking
    workspace.refresh_from_db()
    assert workspace.state in (State.STOPPED, State.TERMINATED)
    assert not sent.commands
    check_invariants()


def test_check_of_an_earlier_placement_does_not_start_the_next(workspace, alice, sent):
    first = only(sent)
    services.stop(actor=alice, workspace_id=workspace.pk)
    assert node_says(sent, "stop", "absent")
    services.start(actor=alice, workspace_id=workspace.pk)
    second = only(sent)
    assert second.uuid != first.uuid
    assert answer(first)
    assert not sent.commands
    assert answer(second)
    assert taken(sent, Op.START)


def test_earlier_failure_does_not_count_against_a_returned_device(workspace, sent, clock):
    device = device_of(workspace)
    Device.objects.exclude(pk=device.pk).update(present=False)
    assert answer(only(sent), "ecc")
    clock.shift(60)
    lift_cordon(actor=SYSTEM, device_id=device.pk, reason="it was reset")
    cycle.run()
    workspace.refresh_from_db()
    assert device_of(workspace) == device
    assert answer(only(sent))
    assert taken(sent, Op.START)


def test_start_under_way_is_not_checked_again(workspace, alice, sent):
    first = only(sent)
    services.stop(actor=alice, workspace_id=workspace.pk)
    assert node_says(sent, "stop", "absent")
    Device.objects.exclude(uuid=first.uuid).update(passed_at=timezone.now())
    services.start(actor=alice, workspace_id=workspace.pk)
    taken(sent, Op.START)
    assert answer(first)
    assert not sent.commands


def test_workspace_with_two_devices_waits_for_both_and_releases_both_on_failure(gpus, make, alice, sent):
    workspace = make(alice, flavor(2))
    first, second = commands(sent)
    assert answer(first)
    assert not sent.commands
    assert answer(second)
    run_until_ready(sent, workspace)
    services.delete(actor=alice, workspace_id=workspace.pk)
    assert node_says(sent, "delete", "absent")
    assert all(scrubbed(command) for command in commands(sent))
    Device.objects.update(passed_at=None)
    workspace = make(alice, flavor(2))
    first, second = commands(sent)
    assert answer(first, "xid79")
    workspace.refresh_from_db()
    assert workspace.state == State.PENDING
    assert not any(held(device) for device in gpus)
    assert answer(second)
    assert not sent.commands
    check_invariants()


# --- after reclaim ---------------------------------------------------------------------------------


@pytest.fixture
def running(workspace, sent) -> Workspace:
    assert answer(only(sent))
    run_until_ready(sent, workspace)
    return workspace


def test_device_is_not_allocated_before_its_scrub(running, make, alice, bob, sent):
    device = device_of(running)
    Device.objects.exclude(pk=device.pk).update(cordoned=True)
    services.delete(actor=alice, workspace_id=running.pk)
    assert node_says(sent, "delete", "absent")
    command = only(sent)
    assert (command.kind, command.uuid) == ("scrub", device.uuid)
    assert run_of(command).cause == CheckCause.RECLAIM
    assert not held(device)
    waiting = make(bob, flavor(1))
    assert waiting.state == State.PENDING
    sent.take("control.schedule")
    assert scrubbed(command)
    assert sent.of("control.schedule"), "whoever waits may fit now"
    cycle.run()
    waiting.refresh_from_db()
    assert waiting.state == State.PROVISIONING
    assert device_of(waiting) == device


def test_leak_cordons_the_device_and_it_is_scrubbed_again_later(running, alice, sent, clock):
    device = device_of(running)
    services.delete(actor=alice, workspace_id=running.pk)
    assert node_says(sent, "delete", "absent")
    assert scrubbed(only(sent), "leak")
    assert fresh(device).cordon_cause == CordonCause.SCRUB
    policy.run()
    assert not [command for command in commands(sent) if command.uuid == device.uuid]
    clock.shift(policy.RECHECK_AFTER.total_seconds() + 1)
    policy.run()
    (again,) = [command for command in commands(sent) if command.uuid == device.uuid]
    assert (again.kind, run_of(again).cause) == ("scrub", CheckCause.RECHECK)
    assert scrubbed(again)
    assert not fresh(device).cordoned


def scrubs_after(device_id):
    """The number of scrubs queued when a workspace releases this device."""
    return preflight.scrub_after(AllocationsReleased(Workspace(), (device_id,), used=True))


def test_scrubs_run_only_if_required_and_not_twice(gpus, pool, make, alice, sent):
    device = Device.objects.filter(node__pool=pool).first()
    assert scrubs_after(device.pk) == 0
    Pool.objects.filter(pk=pool.pk).update(scrub_required=True)
    assert scrubs_after(device.pk) == 1
    assert scrubs_after(device.pk) == 0, "one is under way"
    Device.objects.filter(pk=gpus[0].pk).update(present=False)
    assert scrubs_after(gpus[0].pk) == 0
    Pool.objects.update(hand_out_max_age_hours=0)
    workspace = make(alice, flavor(1))
    assert scrubs_after(device_of(workspace).pk) == 0


def test_scrub_is_queued_in_the_releasing_transaction(running, alice, sent, monkeypatch):
    """The device is never free without its scrub being queued."""
    seen = []
    real = runs.make_run

    def spy(**fields):
        seen.append(connection.in_atomic_block)
        return real(**fields)

    monkeypatch.setattr(runs, "make_run", spy)
    services.delete(actor=alice, workspace_id=running.pk)
    assert node_says(sent, "delete", "absent")
    assert seen == [True]
    run = GpuCheckRun.objects.get(kind=CheckKind.SCRUB)
    told = Event.objects.get(kind="device.scrub_asked").pk
    assert run.device.checking
    assert Event.objects.filter(workspace=running, kind="workspace.gone", pk__lt=told).exists()
