"""Scheduling cycle (quota, order, preemption, reservations, GPU-hours) on a simulated pool with 8 H100."""

from __future__ import annotations

import datetime as dt
from uuid import uuid4

import pytest
from django.utils import timezone

from portal.catalog import selectors
from portal.catalog.models import Flavor, Template
from portal.common.errors import NeedsApproval
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.models import AllocatedDevice, Node
from portal.people.accounts.models import Role
from portal.quota.ledger.models import LedgerAccount
from portal.quota.limits.models import Cohort, Grant, MemberCap, Quota, SiteLimit, TeamShare
from portal.quota.reservations.models import Reservation, ReservationState
from portal.scheduling import cycle, queue_status, snapshot_feed
from portal.scheduling.admission import assess
from portal.scheduling.models import QueueState
from portal.scheduling.verdicts import Outcome
from portal.workspaces import services
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Preemption, Workspace
from tests import sites
from tests.factories import FlavorFactory, MembershipFactory, TeamFactory, UserFactory, create_workspace
from tests.rows import error_code, error_message, preempt_at, preempt_cause, reloaded
from tests.snapshots import rows_changed
from tests.sweeps import sweep

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
WORLD = sites.simulated_machines

H100 = "gpu:simulated-h100"


@pytest.fixture
def other(db):
    """A second team with dora as a member."""
    team = TeamFactory(slug="speech", name="Speech")
    dora = UserFactory(username="dora")
    MembershipFactory(team=team, user=dora, role=Role.OWNER)
    return team


@pytest.fixture
def dora(other):
    return other.memberships.get().user


def states(*workspaces):
    return [Workspace.objects.get(pk=workspace.pk).state for workspace in workspaces]


def in_cohort(*shares, borrowing=None):
    """Create one cohort and a quota of H100s for each team."""
    cohort = Cohort.objects.create(slug="all", name="All")
    for team, gpus in shares:
        TeamShare.objects.create(team=team, cohort=cohort)
        Quota.objects.create(team=team, resource=H100, quota=gpus * 1000, borrowing_limit=borrowing)
    return cohort


# --- quota ----------------------------------------------------------------------------------------


def test_pool_is_the_limit_without_a_quota(make, alice, pool):
    first, second, third = (make(alice, "sim-h100-x4") for _ in range(3))
    assert states(first, second, third) == ["provisioning", "provisioning", "pending"]
    assert reloaded(first).amounts[H100] == 4000
    assert reloaded(third).queue_entry.position == 1
    assert "13 of 128 CPU cores free, needs 115" in error_message(reloaded(third))
    assert "8 × Simulated H100 held by Vision" in error_message(reloaded(third))


def test_team_waits_for_its_quota_and_sees_the_amount(make, alice, bob, team, pool):
    Quota.objects.create(team=team, resource=H100, quota=2000)
    first = make(alice, "sim-h100-x2")
    second = make(bob, "sim-h100-x1")
    assert states(first, second) == ["provisioning", "pending"]
    assert (
        error_message(reloaded(second))
        == "The workspace needs 1 × Simulated H100. The limit of Vision is 2 × Simulated H100, with 0 left."
    )
    assert reloaded(second).queue_entry.blocker["rule"] == "team_limit"
    services.stop(actor=alice, workspace_id=first.pk)


def test_request_above_the_team_quota_needs_approval(make, alice, team, pool):
    Quota.objects.create(team=team, resource=H100, quota=2000)
    with pytest.raises(NeedsApproval) as refused:
        make(alice, "sim-h100-x4")
    ask = {"team": "vision", "kind": "quota", "resource": H100, "amount": 2000}
    note = "To start JupyterLab on 4 × Simulated H100."
    assert refused.value.extra["ask"] == {**ask, "note": note}
    assert not Workspace.objects.exists()


def test_workspace_waiting_for_approval_starts_once_granted(alice, team, pool, run_node):
    Quota.objects.create(team=team, resource=H100, quota=2000)
    waiting = create_workspace(
        unapproved=True,
        actor=alice,
        team=team,
        template=selectors.all_templates().get(slug="jupyterlab"),
        flavor=selectors.all_flavors().get(slug="sim-h100-x4"),
    )
    assert (waiting.state, error_code(waiting)) == (State.PENDING, "needs_approval")
    assert waiting.queue_entry.position is None
    Grant.objects.create(team=team, resource=H100, amount=2000, starts_at=timezone.now())
    rows_changed()
    cycle.run()
    assert states(waiting) == ["provisioning"]


def test_ended_grant_does_not_count(team, alice, pool, make):
    Quota.objects.create(team=team, resource=H100, quota=1000)
    now = timezone.now()
    Grant.objects.create(
        team=team, resource=H100, amount=3000, starts_at=now - dt.timedelta(2), ends_at=now - dt.timedelta(1)
    )
    with pytest.raises(NeedsApproval):
        make(alice, "sim-h100-x2")


