"""MIG repartitioning before a start: steps, lost and late messages, failures."""

from __future__ import annotations

import pytest

from portal.catalog import selectors
from portal.common.actors import SYSTEM
from portal.common.errors import PortalError, StateConflict
from portal.fleet.inventory import polling
from portal.fleet.inventory.models import AllocatedDevice, CordonCause, Device, Pool
from portal.gpu_checks import lost_runs, runs, settings
from portal.gpu_checks.kinds.repartition import change_of
from portal.gpu_checks.models import OPEN, CheckKind, CheckVerdict, GpuCheckRun, RunState
from portal.scheduling import admission, cycle
from portal.scheduling.verdicts import Outcome
from portal.workspaces import services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests import sites
from tests.api.conftest import Api
from tests.factories import FlavorFactory, rescript, simulated_pool
from tests.snapshots import rows_changed
from tests.workspaces.helpers import check_invariants

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog
TASK, ANSWER = "node.gpu_repartition", "control.apply_gpu_check"
SMALL, LARGE = "1g.10gb", "3g.40gb"


@pytest.fixture
def pool(catalog, tmp_path) -> Pool:
    """One simulated GPU with a large and four small instances; repartitioning is allowed."""
    made = simulated_pool(
        str(tmp_path / "sim"), nodes=1, gpus=1, mig="1g.10gb@0, 1g.10gb@1, 1g.10gb@2, 3g.40gb@4"
    )
    return allow(made)


def allow(pool: Pool, allowed: bool = True) -> Pool:
    settings.set_checks(actor=SYSTEM, slug=pool.slug, mig_repartition=allowed)
    pool.refresh_from_db()
    return pool


@pytest.fixture
def operator(with_token, olga) -> Api:
    return Api(with_token(olga))


@pytest.fixture
def large(pool):
    return FlavorFactory(accelerator_count=1, mig_profile=LARGE, pool=pool).slug


@pytest.fixture
def small(pool):
    return FlavorFactory(accelerator_count=1, mig_profile=SMALL, pool=pool).slug


@pytest.fixture
def waiting(large, make, alice, settle) -> Workspace:
    """A second large workspace: the small instances are removed for it."""
    first = make(alice, large)
    settle()
    first.refresh_from_db()
    assert first.state == State.RUNNING and not GpuCheckRun.objects.exists()
    return make(alice, large)


def run() -> GpuCheckRun:
    return GpuCheckRun.objects.select_related("device").get(kind=CheckKind.REPARTITION)


def profiles() -> list[str]:
    its = Device.objects.filter(kind="mig", present=True).order_by("mig_start")
    return list(its.values_list("mig_profile", flat=True))


def held(workspace: Workspace) -> list[str]:
    its = AllocatedDevice.objects.filter(active=True, allocation__workspace=workspace)
    return list(its.values_list("device__mig_profile", flat=True))


def state(workspace: Workspace) -> str:
    workspace.refresh_from_db()
    return workspace.state


def test_layout_changes_and_the_new_instance_is_allocated_after_inventory(waiting, sent, settle):
    assert state(waiting) == State.PROVISIONING and held(waiting) == []
    assert (waiting.lease, sent.commands) == ("", [])
    change = change_of(run())
    assert change is not None
    assert len(change.destroy) == 3 and [piece.profile for piece in change.create] == [LARGE]
    (command,) = sent.take(TASK)
    sent.deliver(command)
    (answer,) = sent.take(ANSWER)
    sent.deliver(answer)
    # The node says that it is done; nothing counts until the inventory shows it.
    assert run().open and held(waiting) == [] and profiles() == [SMALL] * 3 + [LARGE]
    assert not sent.commands and sent.of("node.inventory")
    settle()
    assert state(waiting) == State.RUNNING and held(waiting) == [LARGE]
    assert profiles() == [LARGE, LARGE]
    assert (run().state, run().verdict) == (RunState.DONE, CheckVerdict.PASS)
    check_invariants()


def test_workspace_waits_without_permission_to_repartition(pool, large, make, alice, settle):
    allow(pool, False)
    make(alice, large)
    settle()
    second = make(alice, large)
    settle()
    assert state(second) == State.PENDING and not GpuCheckRun.objects.exists()
    # It starts at once when that is allowed.
    allow(pool)
    settle()
    assert state(second) == State.RUNNING


def test_permission_has_no_effect_without_driver_support(pool, large, make, alice, settle):
    Pool.objects.update(capabilities=["whole_gpu", "mig"])
    rows_changed()
    make(alice, large)
    settle()
    assert state(make(alice, large)) == State.PENDING


