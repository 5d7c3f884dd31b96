"""Reclaim policies: permissions, effective limits, stops and previews."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, PreconditionFailed, StateConflict
from portal.common.events.models import Event
from portal.people.accounts.models import Team
from portal.reclaim import effective, keeping, observing, passes, policy_services, presenters
from portal.reclaim.models import (
    Absence,
    IdlePeriod,
    LastPass,
    ReclaimNotice,
    ReclaimPolicy,
    WorkspaceActivity,
)
from portal.workspaces import extending
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests import sites

pytestmark = pytest.mark.django_db
WORLD = sites.people
HOUR = 3600


@pytest.fixture(autouse=True)
def _site(settings):
    settings.BERTH_IDLE_MINUTES, settings.BERTH_IDLE_GPU_MINUTES = 120, 120
    settings.BERTH_RECLAIM_NOTICE_MINUTES = 30
    settings.BERTH_LIFETIME_HOURS, settings.BERTH_MAX_LIFETIME_HOURS = 72, 336


def make_policy(target: str, **given: object) -> ReclaimPolicy:
    return policy_services.create(actor=SYSTEM, target=target, values=given)


def idle(workspace: Workspace, seconds: float) -> None:
    """Record idle time of this length until now."""
    WorkspaceActivity.objects.update_or_create(
        workspace=workspace,
        defaults={
            "generation": workspace.generation,
            "observed_at": timezone.now(),
            "idle_s": seconds,
            "report": json.dumps({"at_s": timezone.now().timestamp()}),
        },
    )
    workspace.status.heartbeat_at = None
    workspace.status.save()


def pass_now() -> passes.PassReport:
    LastPass.objects.update_or_create(pk=1, defaults={"at": timezone.now() - timedelta(seconds=30)})
    return passes.run()


def test_page_and_rest_show_effective_limits_with_sources(running, alice, as_user, with_token):
    make_policy(f"flavor:{running.flavor.slug}", idle_minutes=90)
    make_policy("team:vision", idle_minutes=60, longest_hours=100)
    make_policy("site", idle_minutes=240, notice_minutes=20)
    held = effective.effective_policy(running)
    assert (held.policy.idle_s, held.policy.notice_s, held.policy.longest_s) == (HOUR, 1200, 100 * HOUR)
    found = with_token(alice).get(f"/api/v1/workspaces/{running.pk}/activity").json()
    assert found["idle_limit_s"] == HOUR
    assert {rule["name"]: rule["set_by"] for rule in found["policy"]} == {
        "idle_s": "team:vision",
        "notice_s": "site",
        "longest_s": "team:vision",
    }
    page = as_user(alice).get(f"/workspaces/{running.pk}/").content.decode()
    assert "Reclaim policy" in page
    assert "from team vision" in page


def test_settings_apply_without_a_policy(running):
    (rule, notice) = presenters.rules_of(effective.effective_policy(running))
    assert (rule["value"], rule["set_by"], notice["value"]) == (7200, "settings", 1800)


def test_shorter_limit_of_a_policy_warns_and_stops(running, clock):
    make_policy("team:vision", idle_minutes=60)
    idle(running, 29 * 60)
    assert pass_now() == passes.PassReport()
    idle(running, 31 * 60)
    assert pass_now().warned == 1
    clock.shift(1801)
    idle(running, 61 * 60 + 1)
    assert pass_now().stopped == 1
    assert Event.objects.get(kind="workspace.stop").cause["params"]["threshold_s"] == HOUR


def test_looser_policy_withdraws_the_notice(running):
    made = make_policy(f"flavor:{running.flavor.slug}", idle_minutes=60)
    idle(running, 45 * 60)
    assert pass_now().warned == 1
    policy_services.change(actor=SYSTEM, policy_id=made.pk, values={"idle_minutes": 600})
    assert pass_now().withdrawn == 1


def test_extension_wins_against_a_schedule_until_its_end(running, alice, clock):
    stop = timezone.now() + timedelta(minutes=20)
    week = {"zone": "UTC", "days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]}
    make_policy("team:vision", idle_minutes=None, stop_at=stop.time().replace(second=0), **week)
    idle(running, 1000)
    assert pass_now().warned == 1
    assert ReclaimNotice.objects.get().cause == "schedule"
    extending.extend(actor=alice, workspace_id=running.pk, seconds=2 * HOUR)
    clock.shift(HOUR)
    idle(running, 4000)
    assert pass_now() == passes.PassReport()
    clock.shift(HOUR + 60)
    idle(running, 900)
    assert pass_now().warned == 1


def test_maximum_lifetime_excludes_outages_and_limits_extensions(running, alice, clock):
    make_policy("site", longest_hours=80)
    assert extending.remaining_extension_s(running) == pytest.approx(8 * HOUR, abs=60)
    Workspace.objects.filter(pk=running.pk).update(ends_at=None, lifetime_s=None)
    began = running.ready_at
    clock.move_to(began + timedelta(hours=10))
    LastPass.objects.update_or_create(pk=1, defaults={"at": timezone.now()})
    clock.shift(300 * 86_400)
    assert passes.run() == passes.PassReport()
    assert Absence.objects.get().seconds == 300 * 86_400
    clock.shift(69 * HOUR)
    assert pass_now() == passes.PassReport()
    clock.shift(0.75 * HOUR)
    assert pass_now().warned == 1
    keeping.keep_workspace(actor=alice, workspace_id=running.pk)
    assert ReclaimNotice.objects.get().cause == "longest"
    clock.shift(0.5 * HOUR)
    assert pass_now().stopped == 1


def test_team_changes_own_policies_only(alice, bob, olga, team):
    given = {"idle_minutes": 60}
    with pytest.raises(NotAllowed):
        policy_services.create(actor=alice, target="site", values=given)
    with pytest.raises(NotAllowed):
        policy_services.create(actor=bob, target="team:vision", values=given)
    made = policy_services.create(actor=alice, target="team:vision", values=given)
    with pytest.raises(StateConflict):
        policy_services.create(actor=olga, target="team:vision", values=given)
    with pytest.raises(NotAllowed):
        policy_services.delete(actor=bob, policy_id=made.pk)
    policy_services.delete(actor=alice, policy_id=made.pk)
    kinds = Event.objects.filter(kind__startswith="reclaim_policy").order_by("pk")
    assert [each.kind for each in kinds] == ["reclaim_policy.created", "reclaim_policy.deleted"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "idle_gpu_minutes"),
        ({"notice_minutes": 60}, "notice_minutes"),
        ({"stop_at": "19:00"}, "days"),
        ({"stop_at": "19:00", "days": ["mon"], "zone": "Moon/Base"}, "zone"),
        ({"work_from": "18:00", "work_until": "08:00", "after_hours_minutes": 30}, "work_until"),
        ({"idle_minutes": 60, "days": ["someday"]}, "days"),
        ({"idle_minutes": 60, "holidays": ["2026-02-30"]}, "holidays"),
        ({"stop_at": "25:00"}, "stop_at"),
        ({"idle_minutes": 10**7}, "idle_minutes"),
    ],
)
def test_invalid_policy_value_is_refused_at_its_field(team, given, field):
    with pytest.raises(InvalidInput) as refused:
        make_policy("team:vision", **given)
    assert field in refused.value.field_errors
    with pytest.raises(InvalidInput):
        make_policy("flavor:\0", idle_minutes=1)


def test_versions_are_stored_and_restored_and_stale_changes_refused(team, olga, with_token):
    client = with_token(olga)
    body = {"for": "team:vision", "idle_minutes": 60, "holidays": ["2026-12-25"]}
    made = client.post("/api/v1/reclaim-policies", json.dumps(body), content_type="application/json")
    assert made.status_code == 201
    url = f"/api/v1/reclaim-policies/{made.json()['id']}"
    changed = client.patch(
        url, json.dumps({"idle_minutes": 30}), content_type="application/json", HTTP_IF_MATCH=made["ETag"]
    )
    assert changed.json()["idle_minutes"] == 30
    late = client.patch(
        url, json.dumps({"idle_minutes": 20}), content_type="application/json", HTTP_IF_MATCH=made["ETag"]
    )
    assert late.status_code == 412
    newest = client.get(f"{url}/versions").json()[0]
    assert newest["changes"] == [{"field": "idle_minutes", "before": 60, "after": 30}]
    assert client.post(f"{url}/versions/1/restore").json()["idle_minutes"] == 60
    with pytest.raises(PreconditionFailed):
        policy_services.delete(actor=olga, policy_id=made.json()["id"], expected=frozenset({"0"}))


def test_preview_replays_recorded_activity_without_saving(running, olga, with_token, clock):
    client = with_token(olga)
    body = {"for": "team:vision", "idle_minutes": 60}

    def preview() -> dict[str, object]:
        answer = client.post(
            "/api/v1/reclaim-policies/preview", json.dumps(body), content_type="application/json"
        )
        assert answer.status_code == 200, answer.content
        return dict(answer.json())

    assert preview()["recorded_since"] is None
    began = timezone.now()
    LastPass.objects.update_or_create(pk=1, defaults={"at": began, "recorded_since": began})
    IdlePeriod.objects.create(
        workspace=running,
        generation=running.generation,
        kind="all",
        began_at=began + timedelta(hours=1),
        ended_at=began + timedelta(hours=5),
    )
    clock.shift(10 * HOUR)
    found = preview()
    assert (found["starts"], found["workspaces"], found["stops"], found["interrupted"]) == (1, 1, 1, 0)
    body["longest_hours"] = 7
    found = preview()
    assert (found["stops"], found["interrupted"], found["gpu_hours"]) == (1, 0, 0.0)
    # Stopped while idle, restarted on use, and stopped again during work.
    body |= {"longest_hours": 2, "idle_minutes": None}
    found = preview()
    assert (found["stops"], found["interrupted"], found["interruptions"][0]["cause"]) == (2, 1, "longest")
    assert not ReclaimPolicy.objects.exists()


def test_stop_ends_the_idle_period(running):
    idle(running, 4000)
    Workspace.objects.filter(pk=running.pk).update(state=State.STOPPED)
    observing.run()
    (period,) = IdlePeriod.objects.all()
    assert (period.ended_at - period.began_at).total_seconds() == pytest.approx(4000, abs=1)


def test_policies_of_another_team_are_not_visible(running, alice, with_token, olga):
    Team.objects.create(slug="audio", name="Audio")
    make_policy("team:audio", idle_minutes=60)
    make_policy("team:vision", idle_minutes=60)
    make_policy("site", idle_minutes=60)
    seen = with_token(alice).get("/api/v1/reclaim-policies").json()["results"]
    assert {each["for"] for each in seen} == {"team:vision", "site"}
    assert len(with_token(olga).get("/api/v1/reclaim-policies").json()["results"]) == 3