def test_unused_quota_of_the_cohort_is_borrowed(make, alice, dora, team, other, pool):
    in_cohort((team, 2), (other, 6))
    assert states(make(alice, "sim-h100-x4")) == ["provisioning"]
    make(dora, "sim-h100-x1", team=other)
    verdict = verdict_of(alice, team, "sim-h100-x4")
    assert verdict.outcome is Outcome.QUEUED
    assert verdict.blocker["rule"] == "cohort"


def verdict_of(user, team, flavor):
    return assess(
        template=selectors.all_templates().get(slug="jupyterlab"),
        flavor=selectors.all_flavors().get(slug=flavor),
        team=team,
        actor=user,
    )


def test_borrowing_limit_is_enforced(make, alice, team, other, pool):
    in_cohort((team, 1), (other, 4), borrowing=1000)
    make(alice, "sim-h100-x1")
    make(alice, "sim-h100-x1")
    third = make(alice, "sim-h100-x1")
    assert states(third) == ["pending"]
    assert reloaded(third).queue_entry.blocker["rule"] == "team_limit"


def test_member_cap_overrides_the_general_cap(make, alice, bob, team, pool):
    MemberCap.objects.create(team=team, resource=H100, amount=1000)
    MemberCap.objects.create(team=team, user=alice, resource=H100, amount=2000)
    assert states(make(alice, "sim-h100-x2")) == ["provisioning"]
    with pytest.raises(NeedsApproval) as refused:
        make(bob, "sim-h100-x2")
    assert refused.value.extra["ask"]["kind"] == "member_cap"
    assert states(make(bob, "sim-h100-x1"), make(bob, "sim-h100-x1")) == ["provisioning", "pending"]


def test_site_limit_applies_to_all_teams_together(make, alice, dora, other, pool):
    SiteLimit.objects.create(resource=H100, amount=2000)
    make(alice, "sim-h100-x2")
    late = make(dora, "sim-h100-x1", team=other)
    assert states(late) == ["pending"]
    assert reloaded(late).queue_entry.blocker["rule"] == "site_limit"
    assert "held by Vision" in error_message(reloaded(late))
    assert verdict_of(alice, alice.teams.get(), "sim-h100-x4").outcome is Outcome.IMPOSSIBLE


def test_blocker_names_holders_and_their_idle_amount(make, alice, dora, other, pool, clock):
    from portal.workspaces import results

    SiteLimit.objects.create(resource=H100, amount=2000)
    idle = make(alice, "sim-h100-x1")
    busy = make(alice, "sim-h100-x1")
    for row, percent in ((idle, 0), (busy, 70)):
        beat(results, row, percent)
    clock.shift(7200)
    beat(results, idle, 0)
    message = error_message(reloaded(make(dora, "sim-h100-x1", team=other)))
    assert "2 × Simulated H100 held by Vision" in message
    assert "(1 idle for 2 h)" in message
    beat(results, idle, None)
    assert reloaded(idle).status.gpu_idle_since is None, "what is not measured counts as used"


def beat(results, row, percent):
    row = reloaded(row)
    results.agent_heartbeat(
        workspace_id=row.pk,
        generation=row.generation,
        activity={"gpus": [{"uuid": "x", "utilization_percent": percent}]},
    )


def test_number_of_workspaces_can_be_limited(make, alice, team, pool):
    Quota.objects.create(team=team, resource="workspaces", quota=1)
    assert states(make(alice, "sim-cpu"), make(alice, "sim-cpu")) == ["provisioning", "pending"]


def test_team_without_gpu_hours_cannot_start(make, alice, team, pool):
    now = timezone.now()
    LedgerAccount.objects.create(team=team, quota=1000, spent=1000, period_started_at=now, charged_until=now)
    with pytest.raises(NeedsApproval) as refused:
        make(alice, "sim-h100-x1")
    assert refused.value.extra["ask"]["kind"] == "ledger"


def test_request_for_any_model_is_charged_to_the_granted_model(make, alice, team, pool):
    FlavorFactory(slug="any", accelerator_count=1, accelerator_model="", pool=pool)
    Quota.objects.create(team=team, resource=H100, quota=1000)
    assert states(make(alice, "any"), make(alice, "any")) == ["provisioning", "pending"]


# --- order and reservations -----------------------------------------------------------------------


