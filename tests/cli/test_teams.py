"""`berth teams …`."""

from __future__ import annotations

import pytest
from django.utils import timezone

from portal.cli import teams as commands
from portal.people.accounts.models import Team
from portal.workspaces import team_deletions
from portal.workspaces.models import HomeDeletion, HomePlace
from tests.factories import UserFactory, make_token


@pytest.fixture
def as_olga(as_bob, monkeypatch):
    """`berth …` signed in as an operator; bob exists."""
    olga = UserFactory(username="olga", is_operator=True)
    monkeypatch.setenv("BERTH_TOKEN", make_token(olga)[1])
    return as_bob


def test_from_creation_to_deletion(as_olga):
    assert as_olga("teams", "create", "audio", "--name", "Audio", "--owner", "bob").out == "audio\n"
    rows = as_olga("teams", "list").out.splitlines()
    assert rows[1].split() == ["audio", "Audio", "-", "1", "active"]
    assert as_olga("teams", "rename", "audio", "Sound").out == "audio is now Sound.\n"
    shown = as_olga("teams", "show", "audio").out.splitlines()
    assert shown[0] == "Sound (audio), active" and shown[2].split() == ["bob", "owner"]
    assert [row["username"] for row in as_olga("teams", "show", "audio", "--json").json["members"]] == ["bob"]

    off = as_olga("teams", "member-shares", "audio", "off")
    assert off.out == "audio: members do not take turns in the queue.\n"
    shown = as_olga("teams", "show", "audio").out.splitlines()
    assert shown[0] == "Sound (audio), active; members do not take turns in the queue"
    assert as_olga("teams", "member-shares", "audio", "on", "--json").json["member_shares"] is True

    refused = as_olga("teams", "delete", "audio", "--yes")
    assert refused.code == 1 and "not archived" in refused.err
    assert as_olga("teams", "archive", "audio").code == 2
    assert as_olga("teams", "archive", "audio", "--yes").out == "audio is archived.\n"
    assert as_olga("teams", "restore", "audio").out == "audio is active.\n"
    as_olga("teams", "archive", "audio", "--yes")
    assert as_olga("teams", "delete", "audio", "--dry-run").out == "Deleted with the team: members 1.\n"
    assert as_olga("teams", "delete", "audio", "--dry-run", "--json").json["members"] == 1
    assert Team.objects.get(slug="audio").deletion_started_at is None
    assert as_olga("teams", "delete", "audio", "--yes").out == "Team audio deleted.\n"
    assert as_olga("teams", "show", "audio").code == 5
    assert as_olga("teams", "create", "audio").code == 0


def test_deleting_home_folders_needs_confirmation(as_olga, bob, team, local_pool, monkeypatch):
    node = local_pool.nodes.get()
    HomePlace.objects.create(owner=bob, team=team, pool=local_pool, node=node, since=timezone.now())
    as_olga("teams", "archive", "vision", "--yes")
    refused = as_olga("teams", "delete", "vision", "--yes")
    assert refused.code == 1 and "1 home folder" in refused.err
    assert as_olga("teams", "delete", "vision", "--yes", "--homes").out == "Team vision is being deleted.\n"
    assert as_olga("teams", "list", "--json").json[0]["deletion_started_at"]
    monkeypatch.setattr(commands, "POLL_S", 1.1)
    late = as_olga("teams", "delete", "vision", "--yes", "--wait", "--timeout", "1")
    assert late.code == 6 and "The deletion continues." in late.err

    def node_answers(_seconds: float) -> None:
        HomeDeletion.objects.all().delete()
        team_deletions.sweep()

    monkeypatch.setattr(commands.time, "sleep", node_answers)
    assert as_olga("teams", "delete", "vision", "--yes", "--wait", "--json").json == {
        "slug": "vision",
        "deleted": True,
    }


def test_members_list_but_cannot_manage_teams(as_bob):
    assert as_bob("teams", "list").out.splitlines()[1].split() == [
        "vision",
        "Vision",
        "member",
        "2",
        "active",
    ]
    for words in (("create", "mine"), ("rename", "vision", "Mine"), ("archive", "vision", "--yes")):
        assert as_bob("teams", *words).code == 1
    assert as_bob("teams", "delete", "vision", "--yes").code == 1
