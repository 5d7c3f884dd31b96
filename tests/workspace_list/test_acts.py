"""Actions on selected workspaces: a preview without changes, then a result per row."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.utils import timezone

from portal.common.events.models import Event, Notification
from portal.people.accounts.models import Role
from portal.workspaces import bulk
from portal.workspaces.models import Workspace
from tests.factories import MembershipFactory, UserFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db
ACT = "/workspaces/act/"
AT_REST = {"desired_state": "stopped"}


@pytest.fixture
def rows(team: Any, bob: Any, local_pool: Any) -> dict[str, Workspace]:
    """Of bob: one waiting, one running until tomorrow, one failed. Of zoe: one running."""
    now = timezone.now()
    zoe = MembershipFactory(team=team, user=UserFactory(username="zoe"), role=Role.MEMBER).user
    running = {"state": "running", "pool": local_pool, "generation": 1, "ready_at": now}
    ends = {"ends_at": now + timedelta(days=1), "lifetime_s": 86_400}
    return {
        "waits": WorkspaceFactory(name="waits", owner=bob, team=team, state="pending"),
        "runs": WorkspaceFactory(name="runs", owner=bob, team=team, **running, **ends),
        "failed": WorkspaceFactory(name="failed", owner=bob, team=team, state="failed"),
        "of-zoe": WorkspaceFactory(name="of-zoe", owner=zoe, team=team, **running),
    }


def post(browser: Any, data: dict[str, Any], query: str = "") -> str:
    answer = browser.post(f"{ACT}{query}", data)
    assert answer.status_code in (200, 400), answer.content
    return unescape(answer.content.decode())


def form(page: str) -> dict[str, Any]:
    """Return the confirmation form of a preview."""
    fields: dict[str, Any] = {"confirm": "1"}
    for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page):
        if name in ("workspace", "refused"):
            fields.setdefault(name, []).append(value)
        elif name != "csrfmiddlewaretoken":
            fields[name] = value
    return fields


def lines(page: str) -> dict[str, str]:
    """Return the last cell of each row by workspace name."""
    found = re.findall(
        r'<td class="c-name">.*?title="([^"]+)">.*?<td class="c-text">(.*?)</td>', page, re.DOTALL
    )
    return {name: text.strip() for name, text in found}


def ids(*rows: Workspace) -> list[str]:
    return [str(row.pk) for row in rows]


def test_stop_is_previewed_and_applied_to_each(rows, as_user, alice, sent):
    browser = as_user(alice)
    before = Event.objects.count()
    stopped = WorkspaceFactory(
        name="stopped", owner=alice, team=rows["runs"].team, state="stopped", **AT_REST
    )
    preempted = WorkspaceFactory(name="preempted", owner=alice, team=rows["runs"].team, state="stopped")
    preview = post(browser, {"act": "stop", "workspace": ids(*rows.values(), stopped, preempted)})
    assert "Stop 4 workspaces?" in preview
    assert lines(preview) == {
        "waits": "Leaves the queue",
        "runs": "Stops. Files are kept.",
        "of-zoe": "Stops. Files are kept.",
        "stopped": "stopped is stopping or has already stopped.",
        "preempted": "No longer starts automatically",
        "failed": "failed is failed and cannot be stopped. Reload the page to see the available actions.",
    }
    assert Event.objects.count() == before
    assert Workspace.objects.get(pk=rows["runs"].pk).state == "running"

    results = post(browser, form(preview))
    assert "Done: 4 of 4" in results
    assert set(Workspace.objects.exclude(name="failed").values_list("state", flat=True)) <= {
        "stopping",
        "stopped",
    }
    # Like three single actions.
    assert Event.objects.filter(kind="workspace.stop", actor=alice).count() == 3
    # Sent again, as by a reload, all of them have changed.
    again = post(browser, form(preview))
    assert "Done: 0 of 4" in again
    assert "changed after the preview" in lines(again)["runs"]


def test_rows_changed_since_the_preview_are_reported_and_skipped(rows, as_user, alice, sent):
    browser = as_user(alice)
    preview = post(browser, {"act": "stop", "workspace": ids(rows["runs"], rows["of-zoe"])})
    Workspace.objects.filter(pk=rows["runs"].pk).update(generation=2)
    results = post(browser, form(preview))
    assert "Done: 1 of 2" in results
    assert lines(results)["runs"].startswith("runs changed after the preview and is now running.")
    assert Workspace.objects.get(pk=rows["runs"].pk).state == "running"


def test_extension_shows_the_new_end_or_the_refusal(rows, as_user, alice, settings):
    settings.BERTH_MAX_LIFETIME_HOURS = 48
    browser = as_user(alice)
    chosen = {"act": "extend", "workspace": ids(*rows.values())}
    refused = lines(post(browser, {**chosen, "hours": "90"}))
    assert "can be extended by up to" in refused["runs"]
    preview = post(browser, {**chosen, "hours": "3"})
    said = lines(preview)
    assert said["runs"].startswith("Runs until")
    assert "no end time" in said["of-zoe"]
    assert "not running" in said["waits"]
    results = post(browser, {**form(preview), "hours": "3"})
    assert lines(results) == {"runs": said["runs"]}
    moved = Workspace.objects.get(pk=rows["runs"].pk)
    assert moved.ends_at == rows["runs"].ends_at + timedelta(hours=3)
    assert Event.objects.filter(kind="workspace.extended", actor=alice).count() == 1
    again = post(browser, {**form(preview), "hours": "3"})
    assert "Done: 0 of 1" in again
    assert Workspace.objects.get(pk=rows["runs"].pk).ends_at == moved.ends_at


def test_invalid_hours_are_returned_with_the_form(rows, as_user, alice):
    page = post(as_user(alice), {"act": "extend", "workspace": ids(rows["runs"]), "hours": "lots"})
    assert "Enter the duration in hours" in page
    assert 'value="lots"' in page


def test_each_owner_gets_one_message(rows, as_user, alice):
    browser = as_user(alice)
    chosen = ids(rows["runs"], rows["waits"], rows["of-zoe"])
    preview = post(browser, {"act": "message", "workspace": chosen})
    assert "Write to 2 owners?" in preview
    empty = browser.post(ACT, {**form(preview), "text": " "})
    assert empty.status_code == 400
    assert "The message is empty." in empty.content.decode()
    results = post(browser, {**form(preview), "text": "Maintenance at <b>18:00</b>."})
    assert "Done: 3 of 3" in results
    notices = {
        notice.user.username: notice for notice in Notification.objects.filter(kind="workspace.message")
    }
    assert set(notices) == {"bob", "zoe"}
    assert notices["bob"].title == "Message from alice about 2 of your workspaces"
    assert "Workspaces: runs, waits" in notices["bob"].body
    assert notices["zoe"].url == f"/workspaces/{rows['of-zoe'].pk}/"
    assert Event.objects.filter(kind="workspace.message_sent", reason__contains="18:00").count() == 3
    # The same form again.
    assert "Already sent" in post(browser, {**form(preview), "text": "Maintenance at <b>18:00</b>."})
    assert Notification.objects.filter(kind="workspace.message").count() == 2


def test_no_message_is_sent_to_deactivated_owners(rows, as_user, alice, bob):
    type(bob).objects.filter(pk=bob.pk).update(is_active=False)
    page = post(as_user(alice), {"act": "message", "workspace": ids(rows["runs"], rows["of-zoe"])})
    assert "The account of bob is deactivated." in lines(page)["runs"]
    assert "Write to 1 owner?" in page


def test_member_can_change_own_workspaces_only(rows, as_user, bob, sent):
    browser = as_user(bob)
    hidden = rows["of-zoe"]
    preview = post(browser, {"act": "stop", "workspace": ids(rows["runs"], hidden)})
    assert "1 selected workspace does not exist, or you do not have access to it." in preview
    assert "of-zoe" not in preview
    forged = {"act": "stop", "confirm": "1", "workspace": [f"{hidden.pk}.{bulk.fingerprint(hidden)}"]}
    results = post(browser, forged)
    assert "Done: 0 of 1" in results
    assert "of-zoe" not in results
    assert Workspace.objects.get(pk=hidden.pk).state == "running"


def test_viewer_sees_rows_but_cannot_change_them(rows, as_user, team):
    vic = MembershipFactory(team=team, user=UserFactory(username="vic"), role=Role.VIEWER).user
    for act in ("stop", "message", "extend"):
        page = post(as_user(vic), {"act": act, "workspace": ids(rows["runs"])})
        assert "Only bob, owners of the team and operators can do this." in lines(page)["runs"]
        assert 'name="confirm"' not in page


def test_all_matching_rows_are_selected_up_to_a_limit(rows, as_user, alice, monkeypatch):
    monkeypatch.setattr("portal.web.workspace_list.act_views.MAX_AT_ONCE", 2)
    page = post(as_user(alice), {"act": "stop", "all": "1"}, "?owner=bob&sort=name")
    assert set(lines(page)) == {"failed", "runs"}
    assert "More workspaces match. Each action applies to up to 2" in page
    assert "owner=bob&sort=name" in page


def test_invalid_requests_are_refused(rows, as_user, alice):
    browser = as_user(alice)
    assert browser.get(f"{ACT}?q=a")["Location"] == "/workspaces/?q=a"
    nothing = browser.post(f"{ACT}?q=a", {"act": "stop"}, follow=True)
    assert "No workspace is selected." in nothing.content.decode()
    one = ids(rows["runs"])
    for data in ({"act": "delete", "workspace": one}, {"workspace": one}, {"act": "stop", "workspace": "x"}):
        assert browser.post(ACT, data).status_code == 400
    crowd = [f"00000000-0000-4000-8000-{n:012}" for n in range(bulk.MAX_AT_ONCE + 1)]
    assert "More than 100 workspaces are selected." in post(browser, {"act": "stop", "workspace": crowd})