def test_equal_requests_start_by_age_as_capacity_frees(make, alice, bob, pool, settle, clock):
    first, second = make(alice, "sim-h100-x4"), make(alice, "sim-h100-x4")
    waiting = []
    for n in range(3):
        clock.shift(0.01)
        waiting.append(make(bob, "sim-h100-x4", name=f"w{n}"))
    assert [reloaded(row).queue_entry.position for row in waiting] == [1, 2, 3]
    settle(30, resting=lambda: states(first, second) == ["running"] * 2)
    services.stop(actor=alice, workspace_id=first.pk)
    settle(60, resting=lambda: states(waiting[0]) == ["running"])
    assert states(*waiting) == ["running", "pending", "pending"]
    assert [reloaded(row).queue_entry.position for row in waiting] == [None, 1, 2]


def test_backfill_is_allowed_only_without_delaying_the_head(make, alice, pool):
    make(alice, "sim-h100-x4")
    FlavorFactory(
        slug="long3", accelerator_count=3, accelerator_model="Simulated H100", pool=pool, expected_hours=2
    )
    FlavorFactory(
        slug="short", accelerator_count=1, accelerator_model="Simulated H100", pool=pool, expected_hours=1 / 6
    )
    FlavorFactory(
        slug="forever", accelerator_count=1, accelerator_model="Simulated H100", pool=pool, expected_hours=240
    )
    make(alice, "long3")
    head = make(alice, "sim-h100-x4")
    assert states(head) == ["pending"]
    assert reloaded(head).queue_entry.reservation_seq == 1
    late, short = make(alice, "forever"), make(alice, "short")
    assert states(short) == ["provisioning"]
    # It fits now, but would still run when the head is due.
    assert states(late) == ["pending"]


def test_reservation_keeps_its_capacity_free(make, alice, dora, team, other, pool, clock):
    now = timezone.now()
    Reservation.objects.create(
        team=other,
        title="Paper",
        amounts={H100: 8000},
        starts_at=now - dt.timedelta(minutes=1),
        ends_at=now + dt.timedelta(hours=1),
        state=ReservationState.BOOKED,
    )
    blocked = make(alice, "sim-h100-x1")
    assert reloaded(blocked).queue_entry.blocker["rule"] == "booking"
    assert states(make(dora, "sim-h100-x4", team=other)) == ["provisioning"]
    clock.shift(3700)
    cycle.run()
    assert states(blocked) == ["provisioning"]


# --- preemption -----------------------------------------------------------------------------------


@pytest.fixture
def borrowed(make, alice, dora, team, other, pool, clock, settle, settings):
    """Vision owns 2 and uses all 8 with two workspaces, both past the minimum run time."""
    settings.BERTH_MIN_RUN_S, settings.BERTH_PREEMPTION_GRACE_S = 900, 120
    in_cohort((team, 4), (other, 4))
    rows = [make(alice, "sim-h100-x4", name=name) for name in ("one", "two")]
    settle(30, resting=lambda: states(*rows) == ["running"] * 2)
    clock.shift(1000)
    return rows


def test_owner_reclaims_its_quota_and_the_borrower_is_requeued(
    borrowed, make, alice, dora, other, settle, clock
):
    owner = make(dora, "sim-h100-x4", team=other)
    assert states(owner) == ["pending"]
    (victim,) = [row for row in map(reloaded, borrowed) if preempt_at(row)]
    assert preempt_at(victim) == timezone.now() + dt.timedelta(seconds=120)
    assert preempt_cause(victim) == "reclaim"
    assert Event.objects.get(kind="workspace.preempting").workspace == victim
    assert Notification.objects.get(kind="workspace.preempting").user == alice
    cycle.run()
    assert sum(preempt_at(row) is not None for row in map(reloaded, borrowed)) == 1, "nobody else is asked"
    settle(200, resting=lambda: states(owner) == ["running"])
    victim = reloaded(victim)
    assert (victim.state, victim.desired_state, victim.queue_entry.preemption_count) == (
        State.PENDING,
        DesiredState.RUNNING,
        1,
    )
    assert preempt_at(victim) is None
    services.stop(actor=dora, workspace_id=owner.pk)
    settle(60, resting=lambda: states(victim) == ["running"])
    assert states(victim) == ["running"]


def test_overcommitted_nodes_can_be_freed_by_preemption(borrowed, make, dora, other):
    """A machine came back with fewer cores: the queue continues and preempts."""
    assert set(Node.objects.values_list("cpu_milli", flat=True)) == {128_000}
    Node.objects.update(cpu_milli=100_000)
    rows_changed()
    owner = make(dora, "sim-h100-x1", team=other)
    assert states(owner) == ["pending"]
    assert sum(preempt_at(row) is not None for row in map(reloaded, borrowed)) == 1
    cycle.run()
    assert sum(preempt_at(row) is not None for row in map(reloaded, borrowed)) == 1


