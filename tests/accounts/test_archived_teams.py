"""Renamed and archived teams: effects, pages and restoring."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.catalog import selectors as catalog
from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Event
from portal.people.accounts import selectors, teams
from portal.people.accounts.models import User
from portal.people.join_requests import services as join_requests
from portal.people.join_requests.selectors import joinable_teams
from portal.quota.limits.models import Quota
from portal.quota.requests.models import QuotaRequest
from portal.quota.reservations import services as reservations
from portal.quota.reservations.models import Reservation
from portal.workspaces import services as workspaces
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests import sites
from tests.factories import WorkspaceFactory, create_workspace
from tests.quota_requests.helpers import ask

pytestmark = pytest.mark.django_db
WORLD = sites.eight_gpus


def test_rename_is_shown_on_all_pages_and_audited(team, alice, bob):
    assert teams.rename(actor=alice, team=team, name=" Seeing ").name == "Seeing"
    assert Event.objects.get(kind="team.renamed").data == {"before": "Vision", "after": "Seeing"}
    teams.rename(actor=alice, team=team, name="Seeing")
    assert Event.objects.filter(kind="team.renamed").count() == 1
    with pytest.raises(InvalidInput) as refused:
        teams.rename(actor=alice, team=team, name="")
    assert "name" in refused.value.extra["errors"]
    with pytest.raises(NotAllowed):
        teams.rename(actor=bob, team=team, name="Mine")


def order():
    template = catalog.all_templates().get(slug="jupyterlab")
    return {"template": template, "flavor": catalog.all_flavors().get(slug="gpu-1")}


@pytest.fixture
def archived(team, alice, bob, eight):
    """The team, archived with a workspace, a quota, requests and a reservation."""
    WorkspaceFactory(owner=bob, team=team, pool=eight, name="run", state=State.RUNNING)
    WorkspaceFactory(owner=bob, team=team, pool=eight, name="old", state=State.STOPPED)
    Quota.objects.create(team=team, resource="gpu:h100", quota=2000)
    ask(bob, team)
    join_requests.request_to_join(actor=User.objects.create_user("fay", "", None), slug=team.slug)
    now = timezone.now()
    Reservation.objects.create(
        team=team,
        title="Friday",
        created_by=alice,
        starts_at=now + timedelta(hours=1),
        ends_at=now + timedelta(hours=2),
        amounts={"gpu:h100": 1000},
        state="booked",
    )
    return teams.archive(actor=alice, team=team)


def test_archiving_stops_workspaces_and_cancels_requests_but_keeps_members_and_quota(archived, alice, bob):
    assert Workspace.objects.get(name="run").desired_state == "stopped"
    assert QuotaRequest.objects.get().state == "cancelled"
    assert archived.join_requests.get().state == "cancelled"
    assert Reservation.objects.get().state == "cancelled"
    assert Quota.objects.get().quota == 2000
    assert archived.memberships.count() == 2
    assert list(selectors.own_teams(bob)) == [archived]


def test_archived_team_rejects_new_work_and_requests(archived, alice, bob, charlie):
    with pytest.raises(StateConflict) as refused:
        create_workspace(actor=bob, team=archived, **order())
    assert refused.value.message == "Vision is archived."
    stopped = Workspace.objects.get(name="old")
    for act in (
        lambda: workspaces.start(actor=bob, workspace_id=stopped.pk),
        lambda: ask(bob, archived),
        lambda: join_requests.request_to_join(actor=charlie, slug=archived.slug),
        lambda: reservations.request(
            actor=alice,
            team=archived,
            title="x",
            amounts={"gpu:h100": 1000},
            starts_at=timezone.now() + timedelta(hours=1),
            ends_at=timezone.now() + timedelta(hours=2),
        ),
    ):
        with pytest.raises(StateConflict) as refused:
            act()
        assert refused.value.message == "Vision is archived."
    assert not selectors.chargeable_teams(bob).exists()
    assert archived not in joinable_teams(charlie)


def test_create_is_refused_if_the_team_was_archived_after_it_was_read(team, alice, bob, eight):
    """The start reads the team again under its lock."""
    request = order()
    teams.archive(actor=alice, team=team)
    assert team.archived_at is None
    with pytest.raises(StateConflict):
        create_workspace(actor=bob, team=team, **request)
    assert not Workspace.objects.exists()


def test_restored_team_can_be_used_again(archived, alice, bob):
    teams.restore(actor=alice, team=archived)
    archived.refresh_from_db()
    assert workspaces.start(actor=bob, workspace_id=Workspace.objects.get(name="old").pk)
    assert selectors.chargeable_teams(bob).get() == archived
    assert Event.objects.filter(kind="team.restored", team=archived).count() == 1


def test_page_lists_effects_before_archiving(client, team, alice, bob, eight):
    WorkspaceFactory(owner=bob, team=team, pool=eight, state=State.RUNNING)
    client.force_login(alice)
    url = f"/teams/{team.slug}/"
    page = client.get(f"{url}archive/").content.decode()
    assert "1 running or queued workspace, which stops" in page
    assert "members, secrets, quota, GPU-hours and budget, and costs in the reports" in page
    team.refresh_from_db()
    assert team.archived_at is None
    page = client.post(f"{url}archive/", follow=True).content.decode()
    assert "This team is archived." in page and "Restore team" in page
    assert "Archived" in client.get("/teams/").content.decode()
    assert "is restored" in client.post(f"{url}restore/", follow=True).content.decode()
    page = client.post(f"{url}rename/", {"name": "Seeing"}, follow=True).content.decode()
    assert "The team is now called Seeing." in page
    assert (
        "Correct the marked fields"
        in client.post(f"{url}rename/", {"name": ""}, follow=True).content.decode()
    )
