"""Scheduled starts after scheduled stops: once, if the user and admission allow it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, StateConflict
from portal.common.events.models import Event, Notification
from portal.common.reasons.reason import Reason
from portal.reclaim import passes, policy_services, presenters, scheduled_starts
from portal.reclaim.models import LastPass, ScheduledStop, WorkspaceActivity
from portal.scheduling.codes import AdmissionCode
from portal.workspaces import services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests import sites
from tests.rows import reloaded
from tests.workspaces.helpers import answer, run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
WEEK = {"zone": "UTC", "days": ["mon", "tue", "wed", "thu", "fri"], "stop_at": "19:00", "start_at": "08:00"}


@pytest.fixture(autouse=True)
def _site(settings):
    settings.BERTH_IDLE_MINUTES = settings.BERTH_IDLE_GPU_MINUTES = 0
    settings.BERTH_RECLAIM_NOTICE_MINUTES = 30
    settings.BERTH_LIFETIME_HOURS = settings.BERTH_MAX_LIFETIME_HOURS = 0


def at(clock, day: int, hour: int, minute: int = 0) -> passes.PassReport:
    """Run a pass at that time of November 2027 (Monday is the 1st), with one shortly before."""
    clock.move_to(datetime(2027, 11, day, hour, minute, tzinfo=UTC))
    LastPass.objects.update_or_create(pk=1, defaults={"at": timezone.now() - timedelta(seconds=30)})
    return passes.run()


@pytest.fixture
def stopped(make, alice, local_pool, sent, clock) -> Workspace:
    """A workspace stopped by a schedule on Monday evening."""
    policy_services.create(actor=SYSTEM, target="team:vision", values=WEEK)
    clock.move_to(datetime(2027, 11, 1, 15, tzinfo=UTC))
    workspace = make(alice)
    run_until_ready(sent, workspace)
    for hour, minute in ((18, 40), (19, 11)):
        clock.move_to(datetime(2027, 11, 1, hour, minute, tzinfo=UTC))
        WorkspaceActivity.objects.update_or_create(
            workspace=workspace,
            defaults={
                "generation": reloaded(workspace).generation,
                "observed_at": timezone.now(),
                "idle_s": 3600,
                "report": json.dumps({"at_s": timezone.now().timestamp()}),
            },
        )
        workspace.status.heartbeat_at = None
        workspace.status.save()
        at(clock, 1, hour, minute)
    assert answer(sent, "stop", "absent")
    assert reloaded(workspace).state == State.STOPPED
    return workspace


def test_scheduled_start_happens_once_with_a_notice(stopped, alice, clock, sent, as_user):
    assert presenters.activity_of(reloaded(stopped))["starts_at"] == datetime(2027, 11, 2, 8, tzinfo=UTC)
    page = as_user(alice).get(f"/workspaces/{stopped.pk}/").content.decode()
    assert "Stopped by a schedule" in page
    assert at(clock, 2, 7, 59).started == 0
    assert at(clock, 2, 8).started == 1
    assert reloaded(stopped).state == State.PROVISIONING
    assert Notification.objects.get(user=alice, kind="workspace.scheduled_start").title.endswith(
        "starts again"
    )
    assert at(clock, 2, 8, 1).started == 0
    assert Event.objects.filter(kind="workspace.start").count() == 1
    assert not ScheduledStop.objects.exists()


def test_stop_by_the_user_cancels_the_scheduled_start(stopped, alice, clock):
    services.stop(actor=alice, workspace_id=stopped.pk)
    assert presenters.activity_of(reloaded(stopped))["starts_at"] is None
    assert at(clock, 2, 8).started == 0
    assert reloaded(stopped).state == State.STOPPED


def test_later_start_and_stop_by_the_user_cancel_the_scheduled_start(stopped, alice, clock, sent):
    services.start(actor=alice, workspace_id=stopped.pk)
    run_until_ready(sent, reloaded(stopped))
    services.stop(actor=alice, workspace_id=stopped.pk)
    assert answer(sent, "stop", "absent")
    assert at(clock, 2, 8).started == 0
    assert reloaded(stopped).state == State.STOPPED


def test_schedule_does_not_start_a_workspace_stopped_by_its_user(make, alice, local_pool, sent, clock):
    policy_services.create(actor=SYSTEM, target="team:vision", values=WEEK)
    workspace = make(alice)
    run_until_ready(sent, workspace)
    services.stop(actor=alice, workspace_id=workspace.pk)
    assert answer(sent, "stop", "absent")
    assert at(clock, 2, 8).started == 0


def test_missed_start_after_a_long_outage_happens_once_during_the_day(stopped, clock):
    clock.move_to(datetime(2027, 11, 4, 2, tzinfo=UTC))
    assert passes.run().started == 0
    assert at(clock, 4, 8).started == 1
    assert at(clock, 4, 8, 1).started == 0


def test_clock_set_back_does_not_skip_the_start(stopped, clock):
    clock.move_to(datetime(2027, 11, 1, 5, tzinfo=UTC))
    passes.run()
    assert ScheduledStop.objects.get().stopped_at <= timezone.now()
    assert at(clock, 1, 8).started == 1


def test_scheduled_start_refused_by_admission_notifies_and_is_not_retried(stopped, alice, clock, monkeypatch):
    def refuse(**_given):
        raise StateConflict(Reason(AdmissionCode.NO_ENABLED_POOL))

    monkeypatch.setattr(services, "start", refuse)
    assert at(clock, 2, 8).started == 0
    told = Notification.objects.get(user=alice, kind="workspace.scheduled_start")
    assert told.title.endswith("was not started")
    assert not ScheduledStop.objects.exists()


def test_crash_during_the_start_is_completed_by_the_next_pass(stopped, clock, monkeypatch):
    def crash(*_given):
        raise RuntimeError("killed")

    with monkeypatch.context() as killed:
        killed.setattr(scheduled_starts, "_notify", crash)
        assert at(clock, 2, 8).started == 0
    assert reloaded(stopped).state == State.STOPPED
    assert at(clock, 2, 8, 1).started == 1


def test_start_time_requires_a_stop_time():
    with pytest.raises(InvalidInput) as refused:
        policy_services.create(
            actor=SYSTEM, target="site", values={**WEEK, "stop_at": None, "idle_minutes": 60}
        )
    assert "start_at" in refused.value.extra["errors"]
