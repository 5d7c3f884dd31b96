"""Idleness from heartbeats to the stop: records, notices, and keeping a workspace."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Event, Notification
from portal.reclaim import bar, keeping, observing, passes
from portal.reclaim.engine.activity import WAITING_S
from portal.reclaim.models import ActivityChange, IdlePeriod, LastPass, ReclaimNotice, WorkspaceActivity
from portal.workspaces import results, services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests import sites
from tests.factories import WorkspaceFactory
from tests.suite.choice import quick_of

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
QUIET = {
    "kernels": {"count": 1, "busy": 0, "last_activity": "2026-11-23T10:00:00Z"},
    "terminals": {"count": 0, "last_activity": None},
    "connections": 3,
    "cpu_seconds": 10.0,
    "jobs": 0,
    "gpus": None,
    "gpus_stale_s": None,
}


@pytest.fixture(autouse=True)
def _site(settings):
    settings.BERTH_IDLE_MINUTES, settings.BERTH_IDLE_GPU_MINUTES = 60, 120
    settings.BERTH_RECLAIM_NOTICE_MINUTES = 30
    settings.BERTH_LIFETIME_HOURS = 0
    settings.BERTH_MAX_LIFETIME_HOURS = 0


@pytest.fixture
def lives(running, clock):
    """Advance by some minutes with one heartbeat and one observation each: `lives(10, jobs=1)`."""
    Workspace.objects.filter(pk=running.pk).update(ends_at=None, lifetime_s=None)

    def live(minutes: int, **changes: object) -> passes.PassReport:
        done = passes.PassReport()
        for _ in range(minutes):
            clock.shift(60)
            results.agent_heartbeat(
                workspace_id=running.pk, generation=running.generation, activity={**QUIET, **changes}
            )
            LastPass.objects.update_or_create(pk=1, defaults={"at": timezone.now() - timedelta(seconds=30)})
            observing.run()
            once = passes.run()
            done = passes.PassReport(
                done.warned + once.warned, done.withdrawn + once.withdrawn, done.stopped + once.stopped
            )
        return done

    return live


def state(workspace: Workspace) -> str:
    return Workspace.objects.get(pk=workspace.pk).state


def test_idle_workspace_is_warned_and_stopped_with_the_reason(running, alice, lives):
    assert lives(30) == passes.PassReport()
    assert lives(2).warned == 1
    notice = ReclaimNotice.objects.get()
    assert (notice.cause, notice.reason["code"]) == ("idle", "ends_by_idle")
    assert lives(28).stopped == 0
    assert lives(3).stopped == 1
    assert state(running) == State.STOPPING
    assert Event.objects.get(kind="workspace.stop").cause["code"] == "ends_by_idle"
    kinds = Notification.objects.filter(user=alice).order_by("pk").values_list("kind", flat=True)
    assert [kind for kind in kinds if "reclaim" in kind] == [
        "workspace.reclaim_warned",
        "workspace.reclaimed",
    ]


@pytest.mark.parametrize(
    "work",
    quick_of(
        [
            {"jobs": 1},
            {"kernels": {"count": 1, "busy": 1, "last_activity": None}},
            {"cpu_seconds": 500.0},
        ],
        [{"jobs": 1}],
        "each sign of work has quick tests of the engine",
    ),
)
def test_work_withdraws_the_notice(running, lives, work):
    assert lives(40).warned == 1
    assert lives(1, **work).withdrawn == 1
    assert not ReclaimNotice.objects.exists()
    assert state(running) == State.RUNNING


@pytest.mark.parametrize(
    "missing",
    quick_of(
        [{"jobs": None}, {"traffic_bytes": None}, {"kernels": None}],
        [{"kernels": None}],
        "each has quick tests of the engine",
    ),
)
def test_incomplete_reports_withdraw_the_notice_after_three_minutes(running, lives, missing):
    assert lives(40).warned == 1
    assert lives(3, **missing) == passes.PassReport()
    row = WorkspaceActivity.objects.get()
    assert row.idle_s == 39 * 60
    assert lives(1, **missing).withdrawn == 1
    assert not ReclaimNotice.objects.exists()
    # The next report shows no activity: the time is idle, and the notice is a new one.
    assert lives(1).warned == 1
    assert WorkspaceActivity.objects.get().idle_s == 44 * 60


def test_long_waiting_command_is_shown_as_such(running, alice, lives, as_user):
    assert lives(2, jobs=1, jobs_cpu_seconds=3.0, jobs_io_bytes=500) == passes.PassReport()
    row = WorkspaceActivity.objects.get()
    report = json.loads(row.report)
    assert report["waiting_since_s"] is not None
    row.report = json.dumps({**report, "waiting_since_s": report["at_s"] - WAITING_S})
    row.save()
    lives(1, jobs=1, jobs_cpu_seconds=3.0, jobs_io_bytes=500)
    assert WorkspaceActivity.objects.get().idle_s == 60
    assert "1 waiting for hours" in as_user(alice).get(f"/workspaces/{running.pk}/").content.decode()


def test_gateway_traffic_counts_as_work_above_a_threshold(running, alice, lives, as_user, with_token):
    """An open tab polls lists; uploads and downloads are larger."""
    bytes_seen = 0
    for _ in range(40):
        bytes_seen += 60 * 29_000
        lives(1, traffic_bytes=bytes_seen)
    assert ReclaimNotice.objects.get().cause == "idle"
    page = as_user(alice).get(f"/workspaces/{running.pk}/").content.decode()
    assert "Traffic through the gateway" in page and "29 kB/s; work from 50 kB/s" in page
    found = with_token(alice).get(f"/api/v1/workspaces/{running.pk}/activity").json()
    (traffic,) = [each for each in found["signals"] if each["kind"] == "traffic"]
    assert traffic == {"kind": "traffic", "value": 29_000, "threshold": 50_000, "active": False}
    assert lives(1, traffic_bytes=bytes_seen + 60 * 51_000).withdrawn == 1
    assert WorkspaceActivity.objects.get().active == "traffic"


def test_work_during_the_stop_decision_prevents_it(running, lives, clock):
    lives(59)
    LastPass.objects.update(at=timezone.now() + timedelta(seconds=60))
    clock.shift(115)
    WorkspaceActivity.objects.update(idle_s=9999.0)
    results.agent_heartbeat(
        workspace_id=running.pk, generation=running.generation, activity={**QUIET, "jobs": 1}
    )
    ReclaimNotice.objects.update(due_at=timezone.now())
    assert passes.apply_step_if_due(running.pk) is None
    assert state(running) == State.RUNNING


def test_lost_agent_does_not_stop_the_workspace(running, lives, clock):
    lives(59)
    for _ in range(120):
        clock.shift(60)
        LastPass.objects.update(at=timezone.now() - timedelta(seconds=30))
        observing.run()
        assert passes.run().stopped == 0
    assert state(running) == State.RUNNING


def test_outage_resets_the_idle_clock(running, lives, clock):
    lives(25)
    clock.shift(3600)
    lives(1)
    assert WorkspaceActivity.objects.get().idle_s == 0


def test_no_idle_limit_stops_no_workspace(running, lives, settings):
    settings.BERTH_IDLE_MINUTES = 0
    assert lives(130) == passes.PassReport()


def test_keeping_withdraws_the_notice_and_applies_until_its_end(running, alice, lives):
    lives(40)
    keeping.keep_workspace(actor=alice, workspace_id=running.pk, seconds=7200)
    assert not ReclaimNotice.objects.exists()
    assert lives(119) == passes.PassReport()
    assert lives(3).warned == 1
    assert lives(31).stopped == 1


def test_keeping_wins_against_a_decided_stop(running, alice, lives, monkeypatch):
    lives(59)
    real = passes.apply_step_if_due

    def late(workspace_id):
        keeping.keep_workspace(actor=alice, workspace_id=workspace_id)
        return real(workspace_id)

    monkeypatch.setattr(passes, "apply_step_if_due", late)
    assert lives(5).stopped == 0
    assert state(running) == State.RUNNING


def test_keeping_does_not_extend_the_lifetime(running, alice, clock):
    before = running.ends_at
    keeping.keep_workspace(actor=alice, workspace_id=running.pk)
    assert Workspace.objects.get(pk=running.pk).ends_at == before


def test_repeated_keeping_writes_one_log_entry(running, alice):
    for _ in range(20):
        keeping.keep_workspace(actor=alice, workspace_id=running.pk)
    assert Event.objects.filter(kind="workspace.kept").count() == 1


def test_keeping_needs_permission_and_is_limited(running, alice, bob, charlie):
    for stranger in (bob, charlie):
        with pytest.raises(NotAllowed):
            keeping.keep_workspace(actor=stranger, workspace_id=running.pk)
    for seconds in (0, 60, 86_401):
        with pytest.raises(InvalidInput):
            keeping.keep_workspace(actor=alice, workspace_id=running.pk, seconds=seconds)
    Workspace.objects.filter(pk=running.pk).update(state=State.STOPPING)
    with pytest.raises(StateConflict):
        keeping.keep_workspace(actor=alice, workspace_id=running.pk)


def test_recorded_activity_changes_are_limited(running, lives):
    for number in range(40):
        lives(1, jobs=number % 2)
    running.refresh_from_db()
    changes = observing.changes_of(running)
    assert [kinds for _at, kinds in changes[-2:]] == [[], ["jobs"]]
    before = ActivityChange.objects.count()
    lives(5, jobs=1)
    assert ActivityChange.objects.count() == before


def test_pruning_keeps_the_state_at_the_start_of_the_period(running, lives, clock):
    lives(2)
    lives(2, jobs=1)
    clock.shift(3 * 86_400)
    observing.prune()
    assert [row.active for row in ActivityChange.objects.all()] == ["jobs"]


def test_idle_period_is_recorded_when_it_ends(running, alice, lives, clock):
    lives(20)
    assert not IdlePeriod.objects.exists()
    lives(3, jobs=1)
    (first,) = IdlePeriod.objects.all()
    assert (first.kind, (first.ended_at - first.began_at).total_seconds()) == ("all", 19 * 60)
    lives(5)
    lives(1, jobs=1)
    assert IdlePeriod.objects.count() == 1
    lives(15)
    services.stop(actor=alice, workspace_id=running.pk)
    observing.run()
    assert not WorkspaceActivity.objects.exists()
    assert IdlePeriod.objects.count() == 2
    clock.shift(32 * 86_400)
    observing.prune()
    assert not IdlePeriod.objects.exists()


def test_page_rest_and_notebook_show_the_activity_readings(running, alice, lives, as_user, with_token):
    lives(40)
    page = as_user(alice).get(f"/workspaces/{running.pk}/").content.decode()
    assert "The workspace has been idle for" in page and "Keep for 2 h" in page
    found = with_token(alice).get(f"/api/v1/workspaces/{running.pk}/activity").json()
    assert (found["cause"], found["idle_limit_s"]) == ("idle", 3600)
    assert found["idle_s"] == pytest.approx(39 * 60, abs=61)
    assert {each["kind"] for each in found["signals"]} == {"cpu", "kernels", "terminals", "jobs"}
    assert found["held"][0]["threshold_s"] == 3600
    assert found["history"][-1]["active"] == []
    seen = bar.describe(running.external_name)
    assert seen["ends"]["extend"] == "Keep for 2 h"
    assert "The workspace has been idle" in seen["messages"][0]["text"]
    assert bar.extend(running.external_name, str(alice.pk))[0] == 200
    assert not ReclaimNotice.objects.exists()


def test_only_the_owner_can_keep_it_from_the_notebook(running, bob, olga):
    for stranger in (bob, olga):
        assert bar.extend(running.external_name, str(stranger.pk))[0] == 404
    missing = bar.extend("ws-" + "0" * 32, str(olga.pk))
    assert (missing[0], missing[1]["message"]) == (404, "Workspace not found.")


def test_workspace_is_kept_over_rest(running, alice, with_token):
    client = with_token(alice)
    answer = client.post(
        f"/api/v1/workspaces/{running.pk}/keep", json.dumps({"hours": 3}), content_type="application/json"
    )
    assert answer.status_code == 200
    assert answer.json()["kept_until"] is not None


def test_queries_of_observing_do_not_grow_with_workspaces(running, alice, django_assert_max_num_queries):
    for _ in range(40):
        other = WorkspaceFactory(team=running.team, owner=alice, state=State.RUNNING, pool=running.pool)
        other.status.activity, other.status.heartbeat_at = QUIET, timezone.now()
        other.status.save()
    # Two of them begin and end its transaction.
    with django_assert_max_num_queries(8):
        assert observing.run() == 41


def test_idle_gpu_time_restarts_after_the_clock_is_set_back(running, clock):
    gpus = [{"uuid": "GPU-0", "utilization_percent": 0}]

    def since():
        results.agent_heartbeat(
            workspace_id=running.pk, generation=running.generation, activity={**QUIET, "gpus": gpus}
        )
        return Workspace.objects.get(pk=running.pk).status.gpu_idle_since

    first = since()
    clock.shift(60)
    assert since() == first
    clock.shift(-3 * 3600)
    later = since()
    assert later == timezone.now()
    clock.shift(60)
    assert since() == later
