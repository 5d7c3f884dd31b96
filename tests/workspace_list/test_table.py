"""The workspace table: visibility, filters, orders, pages and export."""

from __future__ import annotations

import csv
import io
import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.common import keyset
from portal.people.accounts.models import Role
from portal.reclaim.engine.ladder import Cause
from portal.reclaim.models import ReclaimNotice, WorkspaceActivity
from portal.web.workspace_list.order import SORTS
from portal.web.workspace_list.selectors import Selection, selection_of
from portal.workspaces.models import Preemption, Workspace, WorkspaceStatus
from tests.factories import MembershipFactory, TeamFactory, UserFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db
ROW = re.compile(r'<tr id="w-[^"]+">.*?title="([^"]+)">', re.DOTALL)


def names(browser: Any, path: str = "/workspaces/") -> list[str]:
    """Return the workspaces of the page in order."""
    page = browser.get(path)
    assert page.status_code == 200
    return ROW.findall(page.content.decode())


def many(numbers: range, like: Workspace) -> None:
    made = Workspace.objects.bulk_create(
        WorkspaceFactory.build(
            name=f"work-{n:05}",
            state="running",
            generation=1,
            **{name: getattr(like, name) for name in ("team", "owner", "template", "flavor", "pool")},
            **{name: getattr(like, name) for name in ("state_since", "ready_at")},
        )
        for n in numbers
    )
    WorkspaceStatus.objects.bulk_create(WorkspaceStatus(workspace=each) for each in made)


@pytest.fixture
def audio(db: None) -> Any:
    """A workspace of zoe in another team."""
    team = TeamFactory(slug="audio", name="Audio")
    zoe = MembershipFactory(team=team, user=UserFactory(username="zoe"), role=Role.OWNER).user
    return WorkspaceFactory(name="of-zoe", owner=zoe, team=team, state="stopped")


@pytest.fixture
def running(bob: Any, team: Any, local_pool: Any) -> Any:
    """A running workspace of bob."""
    now = timezone.now()
    return WorkspaceFactory(
        name="of-bob", owner=bob, team=team, state="running", pool=local_pool, generation=1, ready_at=now
    )


def test_table_shows_the_rows_of_rest(running, audio, as_user, alice, bob, charlie, olga, una):
    seen = {user.username: names(as_user(user)) for user in (alice, bob, charlie, olga, una)}
    assert seen == {
        "alice": ["of-bob"],
        "bob": ["of-bob"],
        "charlie": [],
        "olga": ["of-bob", "of-zoe"] if running.created_at > audio.created_at else ["of-zoe", "of-bob"],
        "una": seen["olga"],
    }
    for user in (alice, bob, charlie, olga, una):
        listed = as_user(user).get("/api/v1/workspaces").json()["results"]
        assert [row["name"] for row in listed] == seen[user.username]


def test_rows_of_another_team_cannot_be_read_or_counted(running, audio, as_user, bob):
    browser = as_user(bob)
    for path in ("/workspaces/", "/workspaces/?team=audio", "/workspaces/?q=zoe", "/workspaces/?owner=zoe"):
        body = browser.get(path).content.decode().replace("Nothing", "")
        assert "of-zoe" not in body
        assert "Audio" not in body
    assert "Select all 1 that match" in browser.get("/workspaces/").content.decode()
    exported = b"".join(browser.get("/workspaces/csv/?team=audio").streaming_content).decode()
    assert len(exported.splitlines()) == 1


def test_table_is_filtered(running, audio, as_user, olga, local_pool):
    browser = as_user(olga)
    for query in ("q=bob+vision", "state=running", "team=vision", "owner=bob", f"pool={local_pool.slug}"):
        assert names(browser, f"/workspaces/?{query}") == ["of-bob"], query
    assert names(browser, f"/workspaces/?flavor={audio.flavor.slug}") == ["of-zoe"]
    assert "No matching workspaces" in browser.get("/workspaces/?owner=nobody").content.decode()
    # An unknown state must not select everything, for example for an action on all matches.
    assert browser.get("/workspaces/?state=bogus").status_code == 400
    assert browser.get("/workspaces/csv/?state=bogus").status_code == 400


