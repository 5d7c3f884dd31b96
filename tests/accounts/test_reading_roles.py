"""Viewers of teams and auditors of the site: conditions and permissions."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.scopes import READING, Scope
from portal.people.accounts import approvers, deactivation, policies, selectors, services, users
from portal.people.accounts.models import Delegation, Role, User
from portal.quota.requests.services import rules
from portal.workspaces import policies as workspace_policies
from portal.workspaces.lifecycle import State
from tests.factories import MembershipFactory, UserFactory, WorkspaceFactory, make_token

pytestmark = pytest.mark.django_db


@pytest.fixture
def vic(team) -> User:
    return MembershipFactory(team=team, user=UserFactory(username="vic"), role=Role.VIEWER).user


# --- viewers --------------------------------------------------------------------------------------


def test_a_viewer_sees_the_teams_workspaces_and_no_others(team, vic, bob, charlie):
    other_team = charlie.teams.get()
    mine = WorkspaceFactory(team=team, owner=bob, state=State.STOPPED)
    WorkspaceFactory(team=other_team, owner=charlie, state=State.STOPPED)
    assert [row.pk for row in workspace_policies.visible_to(vic, type(mine).objects.all())] == [mine.pk]
    assert not workspace_policies.may_operate(vic, mine)
    assert not workspace_policies.may_open(vic, mine)


def test_viewer_cannot_charge_the_team(team, vic):
    assert list(selectors.own_teams(vic)) == [team]
    assert list(selectors.chargeable_teams(vic)) == []
    with pytest.raises(NotAllowed) as refused:
        policies.require_work_in(vic, team)
    assert refused.value.reason.code == "viewer_only"


def test_viewer_can_work_in_a_second_team_as_member(team, charlie, vic):
    other_team = charlie.teams.get()
    assert vic.only_views
    services.set_member(actor=SYSTEM, team=other_team, username="vic", role=Role.MEMBER)
    again = User.objects.get(pk=vic.pk)
    assert not again.only_views
    assert list(selectors.chargeable_teams(again)) == [other_team]


def test_user_with_workspaces_of_the_team_cannot_become_viewer(team, alice, bob):
    workspace = WorkspaceFactory(team=team, owner=bob, state=State.STOPPED)
    with pytest.raises(StateConflict):
        services.set_member(actor=alice, team=team, username="bob", role=Role.VIEWER)
    assert team.memberships.get(user=bob).role == Role.MEMBER
    workspace.state = State.TERMINATED
    workspace.save()
    services.set_member(actor=alice, team=team, username="bob", role=Role.VIEWER)
    assert team.memberships.get(user=bob).role == Role.VIEWER


def test_only_owner_cannot_become_viewer(team, alice):
    with pytest.raises(StateConflict):
        services.set_member(actor=alice, team=team, username="alice", role=Role.VIEWER)


def test_a_viewer_does_not_inherit_a_team(ada, team, alice, bob, vic):
    team.memberships.filter(user=vic).update(joined_at=timezone.now() - dt.timedelta(days=900))
    deactivation.deactivate(actor=ada, user=alice)
    assert team.memberships.get(user=vic).role == Role.VIEWER
    assert team.memberships.get(user=bob).role == Role.OWNER


# --- auditors -------------------------------------------------------------------------------------


def test_auditor_cannot_have_other_site_roles(ada, una):
    with pytest.raises(InvalidInput):
        users.change(actor=ada, user=una, roles=["auditor", "operator"])
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.filter(pk=una.pk).update(is_operator=True)
    users.change(actor=ada, user=una, roles=["operator"])
    assert User.objects.get(pk=una.pk).roles == ["operator"]


@pytest.mark.parametrize("role", [Role.MEMBER, Role.OWNER])
def test_an_auditor_only_views_teams(ada, una, team, olga, role):
    with pytest.raises(StateConflict):
        services.set_member(actor=ada, team=team, username="una", role=role)
    with pytest.raises(StateConflict):
        services.create_team(actor=olga, slug="new", name="New", owner=una)
    with pytest.raises(StateConflict):
        users.create(actor=ada, username="uma", roles=["auditor"], teams={"vision": role})
    services.set_member(actor=ada, team=team, username="una", role=Role.VIEWER)
    assert not policies.may_work_in(una, team)


def test_team_member_must_become_viewer_to_become_auditor(ada, team, bob):
    with pytest.raises(StateConflict) as refused:
        users.change(actor=ada, user=bob, roles=["auditor"])
    assert refused.value.reason.params["teams"] == ["vision"]
    users.change(actor=ada, user=bob, roles=["auditor"], teams={"vision": Role.VIEWER})
    bob.refresh_from_db()
    assert bob.is_auditor and team.memberships.get(user=bob).role == Role.VIEWER


def test_user_with_workspaces_cannot_become_auditor(ada, team, bob):
    WorkspaceFactory(team=team, owner=bob, state=State.STOPPED)
    with pytest.raises(StateConflict), transaction.atomic():
        users.change(actor=ada, user=bob, roles=["auditor"], teams={})
    bob.refresh_from_db()
    assert not bob.is_auditor and team.memberships.filter(user=bob).exists()


def test_auditor_cannot_be_a_delegate(una):
    petra = UserFactory(username="petra", is_approver=True)
    now = timezone.now()
    with pytest.raises(InvalidInput):
        rules.delegate(actor=petra, delegate="una", ends_at=now + dt.timedelta(days=1))
    Delegation.objects.create(approver=petra, delegate=una, starts_at=now, ends_at=now + dt.timedelta(days=1))
    assert not approvers.may_decide_all(una)


@pytest.mark.parametrize("scope", sorted(set(Scope) - READING))
def test_an_auditors_token_only_reads(una, scope):
    with pytest.raises(InvalidInput) as refused:
        make_token(una, Scope.TEAMS_READ, scope)
    assert refused.value.reason.code == "auditor_token_writes"


def test_auditor_token_without_scopes_has_all_read_scopes(as_user, una):
    made = as_user(una).post("/api/v1/tokens", {"name": "audit"}, content_type="application/json")
    assert made.status_code == 201
    assert set(made.json()["scopes"]) == READING


def test_token_made_before_becoming_auditor_is_read_only(ada, client, team):
    wim = UserFactory(username="wim")
    secret = make_token(wim)[1]
    users.change(actor=ada, user=wim, roles=["auditor"])
    headers = {"Authorization": f"Bearer {secret}"}
    assert client.get("/api/v1/users", headers=headers).status_code == 200
    made = client.post("/api/v1/tokens", {"name": "x"}, content_type="application/json", headers=headers)
    assert made.status_code == 403


def test_token_page_offers_auditors_read_scopes_only(as_user, una):
    page = as_user(una).get("/account/tokens/").content.decode()
    assert "users:read" in page and ":write" not in page and "workspaces:connect" not in page
    answer = as_user(una).post("/account/tokens/", {"name": "t", "scopes": ["users:read"], "expires": "7"})
    assert answer.status_code == 200 and "shown only once" in answer.content.decode()