def test_preview_equals_the_result_of_creation(large, make, alice, settle, team):
    for _ in range(3):
        verdict = admission.assess(
            actor=alice,
            team=team,
            template=selectors.all_templates().get(slug="jupyterlab"),
            flavor=selectors.all_flavors().get(slug=large),
        )
        made = make(alice, large)
        assert (verdict.outcome is Outcome.FITS_NOW) is (made.state == State.PROVISIONING)
        settle()


def test_operators_allow_repartitioning_on_the_page_and_over_rest(pool, olga, as_user, operator):
    allow(pool, False)
    page = as_user(olga)
    assert "Replace idle MIG instances" in page.get("/pools/sim/").content.decode()
    form = {"check_every_hours": "0", "check_level": "quick", "hand_out_max_age_hours": "0"}
    page.post("/pools/sim/checks/", form | {"mig_repartition": "on"})
    assert operator.get("pools/sim/checks").json()["mig_repartition"] is True
    assert operator.put("pools/sim/checks", {"mig_repartition": False}).json()["mig_repartition"] is False
    pool.refresh_from_db()
    assert not pool.repartitions


def test_missing_profile_can_be_created(pool, make, alice, settle):
    flavor = FlavorFactory(accelerator_count=1, mig_profile="2g.20gb", pool=pool).slug
    workspace = make(alice, flavor)
    settle()
    assert state(workspace) == State.RUNNING and held(workspace) == ["2g.20gb"]


def test_impossible_layout_is_refused(pool, make, alice):
    flavor = FlavorFactory(accelerator_count=1, mig_profile="5g.50gb", pool=pool).slug
    with pytest.raises(PortalError):
        make(alice, flavor)


def test_workspaces_at_once_never_repartition_one_gpu_twice(pool, make, alice, settle):
    flavor = FlavorFactory(accelerator_count=1, mig_profile="2g.20gb", pool=pool).slug
    both = [make(alice, flavor), make(alice, flavor)]
    cycle.run()
    assert GpuCheckRun.objects.filter(state__in=OPEN).count() == 1
    settle()
    assert {state(each) for each in both} == {State.RUNNING, State.PENDING} or all(
        state(each) == State.RUNNING for each in both
    )
    settle(600)
    assert all(held(each) == ["2g.20gb"] for each in both)
    check_invariants()


def test_gpu_takes_no_other_work_during_repartitioning(waiting, small, make, alice):
    assert state(make(alice, small)) == State.PENDING


def test_instances_are_not_checked_during_repartitioning(waiting):
    for device in Device.objects.filter(mig_profile=SMALL):
        with pytest.raises(StateConflict, match="MIG layout change"):
            runs.request_scrub(actor=SYSTEM, device_id=device.pk)


def test_refusal_releases_everything_and_delays_the_next_attempt(waiting, pool, sent, settle, clock):
    rescript(pool, refuse_repartitions=True)
    sent.take(TASK)
    clock.shift(runs.BEGIN_WITHIN_S + 1)
    lost_runs.sweep_lost()
    sent.run()
    assert state(waiting) == State.PENDING
    assert waiting.status.reason["code"] == "repartition_failed"
    assert held(waiting) == [] and profiles() == [SMALL] * 3 + [LARGE]
    check_invariants()
    settle(60, resting=lambda: False)
    assert GpuCheckRun.objects.count() == 1, "it is not asked again at once"
    rescript(pool, refuse_repartitions=False)
    clock.shift(600)
    rows_changed()
    settle()
    assert state(waiting) == State.RUNNING


def test_newly_allocated_instances_are_kept(waiting, pool, sent):
    (command,) = sent.take(TASK)
    command.kwargs["command"]["change"]["destroy"][0] = "SIM-MIG-gone"
    sent.deliver(command)
    sent.run()
    assert state(waiting) == State.PENDING
    assert profiles() == [SMALL] * 3 + [LARGE]


LOSSES = ("command", "answer", "inventory")


@pytest.mark.parametrize("lost", LOSSES)
def test_lost_message_only_delays_repartitioning(waiting, sent, settle, clock, lost):
    if lost == "command":
        assert sent.take(TASK)
    else:
        sent.deliver(*sent.take(TASK))
        if lost == "answer":
            assert sent.take(ANSWER)
        else:
            sent.deliver(*sent.take(ANSWER))
            assert sent.take("node.inventory")
    clock.shift(max(runs.BEGIN_WITHIN_S, runs.SILENT_S) + 1)
    lost_runs.sweep_lost()
    settle()
    assert state(waiting) == State.RUNNING and held(waiting) == [LARGE]
    assert run().attempts == 2 and profiles() == [LARGE, LARGE]
    check_invariants()


