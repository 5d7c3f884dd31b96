"""Pages of reclaim policies: permissions, preview, versions, visibility."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.people.accounts.models import Team
from portal.reclaim import keeping, policy_services, previews
from portal.reclaim import policy_documents as documents
from portal.reclaim.models import IdlePeriod, LastPass, ReclaimPolicy, WorkspaceActivity
from portal.reclaim.policy_forms import PolicyForm, initial_values
from tests import sites
from tests.factories import FlavorFactory, TemplateFactory
from tests.reclaim.test_policies import idle

pytestmark = pytest.mark.django_db
WORLD = sites.people
HOUR = 3600
AT = "/reclaim-policies/"
EVERYTHING = {
    "idle_minutes": 0, "idle_gpu_minutes": 45, "gpu_unused_minutes": 30, "release_gpu_minutes": 90,
    "longest_hours": 100,
    "archive_days": 90, "delete_days": 365,
    "notice_minutes": 20, "stop_when_spent": False, "zone": "Europe/Berlin", "days": ["mon", "fri"],
    "work_from": "08:00", "work_until": "18:30", "after_hours_minutes": 25, "stop_at": "19:00",
    "start_at": "07:30",
    "holidays": ["2026-12-25", "2026-12-26"],
}  # fmt: skip


def make_policy(target: str, **given: object) -> ReclaimPolicy:
    return policy_services.create(actor=SYSTEM, target=target, values=given)


def typed(page: Any, **changed: Any) -> dict[str, Any]:
    """Return the form data of a page as a browser sends it."""
    found = {}
    for bound in page.context["form"]:
        value = bound.field.prepare_value(bound.value())
        if value not in (None, "", []):
            found[bound.name] = value
    return {**found, **changed}


@pytest.mark.parametrize("target", ["site", "pool", "template", "flavor", "team"])
def test_unchanged_form_changes_nothing(as_user, olga, team, local_pool, target):
    if target != "site":
        subject = {"pool": lambda: local_pool, "template": TemplateFactory, "flavor": FlavorFactory}
        target = f"{target}:{subject.get(target, lambda: team)().slug}"
    of_homes = {"archive_days", "delete_days"}
    without = {"team": {"notice_minutes", "delete_days"}, "template": of_homes, "flavor": of_homes}
    left_out = without.get(target.partition(":")[0], set())
    made = make_policy(target, **{name: value for name, value in EVERYTHING.items() if name not in left_out})
    browser, url = as_user(olga), f"{AT}{made.pk}/edit/"
    done = browser.post(url, typed(browser.get(url)))
    assert (done.status_code, done["Location"]) == (302, f"{AT}{made.pk}/")
    after = ReclaimPolicy.objects.get(pk=made.pk)
    assert documents.document_of(after) == documents.document_of(made)
    assert after.updated_at == made.updated_at


def test_every_form_value_is_saved(as_user, olga):
    form = PolicyForm(initial=initial_values(EVERYTHING), targets=[("site", "Site")])
    data = {bound.name: bound.value() for bound in form if bound.value() is not None}
    made = as_user(olga).post(f"{AT}new/", {**data, "for": "site", "holidays": "2026-12-25, 2026-12-26"})
    assert made.status_code == 302, made.context["form"].errors
    assert documents.document_of(ReclaimPolicy.objects.get()) == EVERYTHING


def test_owner_manages_only_the_policy_of_the_team(as_user, alice, team):
    Team.objects.create(slug="audio", name="Audio")
    browser = as_user(alice)
    page = browser.get(f"{AT}new/")
    offered = [value for _group, inner in page.context["form"].fields["for"].choices for value, _ in inner]
    assert offered == ["team:vision"]
    assert "notice_minutes" not in page.context["form"].fields
    for target in ("site", "team:audio"):
        refused = browser.post(f"{AT}new/", {"for": target, "idle_minutes": "60"})
        assert refused.status_code == 400
        assert "for" in refused.context["form"].errors
    made = browser.post(f"{AT}new/", {"for": "team:vision", "idle_minutes": "60"})
    assert made.status_code == 302
    row = ReclaimPolicy.objects.get()
    assert browser.post(f"{AT}{row.pk}/edit/", {"idle_minutes": "30"}).status_code == 302
    row.refresh_from_db()
    assert row.idle_minutes == 30
    asked = browser.get(f"{AT}{row.pk}/delete/").content.decode()
    assert "Idle limit without GPUs: 30 min" in asked
    assert browser.post(f"{AT}{row.pk}/delete/").status_code == 302
    assert not ReclaimPolicy.objects.exists()


def test_form_errors_are_shown_at_fields_and_keep_the_input(as_user, olga):
    page = as_user(olga).post(f"{AT}new/", {"for": "site", "stop_at": "19:00", "zone": "Moon/Base"})
    assert page.status_code == 400
    assert set(page.context["form"].errors) == {"days", "zone"} or "zone" in page.context["form"].errors
    assert 'value="Moon/Base"' in page.content.decode()
    assert not ReclaimPolicy.objects.exists()


def test_concurrent_change_is_reported_with_its_author(as_user, olga, alice, team):
    made = make_policy("team:vision", idle_minutes=60)
    browser = as_user(alice)
    data = typed(browser.get(f"{AT}{made.pk}/edit/"), idle_minutes="30")
    policy_services.change(actor=olga, policy_id=made.pk, values={"idle_minutes": 90})
    late = browser.post(f"{AT}{made.pk}/edit/", data)
    assert late.status_code == 400
    assert "olga" in late.content.decode()
    assert ReclaimPolicy.objects.get().idle_minutes == 90


def test_versions_are_listed_and_restored(as_user, alice, team):
    made = make_policy("team:vision", idle_minutes=60)
    policy_services.change(actor=alice, policy_id=made.pk, values={"idle_minutes": 45, "longest_hours": 100})
    browser = as_user(alice)
    page = browser.get(f"{AT}{made.pk}/").content.decode()
    assert "<del>1 h</del><br><ins>45 min</ins>" in page
    asked = browser.get(f"{AT}{made.pk}/versions/1/restore/").content.decode()
    assert "Idle limit without GPUs (minutes): 45 min → 1 h" in asked
    assert browser.post(f"{AT}{made.pk}/versions/1/restore/").status_code == 302
    made.refresh_from_db()
    assert (made.idle_minutes, made.longest_hours) == (60, None)
    assert browser.get(f"{AT}{made.pk}/versions/9/restore/").status_code == 404


def test_member_sees_effective_limits_and_no_versions(as_user, bob, team):
    made = make_policy("team:vision", idle_minutes=60)
    browser = as_user(bob)
    assert "New policy" not in browser.get(AT).content.decode()
    page = browser.get(f"{AT}{made.pk}/")
    assert "Idle limit without GPUs" in page.content.decode()
    assert page.context["versions"] == []
    assert "/edit/" not in page.content.decode()


def test_team_page_links_to_its_policy_or_to_creating_one(as_user, alice, team):
    browser = as_user(alice)
    assert f"{AT}?for=team:vision" in browser.get("/teams/vision/").content.decode()
    assert f"{AT}new/?for=team%3Avision" in browser.get(f"{AT}?for=team:vision").content.decode()
    made = make_policy("team:vision", idle_minutes=60)
    assert browser.get(f"{AT}?for=team:vision")["Location"] == f"{AT}{made.pk}/"
    assert browser.get(f"{AT}new/?for=team:vision").status_code == 403


def record(workspace: Any, clock: Any) -> None:
    """Record idle time from the first to the fifth of ten hours."""
    began = timezone.now()
    LastPass.objects.update_or_create(pk=1, defaults={"at": began, "recorded_since": began})
    IdlePeriod.objects.create(
        workspace=workspace,
        generation=workspace.generation,
        kind="all",
        began_at=began + timedelta(hours=1),
        ended_at=began + timedelta(hours=5),
    )
    clock.shift(10 * HOUR)


def test_preview_works_with_htmx_and_by_button_without_saving(running, as_user, alice, clock):
    browser = as_user(alice)
    url = f"{AT}preview/?for=team:vision&idle_minutes=60"
    assert "No data yet" in browser.get(url).content.decode()
    record(running, clock)
    words = "Would have stopped 1 workspace, freed 0 GPU-hours and interrupted no work."
    assert words in browser.get(url).content.decode()
    page = browser.post(f"{AT}new/", {"for": "team:vision", "idle_minutes": "60", "preview": "1"})
    assert words in page.content.decode()
    none = browser.get(f"{AT}preview/?for=team:vision&idle_minutes=600").content.decode()
    assert "Would not have stopped the 1 recorded start" in none
    hit = browser.get(f"{AT}preview/?for=team:vision&longest_hours=2").content.decode()
    assert "and interrupted 1." in hit
    assert f"/workspaces/{running.pk}/" in hit
    assert not ReclaimPolicy.objects.exists()


@pytest.mark.parametrize(
    "query",
    [
        "",
        "&idle_minutes=x",
        "&idle_minutes=-1",
        "&stop_at=25:00",
        "&zone=Moon&days=mon&stop_at=19:00",
        "&holidays=x",
    ],
)
def test_preview_of_invalid_values_shows_the_problem(as_user, alice, team, query):
    page = as_user(alice).get(f"{AT}preview/?for=team:vision{query}")
    assert page.status_code == 200
    assert page.context["problem"]
    assert page.context["preview"] is None


def test_preview_answers_alike_for_hidden_and_missing_teams(as_user, alice, team):
    Team.objects.create(slug="audio", name="Audio")
    browser = as_user(alice)
    answers = {
        browser.get(f"{AT}preview/?for=team:{slug}&idle_minutes=60").content.decode().replace(slug, "X")
        for slug in ("audio", "radio")
    }
    assert len(answers) == 1


def test_preview_takes_account_of_keeps(running, alice, clock):
    began = timezone.now()
    LastPass.objects.update_or_create(pk=1, defaults={"at": began, "recorded_since": began})
    clock.shift(1.5 * HOUR)
    keeping.keep_workspace(actor=alice, workspace_id=running.pk, seconds=8 * HOUR)
    WorkspaceActivity.objects.all().delete()
    IdlePeriod.objects.create(
        workspace=running,
        generation=running.generation,
        kind="all",
        began_at=began + timedelta(hours=1),
        ended_at=began + timedelta(hours=9),
    )
    clock.shift(20 * HOUR)
    draft = ReclaimPolicy(scope="team", team=running.team, idle_minutes=60)
    assert previews.preview(draft).stops == 0
    IdlePeriod.objects.update(ended_at=began + timedelta(hours=14))
    (stops, found) = (previews.preview(draft).stops, previews.preview(draft))
    assert (stops, found.workspaces, found.interrupted) == (1, 1, 0)


def test_effective_limits_are_shown_with_elapsed_time(running, as_user, alice):
    made = make_policy("team:vision", idle_minutes=60, longest_hours=100)
    idle(running, 600)
    page = as_user(alice).get(f"/workspaces/{running.pk}/").content.decode()
    assert "10 min of 1 h" in page
    assert f'href="{AT}{made.pk}/"' in page


def test_queries_of_the_list_do_not_grow_with_policies(as_user, olga):
    browser = as_user(olga)
    make_policy("site", idle_minutes=60)
    for _ in range(3):
        make_policy(f"flavor:{FlavorFactory().slug}", idle_minutes=60)
    browser.get(AT)
    with CaptureQueriesContext(connection) as few:
        browser.get(AT)
    for _ in range(40):
        make_policy(f"flavor:{FlavorFactory().slug}", idle_minutes=60)
    with CaptureQueriesContext(connection) as many:
        page = browser.get(AT)
    assert len(page.context["rows"]) == 44
    assert len(many) == len(few)
