"""`berth bulk`, `berth announcements` and `berth maintenance`."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.events.models import Notification
from portal.fleet.announcements.models import Announcement
from portal.fleet.inventory.models import Maintenance
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Preemption, Workspace
from tests.factories import WorkspaceFactory, local_pool_with, make_token, node_info


@pytest.fixture
def as_olga(as_bob, olga, monkeypatch):
    monkeypatch.setenv("BERTH_TOKEN", make_token(olga)[1])
    return as_bob


@pytest.fixture
def rows(bob, team) -> list[Workspace]:
    """Of bob's: one that runs until tomorrow, and one that has stopped."""
    now = timezone.now()
    ends = {"ready_at": now, "ends_at": now + timedelta(days=1), "lifetime_s": 86_400}
    pool = local_pool_with(node_info())
    runs = {"pool": pool, "generation": 1, "state": State.RUNNING, **ends}
    return [
        WorkspaceFactory(owner=bob, team=team, name="runs", **runs),
        WorkspaceFactory(owner=bob, team=team, name="rests", state=State.STOPPED, desired_state="stopped"),
    ]


def test_a_dry_run_changes_nothing_and_an_act_needs_a_yes(as_bob, rows):
    runs, _rests = rows
    table = as_bob("bulk", "stop", "--team", "vision", "--dry-run")
    assert table.code == 0, table.err
    head, *lines = table.out.splitlines()
    assert head.split() == ["NAME", "OWNER", "STATE", "RESULT"]
    assert sorted(line.split()[0] for line in lines) == ["rests", "runs"]
    assert "skipped: rests is stopping or has already stopped." in table.out
    asked = as_bob("bulk", "stop", "--team", "vision")
    assert asked.code == 2 and "--yes" in asked.err
    assert Workspace.objects.get(pk=runs.pk).state == State.RUNNING
    stopped = as_bob("bulk", "stop", "--team", "vision", "--yes")
    assert (stopped.code, stopped.out) == (0, "runs: stopping\n")
    assert stopped.err == "rests skipped: rests is stopping or has already stopped.\n"
    assert Workspace.objects.get(pk=runs.pk).state == State.STOPPING
    nothing = as_bob("bulk", "stop", str(runs.pk), "rests", "--yes")
    assert nothing.code == 1 and "Nothing to do" in nothing.err


def test_named_workspaces_that_are_skipped_give_exit_code_1(as_bob, rows):
    runs, rests = rows
    extended = as_bob("bulk", "extend", "runs", str(rests.pk), "--hours", "3", "--yes", "--json")
    assert extended.code == 1, extended.err
    by_id = {result["id"]: result for result in extended.json["results"]}
    assert by_id[str(runs.pk)]["status"] == 202 and by_id[str(rests.pk)]["problem"]["status"] == 409
    assert Workspace.objects.get(pk=runs.pk).ends_at == runs.ends_at + timedelta(hours=3)
    for wrong, code in (
        (("stop",), 2),
        (("stop", "runs", "--owner", "bob"), 2),
        (("stop", "nothing"), 5),
        (("stop", "--owner", "nobody"), 1),
        (("move", "runs", "--yes"), 1),
    ):
        assert as_bob("bulk", *wrong).code == code, wrong


def test_owners_get_a_message(as_olga, rows):
    sent = as_olga("bulk", "message", "--owner", "bob", "--text", "Please save your work.", "--yes")
    assert (sent.code, sorted(sent.out.splitlines())) == (0, ["rests: message sent", "runs: message sent"])
    assert Notification.objects.get(kind="workspace.message").body.startswith("Please save your work.")
    moved = as_olga("bulk", "move", "--owner", "bob", "--to", "node-9", "--dry-run", "--json")
    assert [line["outcome"] for line in moved.json["results"]] == ["", ""]


def test_moves_are_cancelled(as_olga, rows):
    runs, _rests = rows
    now = timezone.now()
    Preemption.objects.create(workspace=runs, preempt_at=now + timedelta(hours=1), cause="move")
    chosen = ("bulk", "cancel-move", "--owner", "bob")
    cancelled = as_olga(*chosen, "--yes")
    assert (cancelled.code, cancelled.out) == (0, "runs: stays where it is\n")
    assert cancelled.err == "rests skipped: rests has no pending move to cancel.\n"
    assert not Preemption.objects.exists()


def test_announcements_are_created_listed_and_cancelled(as_olga, pool):
    made = as_olga(
        "announcements", "create", "New driver on Monday.", "--kind", "warning", "--pool", pool.slug
    )
    assert made.code == 0, made.err
    later = as_olga(
        "announcements", "create", "New cables.", "--from", "2090-01-01T08:00Z", "--hours", "2", "--json"
    )
    assert later.json["ends_at"].startswith("2090-01-01T10:00")
    _head, *lines = as_olga("announcements").out.splitlines()
    assert {line.split()[0] for line in lines} == {made.out[:8], later.json["id"][:8]}
    assert as_olga("announcements", "cancel", made.out[:8]).out == "Ended: New driver on Monday.\n"
    assert Announcement.objects.get(pk=made.out.strip()).ends_at <= timezone.now()
    assert "New driver" not in as_olga("announcements").out
    assert "New driver" in as_olga("announcements", "--all").out
    assert as_olga("announcements", "cancel", "ffff").code == 5


def test_maintenance_is_set_shown_and_ended(as_olga, pool):
    assert as_olga("maintenance", "show").code == 5
    begun = as_olga("maintenance", "on", "--reason", "New switch.", "--hours", "2", "--pool", pool.slug)
    assert begun.code == 0 and begun.out.endswith(": New switch.\n"), begun.err
    row = Maintenance.objects.get()
    assert abs((row.ends_at - row.begins_at) - timedelta(hours=2)) < timedelta(minutes=1)
    assert as_olga("maintenance", "show", "--pool", pool.slug, "--json").json["reason"] == "New switch."
    assert as_olga("maintenance", "off", "--pool", pool.slug).code == 2
    assert as_olga("maintenance", "off", "--pool", pool.slug, "--yes").code == 0
    assert not Maintenance.objects.exists()
    assert as_olga("maintenance", "on", "--reason", "x").code == 2
    assert as_olga("maintenance", "on", "--reason", "x", "--until", "tomorrow").code == 2
