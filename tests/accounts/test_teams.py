"""Teams and members: permissions, and at least one owner."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event
from portal.people.accounts import policies, selectors, services
from portal.people.accounts.models import Membership, Role, Team, User
from portal.workspaces.lifecycle import State
from tests import sites
from tests.factories import MembershipFactory, TeamFactory, UserFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db
WORLD = sites.people


def roles(team: Team) -> dict[str, str]:
    return dict(team.memberships.values_list("user__username", "role"))


# --- teams ----------------------------------------------------------------------------------------


def test_operators_create_teams(olga, alice):
    team = services.create_team(actor=olga, slug="robots", name=" Robots ", owner=alice)
    assert (team.name, roles(team)) == ("Robots", {"alice": "owner"})
    assert Event.objects.get(kind="team.created").actor == olga


def test_team_name_defaults_to_its_slug(olga):
    assert services.create_team(actor=olga, slug="robots", name=" ").name == "robots"


@pytest.mark.parametrize("username", ["alice", "bob", "charlie"])
def test_other_users_cannot_create_teams(request, team, username):
    with pytest.raises(NotAllowed):
        services.create_team(actor=request.getfixturevalue(username), slug="x", name="x")


@pytest.mark.parametrize("slug", ["", "Robots", "a b", "../x", "-a", "x" * 41, "vision"])
def test_invalid_or_taken_slug_is_a_field_error(olga, team, slug):
    with pytest.raises(InvalidInput) as refused:
        services.create_team(actor=olga, slug=slug, name="x")
    assert "slug" in refused.value.extra["errors"]


def test_teams_are_visible_to_members_and_operators(team, alice, bob, charlie, olga):
    seen = {
        user.username: set(selectors.teams_for(user).values_list("slug", flat=True))
        for user in (alice, bob, charlie, olga)
    }
    assert seen == {
        "alice": {"vision"},
        "bob": {"vision"},
        "charlie": {"robots"},
        "olga": {"vision", "robots"},
    }
    assert selectors.team_by_slug(olga, "vision") == team
    with pytest.raises(NotFound):
        selectors.team_by_slug(charlie, "vision")
    assert not selectors.own_teams(olga).exists()
    assert policies.may_view_team(bob, team)
    assert not policies.may_view_team(charlie, team)


def test_member_counts_are_not_multiplied(team, alice, olga):
    for _ in range(3):
        MembershipFactory(team=team)
    for user in (alice, olga):
        (found,) = selectors.teams_for(user)
        assert found.member_count == 5


# --- members --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("username", "allowed"), [("alice", True), ("olga", True), ("bob", False), ("charlie", False)]
)
def test_owners_and_operators_add_members(team, request, username, allowed):
    UserFactory(username="dan")
    actor = request.getfixturevalue(username)
    if allowed:
        services.set_member(actor=actor, team=team, username=" Dan ", role="member")
        assert roles(team)["dan"] == "member"
        assert Event.objects.get(kind="team.member_set").message == "added dan to Vision as member"
    else:
        with pytest.raises(NotAllowed):
            services.set_member(actor=actor, team=team, username="dan", role="member")
        assert "dan" not in roles(team)


def test_setting_the_same_role_again_is_success_without_an_event(team, alice):
    services.set_member(actor=alice, team=team, username="bob", role="member")
    assert not Event.objects.filter(kind="team.member_set").exists()


@pytest.mark.parametrize(
    ("username", "role", "field"), [("nobody", "member", "username"), ("bob", "king", "role")]
)
def test_invalid_member_or_role_is_a_field_error(team, alice, username, role, field):
    with pytest.raises(InvalidInput) as refused:
        services.set_member(actor=alice, team=team, username=username, role=role)
    assert field in refused.value.extra["errors"]


def test_deactivated_user_cannot_be_added(team, alice):
    UserFactory(username="dan", is_active=False)
    with pytest.raises(InvalidInput):
        services.set_member(actor=alice, team=team, username="dan", role="member")


def test_last_owner_cannot_be_removed_or_demoted(team, alice, olga):
    for act in (
        lambda: services.set_member(actor=alice, team=team, username="alice", role="member"),
        lambda: services.remove_member(actor=alice, team=team, username="alice"),
        lambda: services.remove_member(actor=olga, team=team, username="alice"),
    ):
        with pytest.raises(StateConflict):
            act()
    services.set_member(actor=alice, team=team, username="bob", role="owner")
    services.set_member(actor=bob_of(team), team=team, username="alice", role="member")
    assert roles(team) == {"alice": "member", "bob": "owner"}


def bob_of(team: Team) -> User:
    return User.objects.get(username="bob", memberships__team=team)


def test_members_can_leave_but_not_remove_others(team, bob, alice):
    with pytest.raises(NotAllowed):
        services.remove_member(actor=bob, team=team, username="alice")
    services.remove_member(actor=bob, team=team, username="bob")
    assert roles(team) == {"alice": "owner"}


def test_removing_a_non_member_is_not_found(team, alice, charlie):
    with pytest.raises(NotFound):
        services.remove_member(actor=alice, team=team, username="charlie")
    with pytest.raises(NotFound):
        services.remove_member(actor=charlie, team=team, username="charlie")


@pytest.mark.parametrize("state", [State.STOPPED, State.FAILED, State.PENDING])
def test_member_with_workspaces_cannot_be_removed(team, alice, bob, state):
    WorkspaceFactory(owner=bob, team=team, state=state)
    with pytest.raises(StateConflict, match="still has 1 workspace charged"):
        services.remove_member(actor=alice, team=team, username="bob")
    assert "bob" in roles(team)


def test_deleted_or_other_teams_workspaces_do_not_block_removal(team, alice, bob):
    WorkspaceFactory(owner=bob, team=team, state=State.TERMINATED)
    WorkspaceFactory(owner=bob, team=TeamFactory(), state=State.STOPPED)
    services.remove_member(actor=alice, team=team, username="bob")
    assert "bob" not in roles(team)


def test_system_actor_can_change_any_membership(team):
    services.set_member(actor=SYSTEM, team=team, username="bob", role="owner")
    services.remove_member(actor=SYSTEM, team=team, username="alice")
    assert roles(team) == {"bob": "owner"}


# --- users ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Ada", "..", "a/b", "a b", "-a", ".a", "ä", "", "x" * 33, "a\x00"])
def test_username_that_is_no_valid_folder_name_is_refused(db, name):
    with pytest.raises(ValidationError):
        User(username=name, password="x").full_clean()


@pytest.mark.parametrize("name", ["ada", "ada.l", "a-b_c", "x" * 32, "7"])
def test_plain_usernames_are_accepted(db, name):
    User(username=name, password="x").full_clean()


def test_email_is_unique_ignoring_case(db):
    UserFactory(username="a", email="Ada@example.org")
    with pytest.raises(IntegrityError):
        UserFactory(username="b", email="ada@EXAMPLE.org")


def test_several_users_can_have_no_email(db):
    UserFactory(username="a", email="")
    UserFactory(username="b", email="")


def test_active_operators_and_administrators_operate(olga, alice):
    assert olga.operates
    assert not alice.operates
    assert UserFactory(is_superuser=True).operates
    olga.is_active = False
    assert not olga.operates


def test_membership_is_unique_per_user_and_team(team, bob):
    with pytest.raises(IntegrityError):
        Membership.objects.create(team=team, user=bob, role=Role.OWNER)
