"""Passes: notices, stops, races, crashes, outages and clock changes."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from portal.common.events.models import Event, Notification
from portal.quota.ledger.models import LedgerAccount
from portal.reclaim import passes
from portal.reclaim.models import ReclaimNotice, ReclaimPolicy
from portal.workspaces import extending, services
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Workspace
from tests import sites
from tests.factories import WorkspaceFactory
from tests.rows import reloaded

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
HOUR = 3600
NONE = passes.PassReport()


@pytest.fixture(autouse=True)
def _site(settings):
    settings.BERTH_LIFETIME_HOURS, settings.BERTH_MAX_LIFETIME_HOURS = 72, 336
    settings.BERTH_RECLAIM_NOTICE_MINUTES = 30


def at(clock, moment) -> passes.PassReport:
    """Run a pass at this time, and one shortly before, so that no outage is assumed."""
    clock.move_to(moment - timedelta(seconds=30))
    passes.LastPass.objects.update_or_create(pk=1, defaults={"at": timezone.now()})
    clock.move_to(moment)
    return passes.run()


def test_no_notice_before_the_threshold(running, clock):
    assert at(clock, running.ends_at - timedelta(minutes=31)) == NONE
    assert not ReclaimNotice.objects.exists()


def test_workspace_is_warned_once_and_stopped_at_its_end(running, alice, clock):
    warned_at = running.ends_at - timedelta(minutes=29)
    assert at(clock, warned_at).warned == 1
    notice = ReclaimNotice.objects.get()
    assert (notice.cause, notice.due_at) == ("lifetime", warned_at + timedelta(minutes=30))
    assert at(clock, warned_at + timedelta(minutes=1)) == NONE
    assert at(clock, notice.due_at - timedelta(seconds=1)) == NONE
    assert reloaded(running).state == State.RUNNING
    assert at(clock, notice.due_at).stopped == 1
    stopped = reloaded(running)
    assert (stopped.state, stopped.desired_state) == (State.STOPPING, DesiredState.STOPPED)
    assert not ReclaimNotice.objects.exists()
    told = Notification.objects.filter(user=alice, kind__startswith="workspace.reclaim").order_by("pk")
    assert [each.kind for each in told] == ["workspace.reclaim_warned", "workspace.reclaimed"]
    assert "has expired" in told[1].body
    entry = Event.objects.get(kind="workspace.stop")
    assert (entry.actor, entry.cause["code"]) == (None, "ends_by_lifetime")
    assert at(clock, notice.due_at + timedelta(hours=1)) == NONE


def test_stopped_workspace_shows_the_rule_and_time(running, alice, team, clock, as_user):
    Workspace.objects.filter(pk=running.pk).update(ends_at=None, lifetime_s=None)
    ReclaimPolicy.objects.create(scope="team", team=team, longest_hours=24)
    at(clock, running.ready_at + timedelta(hours=24))
    at(clock, timezone.now() + timedelta(minutes=30))
    stopped_at = timezone.now()
    assert reloaded(running).state == State.STOPPING
    browser = as_user(alice)
    answer = browser.get(f"/api/v1/workspaces/{running.pk}").json()
    assert (answer["reason"], answer["error"]) == ("reclaimed", None)
    cause = answer["stopped"]
    assert (cause["code"], cause["rule"], cause["set_by"]) == (
        "ends_by_longest",
        "longest_s",
        f"team:{team.slug}",
    )
    assert datetime.fromisoformat(cause["at"]) == stopped_at
    listed = browser.get("/api/v1/workspaces").json()["results"][0]
    assert listed["stopped"] == cause
    page = browser.get(f"/workspaces/{running.pk}/").content.decode()
    assert "Berth stopped the workspace" in page and f"Rule longest_s, set by team:{team.slug}." in page
    # The next start clears it, and a stop by a person has no cause.
    Workspace.objects.filter(pk=running.pk).update(state=State.STOPPED)
    services.start(actor=alice, workspace_id=running.pk)
    assert browser.get(f"/api/v1/workspaces/{running.pk}").json()["stopped"] is None
    services.stop(actor=alice, workspace_id=running.pk)
    answer = browser.get(f"/api/v1/workspaces/{running.pk}").json()
    assert (answer["reason"], answer["stopped"]) == ("", None)


@pytest.fixture
def spent(running):
    """A running GPU workspace of a team whose GPU-hours are spent."""
    now = timezone.now()
    running.resources["accelerators"]["count"] = 1
    Workspace.objects.filter(pk=running.pk).update(resources=running.resources)
    LedgerAccount.objects.create(
        team=running.team, quota=10, spent=10, period_started_at=now, charged_until=now
    )
    return running


def test_spent_gpu_hours_stop_gpu_workspaces_after_a_full_notice(spent, alice, clock):
    warned_at = spent.ready_at + timedelta(minutes=1)
    assert at(clock, warned_at).warned == 1
    notice = ReclaimNotice.objects.get()
    assert (notice.cause, notice.due_at) == ("budget", warned_at + timedelta(minutes=30))
    assert "Request more GPU-hours" in Notification.objects.get(kind="workspace.reclaim_warned").body
    assert at(clock, notice.due_at - timedelta(seconds=1)) == NONE
    assert at(clock, notice.due_at).stopped == 1
    stopped = reloaded(spent)
    assert (stopped.state, stopped.status.stopped["code"]) == (State.STOPPING, "ends_by_budget")
    assert (stopped.status.stopped["rule"], stopped.status.stopped["set_by"]) == (
        "stop_when_spent",
        "settings",
    )


def test_more_gpu_hours_withdraw_the_notice(spent, clock):
    assert at(clock, spent.ready_at + timedelta(minutes=1)).warned == 1
    LedgerAccount.objects.update(credit=10)
    assert at(clock, spent.ready_at + timedelta(minutes=2)).withdrawn == 1
    assert at(clock, spent.ready_at + timedelta(minutes=40)) == NONE


def test_policy_or_setting_lets_work_continue_without_gpu_hours(spent, team, clock, settings):
    policy = ReclaimPolicy.objects.create(scope="site", stop_when_spent=False)
    assert at(clock, spent.ready_at + timedelta(minutes=1)) == NONE
    policy.delete()
    settings.BERTH_STOP_WHEN_SPENT = False
    assert at(clock, spent.ready_at + timedelta(minutes=2)) == NONE
    ReclaimPolicy.objects.create(scope="team", team=team, stop_when_spent=True)
    assert at(clock, spent.ready_at + timedelta(minutes=3)).warned == 1


def test_extension_withdraws_the_notice(running, alice, clock):
    assert at(clock, running.ends_at - timedelta(minutes=10)).warned == 1
    extending.extend(actor=alice, workspace_id=running.pk, seconds=2 * HOUR)
    assert not ReclaimNotice.objects.exists()
    assert at(clock, running.ends_at + timedelta(minutes=30)) == NONE
    assert reloaded(running).state == State.RUNNING


def test_extension_wins_against_a_decided_stop(running, alice, clock, monkeypatch):
    at(clock, running.ends_at - timedelta(minutes=30))
    real = passes.apply_step_if_due

    def late(workspace_id):
        extending.extend(actor=alice, workspace_id=workspace_id, seconds=2 * HOUR)
        return real(workspace_id)

    monkeypatch.setattr(passes, "apply_step_if_due", late)
    assert at(clock, running.ends_at + timedelta(minutes=1)).stopped == 0
    assert reloaded(running).state == State.RUNNING


def test_extension_wins_against_a_notice_being_sent(running, alice, clock, monkeypatch):
    real = passes._warn

    def late(found, now):
        extending.extend(actor=alice, workspace_id=running.pk, seconds=2 * HOUR)
        return real(found, now)

    monkeypatch.setattr(passes, "_warn", late)
    assert at(clock, running.ends_at - timedelta(minutes=10)).warned == 0
    assert not ReclaimNotice.objects.exists()


def test_kill_while_giving_notices_notifies_once_later(running, clock, monkeypatch):
    def killed(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(passes.events, "record_all", killed)
        at(clock, running.ends_at - timedelta(minutes=30))
    assert not ReclaimNotice.objects.exists()
    assert not Notification.objects.filter(kind="workspace.reclaim_warned").exists()
    assert at(clock, running.ends_at - timedelta(minutes=29)).warned == 1
    assert Notification.objects.filter(kind="workspace.reclaim_warned").count() == 1


def test_pass_killed_while_stopping_is_completed_by_the_next(running, clock, monkeypatch):
    at(clock, running.ends_at - timedelta(minutes=30))

    def killed(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(passes, "_notify_stopped", killed)
        at(clock, running.ends_at)
    assert reloaded(running).state == State.RUNNING
    assert at(clock, running.ends_at + timedelta(seconds=30)).stopped == 1


def test_outage_of_the_portal_extends_notices_and_ends(running, clock):
    at(clock, running.ends_at - timedelta(minutes=30))
    notice = ReclaimNotice.objects.get()
    clock.move_to(running.ends_at + timedelta(hours=10))
    assert passes.run() == NONE
    assert ReclaimNotice.objects.get().due_at == notice.due_at + timedelta(hours=10, minutes=30)
    assert reloaded(running).ends_at == running.ends_at + timedelta(hours=10, minutes=30)
    assert at(clock, ReclaimNotice.objects.get().due_at).stopped == 1


@pytest.mark.parametrize("jump", [timedelta(days=300), timedelta(days=-300)])
def test_clock_change_keeps_the_remaining_time(running, clock, jump):
    seen = running.ends_at - timedelta(hours=5)
    at(clock, seen)
    clock.move_to(seen + jump)
    assert passes.run() == NONE
    assert reloaded(running).ends_at == running.ends_at + jump


def test_new_start_ignores_the_notice_of_the_last_one(running, alice, clock):
    at(clock, running.ends_at - timedelta(minutes=30))
    Workspace.objects.filter(pk=running.pk).update(
        generation=running.generation + 1, ends_at=running.ends_at + timedelta(hours=72)
    )
    assert at(clock, running.ends_at + timedelta(minutes=1)) == NONE
    assert not ReclaimNotice.objects.exists()


def test_workspace_stopped_by_its_user_is_not_touched(running, alice, clock):
    at(clock, running.ends_at - timedelta(minutes=30))
    services.stop(actor=alice, workspace_id=running.pk)
    assert at(clock, running.ends_at + timedelta(minutes=1)) == NONE
    assert not ReclaimNotice.objects.exists()


def test_invalid_row_does_not_prevent_other_stops(make, running, alice, clock, monkeypatch):
    other = WorkspaceFactory(
        team=running.team,
        owner=alice,
        state=State.RUNNING,
        pool=running.pool,
        ends_at=running.ends_at,
        lifetime_s=running.lifetime_s,
    )
    assert at(clock, running.ends_at - timedelta(minutes=30)).warned == 2
    real = passes.services.stop

    def stop(*, workspace_id, **more):
        if workspace_id == other.pk:
            raise RuntimeError("broken")
        return real(workspace_id=workspace_id, **more)

    monkeypatch.setattr(passes.services, "stop", stop)
    assert at(clock, running.ends_at).stopped == 1
    assert reloaded(running).state == State.STOPPING


def test_queries_of_a_pass_do_not_grow_with_workspaces(running, alice, clock, django_assert_max_num_queries):
    ends = timezone.now() + timedelta(hours=60)
    for _ in range(60):
        WorkspaceFactory(
            team=running.team,
            owner=alice,
            state=State.RUNNING,
            pool=running.pool,
            ends_at=ends,
            lifetime_s=9999,
        )
    passes.run()
    with django_assert_max_num_queries(10):
        passes.run()
