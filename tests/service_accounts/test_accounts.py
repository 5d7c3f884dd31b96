"""Service accounts: created by team owners, without sign-in, bound to one team."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.auth import authenticate
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Event
from portal.people.accounts import (
    deactivation,
    service_accounts,
    services,
    sessions,
    token_lookup,
    tokens,
    users,
)
from portal.people.accounts.models import AccountKind, AccountState, ApiToken, Role, User
from portal.people.service_accounts import selectors
from portal.quota.requests.services import rules
from portal.workspaces import policies as workspace_policies
from portal.workspaces.lifecycle import State
from tests import sites
from tests.factories import PASSWORD, WorkspaceFactory, make_token

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
WORLD = sites.people


@pytest.fixture
def ci(team, alice) -> User:
    return service_accounts.create(actor=alice, team=team, name="ci", description="Nightly training")


# --- creation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ci", "svc-ci", " CI "])
def test_service_account_name_has_its_prefix(team, alice, name):
    made = service_accounts.create(actor=alice, team=team, name=name)
    assert (made.username, made.kind, made.state) == ("svc-ci", AccountKind.SERVICE, AccountState.ACTIVE)
    assert list(made.memberships.values_list("team__slug", "role")) == [("vision", "member")]
    entry = Event.objects.get(kind="service_account.created")
    assert (entry.actor, entry.team) == (alice, team)


@pytest.mark.parametrize("name", ["", "svc-", "a b", "../x", "-a", "x" * 30, "Ä"])
def test_invalid_name_is_refused_at_its_field(team, alice, name):
    with pytest.raises(InvalidInput) as refused:
        service_accounts.create(actor=alice, team=team, name=name)
    assert "name" in refused.value.field_errors


def test_name_is_unique_on_the_site(ci, olga, charlie):
    with pytest.raises(InvalidInput):
        service_accounts.create(actor=olga, team=charlie.teams.get(), name="ci")


@pytest.mark.parametrize("username", ["bob", "charlie", "petra"])
def test_members_and_outsiders_cannot_create_service_accounts(team, request, username):
    with pytest.raises(NotAllowed):
        service_accounts.create(actor=request.getfixturevalue(username), team=team, name="ci")


def test_service_accounts_per_team_are_limited(team, olga, monkeypatch, ci):
    monkeypatch.setattr(service_accounts, "MAX_PER_TEAM", 1)
    with pytest.raises(StateConflict):
        service_accounts.create(actor=olga, team=team, name="two")


def test_users_cannot_take_a_service_account_name(ada):
    with pytest.raises(InvalidInput) as refused:
        users.create(actor=ada, username="svc-root")
    assert "username" in refused.value.field_errors
    with pytest.raises(ValidationError):
        User(username="svc-x").full_clean(exclude=["password"])


# --- not a person ---------------------------------------------------------------------------------


def test_service_account_cannot_sign_in(ci, client, rf):
    assert authenticate(rf.post("/sign-in/"), username="svc-ci", password="") is None
    ci.set_password(PASSWORD)
    ci.save()
    answer = client.post("/sign-in/", {"username": "svc-ci", "password": PASSWORD})
    assert answer.status_code == 403
    assert client.get("/api/v1/me").status_code == 401
    with pytest.raises(NotAllowed):
        sessions.sign_in(rf.get("/"), ci, how="any way at all")


@pytest.mark.parametrize(
    "change",
    [
        lambda ada, ci: users.change(actor=ada, user=ci, roles=["operator"]),
        lambda ada, ci: users.change(actor=ada, user=ci, email="x@example.org"),
        lambda ada, ci: users.change(actor=ada, user=ci, teams={}),
        lambda ada, ci: users.reset_password(actor=ada, user=ci),
        lambda ada, ci: users.invite_again(actor=ada, user=ci),
        lambda ada, ci: services.set_member(
            actor=ada, team=ci.owning_team, username=ci.username, role=Role.OWNER
        ),
        lambda ada, ci: services.remove_member(actor=ada, team=ci.owning_team, username=ci.username),
        lambda ada, ci: services.create_team(actor=ada, slug="new", name="New", owner=ci),
    ],
    ids=["role", "address", "teams", "password", "invitation", "owner", "removed", "own-team"],
)
def test_service_account_cannot_become_a_person(ada, ci, change):
    with pytest.raises(StateConflict) as refused:
        change(ada, ci)
    assert refused.value.reason.code == "is_service_account"


def test_service_account_cannot_join_another_team(ci, charlie):
    other = charlie.teams.get()
    services.set_member(actor=SYSTEM, team=other, username="charlie", role=Role.OWNER)
    with pytest.raises(StateConflict):
        services.set_member(actor=charlie, team=other, username="svc-ci", role=Role.MEMBER)


def test_service_account_cannot_have_a_role(ci):
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.filter(pk=ci.pk).update(is_superuser=True)


def test_service_account_cannot_be_a_delegate(ci, petra):
    with pytest.raises(InvalidInput):
        rules.delegate(actor=petra, delegate="svc-ci", ends_at=timezone.now() + dt.timedelta(days=1))


def test_service_account_does_not_become_owner(ada, ci, team, alice, bob):
    team.memberships.filter(user=ci).update(joined_at=timezone.now() - dt.timedelta(days=900))
    deactivation.deactivate(actor=ada, user=alice)
    assert team.memberships.get(user=ci).role == Role.MEMBER
    assert team.memberships.get(user=bob).role == Role.OWNER


# --- actions --------------------------------------------------------------------------------------


def test_workspaces_of_a_service_account_are_charged_to_its_team(ci, alice, bob, local_pool):
    secret = tokens.create_token(actor=alice, user=ci, name="ci", scopes=["workspaces:write"]).secret
    made = Client(headers={"Authorization": f"Bearer {secret}"}).post(
        "/api/v1/workspaces",
        {"template": "jupyterlab", "flavor": "cpu-small"},
        content_type="application/json",
    )
    assert made.status_code == 201, made.content
    assert (made.json()["owner"], made.json()["team"]) == ("svc-ci", "vision")
    workspace = ci.workspaces.get()
    assert workspace_policies.may_operate(alice, workspace)
    assert not workspace_policies.may_operate(bob, workspace)


def test_token_scopes_are_limited_by_the_creating_token(ci, alice):
    narrow, _ = make_token(alice, "tokens:write")
    with pytest.raises(NotAllowed):
        tokens.create_token(actor=alice, user=ci, name="x", scopes=["all"], made_with=narrow)
    made = tokens.create_token(actor=alice, user=ci, name="x", scopes=["tokens:write"], made_with=narrow)
    assert made.token.created_by == alice


@pytest.mark.parametrize("username", ["bob", "charlie", "petra"])
def test_members_cannot_create_service_account_tokens(ci, request, username):
    with pytest.raises(NotAllowed):
        tokens.create_token(actor=request.getfixturevalue(username), user=ci, name="x")


def test_former_owner_cannot_create_or_see_tokens(ci, team, alice, bob):
    services.set_member(actor=alice, team=team, username="bob", role=Role.OWNER)
    token = tokens.create_token(actor=alice, user=ci, name="x").token
    services.set_member(actor=bob, team=team, username="alice", role=Role.MEMBER)
    with pytest.raises(NotAllowed):
        tokens.create_token(actor=alice, user=ci, name="y")
    with pytest.raises(NotAllowed):
        selectors.tokens_of(alice, ci)
    assert list(selectors.tokens_of(bob, ci)) == [token]


# --- deactivation and deletion --------------------------------------------------------------------


def test_service_account_stays_when_its_creator_leaves(ada, ci, alice, bob):
    secret = tokens.create_token(actor=alice, user=ci, name="x").secret
    users.delete(actor=ada, user=alice)
    assert token_lookup.find_valid_token(secret) is not None
    assert service_accounts.describe(actor=bob, user=ci, description="Bob's now").description == "Bob's now"


def test_deactivation_ends_tokens_and_workspaces_of_a_service_account(ci, alice, team):
    secret = tokens.create_token(actor=alice, user=ci, name="x").secret
    WorkspaceFactory(team=team, owner=ci, state=State.STOPPED)
    deactivation.deactivate(actor=alice, user=ci, reason="Leaked")
    ci.refresh_from_db()
    assert token_lookup.find_valid_token(secret) is None
    assert ci.state == AccountState.DEACTIVATED
    with pytest.raises(StateConflict):
        tokens.create_token(actor=alice, user=ci, name="y")
    deactivation.reactivate(actor=alice, user=ci)
    assert token_lookup.find_valid_token(secret) is None
    assert Event.objects.get(kind="user.deactivated").reason == "Leaked"


@pytest.mark.parametrize("username", ["bob", "charlie", "petra"])
def test_users_not_managing_the_team_cannot_end_service_accounts(ci, request, username):
    actor = request.getfixturevalue(username)
    for end in (deactivation.deactivate, deactivation.reactivate, users.delete):
        with pytest.raises(NotAllowed):
            end(actor=actor, user=ci)


def test_owner_cannot_deactivate_users(team, alice, bob, olga):
    for actor in (alice, olga):
        with pytest.raises(NotAllowed):
            deactivation.deactivate(actor=actor, user=bob)


def test_name_of_a_deleted_service_account_stays_reserved(ci, team, alice):
    users.delete(actor=alice, user=ci)
    assert list(selectors.service_accounts_of_team(team)) == []
    with pytest.raises(InvalidInput):
        service_accounts.create(actor=alice, team=team, name="ci")


def test_service_account_with_workspaces_is_not_deleted(ci, team, alice):
    WorkspaceFactory(team=team, owner=ci, state=State.STOPPED)
    with pytest.raises(StateConflict), transaction.atomic():
        users.delete(actor=alice, user=ci)
    assert User.objects.get(pk=ci.pk).deleted_at is None


# --- pages ----------------------------------------------------------------------------------------


def test_list_counts_valid_tokens(ci, alice, team):
    made = [tokens.create_token(actor=alice, user=ci, name=name).token for name in ("a", "b", "c")]
    tokens.revoke_token(actor=alice, token_id=made[0].pk)
    made[1].expires_at = timezone.now() - dt.timedelta(hours=1)
    made[1].last_used_at = timezone.now()
    made[1].save()
    row = selectors.service_accounts_of_team(team).get()
    assert (row.token_count, row.last_used_at) == (1, made[1].last_used_at)


def test_service_account_is_marked_on_every_page(as_user, ada, ci, alice, team, catalog):
    workspace = WorkspaceFactory(team=team, owner=ci, state=State.STOPPED)
    for path in ("/teams/vision/", f"/workspaces/{workspace.pk}/", "/users/", "/tokens/"):
        make_token(ci) if path == "/tokens/" else None
        body = as_user(ada).get(path).content.decode()
        assert "svc-ci" in body and "Service account" in body, path
    assert as_user(ada).get("/users/?kind=service").content.decode().count("svc-ci") > 0
    assert "svc-ci" not in as_user(ada).get("/users/?kind=person").content.decode().split("<tbody>")[1]
    assert as_user(ada).get("/users/svc-ci/")["Location"] == "/teams/vision/service-accounts/svc-ci/"


def test_member_sees_the_account_but_no_tokens(as_user, ci, alice, bob):
    tokens.create_token(actor=alice, user=ci, name="very secret name")
    page = as_user(bob).get("/teams/vision/service-accounts/svc-ci/").content.decode()
    assert "Nightly training" in page and "very secret name" not in page
    assert "very secret name" in as_user(alice).get("/teams/vision/service-accounts/svc-ci/").content.decode()


def test_me_endpoint_identifies_the_service_account(api, ci):
    me = api(ci).get("me").json()
    assert (me["username"], me["kind"], me["roles"]) == ("svc-ci", "service", [])


def test_500_rows_of_tokens_are_shown_50_at_a_time(as_user, olga, ci, django_assert_max_num_queries):
    ApiToken.objects.bulk_create(
        ApiToken(owner=ci, name=f"t{n}", prefix=f"berth_{n}", digest=str(n), scopes=["all"])
        for n in range(500)
    )
    client = as_user(olga)
    with django_assert_max_num_queries(14):
        page = client.get("/tokens/?page=3").content.decode()
    assert "101–150" in page
    assert page.count("svc-ci") < 200