@pytest.mark.parametrize(
    ("checkpointed", "on_template", "on_flavor", "leaves"),
    [
        (None, "always", "", False),
        (None, "accelerated", "", False),
        (None, "never", "", True),
        (None, "always", "never", True),
        (True, "always", "", True),
        (False, "never", "never", False),
    ],
)
def test_cheaper_wait_replaces_preemption_of_lost_work(
    make, alice, dora, team, other, pool, clock, settle, checkpointed, on_template, on_flavor, leaves
):
    """Two have run for five of their eight hours: waiting three hours costs less than losing five."""
    Template.objects.update(work_lost=on_template)
    Flavor.objects.update(work_lost=on_flavor)
    in_cohort((team, 4), (other, 4))
    rows = [make(alice, "sim-h100-x4", name=name, checkpointed=checkpointed) for name in ("one", "two")]
    assert all(row.loses_work is not leaves for row in rows)
    settle(30, resting=lambda: states(*rows) == ["running"] * 2)
    clock.shift(5 * 3600)
    rows_changed()
    make(dora, "sim-h100-x4", team=other)
    assert Preemption.objects.exists() is leaves


def test_recent_or_nonpreemptible_workspace_is_not_preempted(borrowed, make, dora, other, pool):
    Workspace.objects.update(preemptible=False)
    make(dora, "sim-h100-x4", team=other)
    assert not Preemption.objects.exists()


def test_no_preemption_if_disabled(borrowed, make, dora, other, settings):
    settings.BERTH_PREEMPTION = False
    make(dora, "sim-h100-x4", team=other)
    assert not Preemption.objects.exists()


def test_preemption_is_cancelled_when_its_beneficiary_gives_up(borrowed, make, dora, other):
    owner = make(dora, "sim-h100-x4", team=other)
    assert Preemption.objects.exists()
    services.delete(actor=dora, workspace_id=owner.pk)
    cycle.run()
    assert not Preemption.objects.exists()
    assert Event.objects.filter(kind="workspace.may_stay").count() == 1


def test_preempted_workspace_stopped_by_its_user_stays_stopped(
    borrowed, make, alice, dora, other, settle, clock
):
    owner = make(dora, "sim-h100-x4", team=other)
    victim = Preemption.objects.get().workspace
    clock.shift(121)

    sweep()
    assert states(victim) == ["stopping"]
    services.stop(actor=alice, workspace_id=victim.pk)
    settle(60, resting=lambda: states(owner) == ["running"])
    assert reloaded(victim).state == State.STOPPED


def test_higher_priority_preempts_within_the_team(make, alice, team, pool, settle, clock):
    low = [make(alice, "sim-h100-x4", name=name) for name in ("a", "b")]
    settle(30, resting=lambda: states(*low) == ["running"] * 2)
    clock.shift(1000)
    high = make(alice, "sim-h100-x4", name="high")
    assert not Preemption.objects.exists()
    Workspace.objects.filter(pk=high.pk).update(priority=10)
    cycle.run()
    assert Preemption.objects.get().cause == "in_team"
    settle(200, resting=lambda: states(high) == ["running"])
    assert states(high) == ["running"]


# --- the cycle itself -----------------------------------------------------------------------------


def test_cycle_is_skipped_without_changes(make, alice, pool, clock):
    for _ in range(3):
        make(alice, "sim-h100-x4")
    # The last cycle reserved the start of the waiting one, so the next one runs.
    assert cycle.run_if_due() is not None
    assert cycle.run_if_due() is None
    clock.shift(21)
    assert cycle.run_if_due() is not None
    assert cycle.run_if_due() is None
    make(alice, "sim-cpu")
    Workspace.objects.filter(state=State.PENDING).update(desired_state=DesiredState.STOPPED)
    clock.shift(60)
    assert cycle.run_if_due() is None


def test_change_during_a_cycle_is_handled_by_the_next_sweep(make, alice, pool, clock, monkeypatch):
    for _ in range(3):
        make(alice, "sim-h100-x4")
    # The last cycle reserved the start of the waiting one, so the next one runs.
    assert cycle.run_if_due() is not None
    assert cycle.run_if_due() is None
    update = queue_status.update

    def meanwhile(snapshot, first):
        snapshot_feed.workloads([uuid4()])
        update(snapshot, first)

    monkeypatch.setattr(queue_status, "update", meanwhile)
    cycle.run()
    monkeypatch.setattr(queue_status, "update", update)
    assert cycle.run_if_due() is not None
    assert cycle.run_if_due() is None


def test_missing_queue_state_row_is_created(pool):
    QueueState.objects.all().delete()
    assert cycle.run() is not None
    assert QueueState.objects.get().decided_at is not None


def test_no_device_is_granted_twice(make, alice, bob, pool):
    for n in range(12):
        make(alice if n % 2 else bob, "sim-h100-x1", name=f"w{n}")
    held = AllocatedDevice.objects.filter(active=True)
    assert held.count() == held.values("device").distinct().count() == 8
    assert Workspace.objects.filter(state=State.PENDING).count() == 4