def test_pages_in_every_order_contain_each_row_once(running, audio, olga, monkeypatch):
    monkeypatch.setattr("portal.web.workspace_list.selectors.ROWS_PER_PAGE", 3)
    many(range(4), running)
    Preemption.objects.create(workspace=running, preempt_at=timezone.now(), cause="reclaim")
    for sort in (f"{sign}{name}" for name in SORTS for sign in ("", "-")):
        selection = selection_of(olga, {"sort": sort})
        assert selection.order.key == sort

        def page(cursor: keyset.Cursor | None, selection: Selection = selection) -> keyset.KeysetPage:
            assert cursor is not None
            return selection.page(keyset.encode(cursor, selection.order.fields))

        first = selection.page("")
        second = page(first.next)
        assert [len(first.rows), len(second.rows)] == [3, 3], sort
        assert len({*first.rows, *second.rows}) == 6, sort
        assert (first.previous, second.next) == (None, None), sort
        assert page(second.previous).rows == first.rows, sort
        assert [row.pk for row in selection.all()] == [row.pk for row in (*first.rows, *second.rows)], sort


def test_pages_are_links_that_keep_the_filters(running, as_user, bob, monkeypatch):
    monkeypatch.setattr("portal.web.workspace_list.selectors.ROWS_PER_PAGE", 3)
    many(range(4), running)
    first = as_user(bob).get("/workspaces/?sort=name&q=bob").content.decode()
    assert "5 match" in first
    second = as_user(bob).get(f"/workspaces/{link(first, 'next')}").content.decode()
    assert ROW.findall(second) == ["work-00002", "work-00003"]
    assert ROW.findall(
        as_user(bob).get(f"/workspaces/{link(second, 'prev')}").content.decode()
    ) == ROW.findall(first)


def link(body: str, rel: str) -> str:
    return "".join(re.findall(rf'rel="{rel}"[^>]*href="([^"]+)"', body)).replace("&amp;", "&")


def test_cursor_of_another_order_shows_the_first_page(running, as_user, bob):
    for cursor in ("x", "W10=", "%00"):
        answer = as_user(bob).get(f"/workspaces/?sort=name&cursor={cursor}")
        assert answer.status_code in (200, 400)
    assert names(as_user(bob), "/workspaces/?sort=nothing&cursor=e30=") == ["of-bob"]


def test_headings_sort_and_show_the_order(running, as_user, bob):
    body = as_user(bob).get("/workspaces/?sort=name&state=running").content.decode()
    heading = re.search(r'<th[^>]*c-name[^>]*aria-sort="ascending"[^>]*><a[^>]*href="([^"]+)"', body)
    assert heading is not None
    assert "sort=-name" in heading[1]
    assert "state=running" in heading[1]