def test_messages_delivered_twice_take_effect_once(waiting, sent, settle):
    (command,) = sent.take(TASK)
    sent.deliver(command)
    sent.deliver(command)
    answers = sent.take(ANSWER)
    assert len(answers) == 2
    for each in answers:
        sent.deliver(each)
    inventories = sent.take("node.inventory")
    for each in [*inventories, *inventories]:
        sent.deliver(each)
    for each in answers:
        sent.deliver(each)
    settle()
    assert state(waiting) == State.RUNNING and held(waiting) == [LARGE]
    assert profiles() == [LARGE, LARGE]
    check_invariants()


def test_answer_under_an_old_lease_is_ignored(waiting, sent, settle, clock):
    (command,) = sent.take(TASK)
    clock.shift(runs.BEGIN_WITHIN_S + 1)
    lost_runs.sweep_lost()
    # The first one is outdated.
    sent.deliver(command)
    assert not sent.of(ANSWER)
    settle()
    assert held(waiting) == [LARGE]


def test_inventory_from_before_the_change_does_not_complete_it(waiting, sent, settle):
    (command,) = sent.take(TASK)
    polling.request_inventory(Pool.objects.get())
    (inventory,) = sent.take("node.inventory")
    sent.deliver(inventory)
    (before,) = sent.take("control.apply_inventory")
    sent.deliver(command)
    sent.deliver(*sent.take(ANSWER))
    sent.deliver(before)
    assert run().open and held(waiting) == []
    settle()
    assert held(waiting) == [LARGE]


def test_unanswered_repartition_is_abandoned_and_needs_inspection(waiting, sent, settle, clock):
    for _ in range(runs.MAX_ATTEMPTS + 1):
        sent.take(TASK)
        clock.shift(runs.BEGIN_WITHIN_S + 1)
        lost_runs.sweep_lost()
    assert run().state == RunState.LOST
    assert state(waiting) == State.PENDING and held(waiting) == []
    gpu = run().device
    assert gpu.cordoned and gpu.cordon_cause == CordonCause.OPERATOR and not gpu.checking
    check_invariants()


@pytest.mark.parametrize("point", ["before the node", "after the node", "after the answer"])
def test_stop_during_the_operation_leaves_nothing(waiting, sent, settle, alice, point):
    if point != "before the node":
        sent.deliver(*sent.take(TASK))
    if point == "after the answer":
        sent.deliver(*sent.take(ANSWER))
    services.stop(actor=alice, workspace_id=waiting.pk)
    settle()
    assert state(waiting) == State.STOPPED and held(waiting) == []
    assert not run().open and not run().device.checking
    assert profiles() == [LARGE, LARGE]
    check_invariants()


def test_workspace_restarted_during_repartitioning_gets_one_instance(waiting, sent, settle, alice):
    sent.deliver(*sent.take(TASK))
    services.stop(actor=alice, workspace_id=waiting.pk)
    settle()
    services.start(actor=alice, workspace_id=waiting.pk)
    settle()
    assert state(waiting) == State.RUNNING and held(waiting) == [LARGE]
    check_invariants()


def test_unclean_instance_is_cordoned_and_not_allocated(waiting, pool, sent, settle):
    rescript(pool, fault_leak="sim-001:0")
    (command,) = sent.take(TASK)
    command.kwargs["command"]["pool"]["config"]["fault_leak"] = "sim-001:0"
    sent.deliver(command)
    sent.run()
    assert state(waiting) == State.PENDING and held(waiting) == []
    assert Device.objects.filter(cordoned=True, cordon_cause=CordonCause.SCRUB).exists()
    assert profiles() == [SMALL] * 3 + [LARGE]


def test_new_instance_is_checked_if_the_pool_requires_it(pool, large, make, alice, sent, settle):
    make(alice, large)
    settle()
    Pool.objects.update(hand_out_max_age_hours=24)
    rows_changed()
    waiting = make(alice, large)
    sent.deliver(*sent.take(TASK))
    sent.deliver(*sent.take(ANSWER))
    sent.deliver(*sent.take("node.inventory"))
    sent.deliver(*sent.take("control.apply_inventory"))
    assert held(waiting) == [LARGE] and not sent.commands
    assert GpuCheckRun.objects.filter(kind=CheckKind.CHECK, workspace=waiting).count() == 1
    settle()
    assert state(waiting) == State.RUNNING