def test_table_agrees_with_the_workspace_page(running, as_user, bob):
    """Idle time, and the end: of the lifetime, then of a notice, then of a preemption."""
    now = timezone.now()
    ends = [now + timedelta(hours=hours) for hours in (9, 5, 2)]
    activity = WorkspaceActivity.objects.create(
        workspace=running,
        generation=1,
        observed_at=now,
        idle_s=5400,
        signals='[{"kind": "cpu", "value": 0, "threshold": 0.05, "active": false}]',
    )

    def shown() -> tuple[str, str]:
        body = as_user(bob).get("/workspaces/").content.decode()
        idle = re.search(r'c-idle"><span[^>]*>[^<]*</span>([^<]*)<', body)
        left = re.search(r'c-left">(?:(?!</td>).)*datetime="([^"]+)"', body)
        assert idle is not None
        return idle[1], left[1] if left else ""

    def on_its_page() -> str:
        return as_user(bob).get(f"/workspaces/{running.pk}/").content.decode()

    assert shown() == ("1 h 30 min", "")
    assert "Idle for 1 h 30 min." in on_its_page()
    Workspace.objects.filter(pk=running.pk).update(ends_at=ends[0])
    assert shown()[1] == ends[0].isoformat(timespec="seconds")
    notice = ReclaimNotice.objects.create(
        workspace=running, generation=1, ends_version=0, cause=Cause.IDLE, warned_at=now, due_at=ends[1]
    )
    assert shown()[1] == ends[1].isoformat(timespec="seconds")
    assert ends[1].isoformat(timespec="seconds") in on_its_page()
    Preemption.objects.create(workspace=running, preempt_at=ends[2], cause="reclaim")
    assert shown()[1] == ends[2].isoformat(timespec="seconds")
    Preemption.objects.all().delete()
    # A notice for an earlier end, or an observation of an earlier start, is ignored.
    ReclaimNotice.objects.filter(pk=notice.pk).update(ends_version=7)
    WorkspaceActivity.objects.filter(pk=activity.pk).update(generation=0)
    assert shown() == ("unknown", ends[0].isoformat(timespec="seconds"))


def test_export_has_filtered_rows_and_no_formulas(running, audio, as_user, olga):
    Workspace.objects.filter(pk=running.pk).update(name="=cmd()")
    answer = as_user(olga).get("/workspaces/csv/?team=vision")
    assert answer.streaming
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))
    assert [(row["name"], row["owner"], row["state"], row["pool"]) for row in rows] == [
        ("'=cmd()", "bob", "running", running.pool.slug)
    ]


def test_checkboxes_are_shown_for_changeable_rows_only(running, audio, as_user, una, alice, dan_in):
    assert 'name="workspace"' not in as_user(una).get("/workspaces/").content.decode()
    assert as_user(alice).get("/workspaces/").content.decode().count('name="workspace"') == 1
    mixed = as_user(dan_in).get("/workspaces/").content.decode()
    # A viewer of vision and member of audio.
    assert mixed.count("<tr id=") == 2
    assert mixed.count('name="workspace"') == 1


@pytest.fixture
def dan_in(team: Any, audio: Any) -> Any:
    dan = MembershipFactory(team=team, user=UserFactory(username="dan"), role=Role.VIEWER).user
    MembershipFactory(team=audio.team, user=dan, role=Role.MEMBER)
    WorkspaceFactory(name="of-dan", owner=dan, team=audio.team, state="stopped")
    return dan


def queries(browser: Any, path: str) -> int:
    browser.get(path)
    with CaptureQueriesContext(connection) as asked:
        names(browser, path)
    return len(asked)


def test_queries_do_not_grow_with_rows(running, as_user, alice):
    paths = ("/workspaces/", "/workspaces/?sort=idle", "/workspaces/?q=work&state=running")
    many(range(3), running)
    few = [queries(as_user(alice), path) for path in paths]
    many(range(3, 60), running)
    assert [queries(as_user(alice), path) for path in paths] == few


def test_team_page_leads_its_owner_to_the_longest_idle_workspace(as_user, alice, team, local_pool):
    client, link = as_user(alice), "state=running&amp;sort=idle"
    assert link not in client.get("/teams/vision/").content.decode()
    for name, idle_s in (("busy", 0), ("left", 5400)):
        row = WorkspaceFactory(team=team, owner=alice, name=name, state="running", pool=local_pool)
        WorkspaceActivity.objects.create(
            workspace=row,
            generation=row.generation,
            observed_at=timezone.now(),
            idle_s=idle_s,
            signals='[{"kind": "cpu", "value": 0, "threshold": 0.05, "active": false}]',
        )
    page = client.get("/teams/vision/").content.decode()
    assert link in page and "Longest idle <strong>1 h 30 min</strong>" in page
    body = client.get("/workspaces/?team=vision&state=running&sort=idle").content.decode()
    assert body.index(">left<") < body.index(">busy<")
