"""Deletion of the own account: confirmation, refusals and attacks."""

from __future__ import annotations

import re
import threading

import pytest
from django.db import connection
from django.test import Client

from portal.common.errors import NotAllowed, StateConflict
from portal.common.events.models import Event
from portal.people.accounts import service_accounts, users
from portal.people.accounts.models import AccountState, ApiToken, Membership, User
from portal.people.join_requests import services as join_requests
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeDeletion, Workspace
from tests.factories import (
    PASSWORD,
    MembershipFactory,
    TeamFactory,
    UserFactory,
    WorkspaceFactory,
    make_token,
)
from tests.workspaces.helpers import run_until_ready

pytestmark = pytest.mark.django_db
PAGE, REST = "/account/delete/", "/api/v1/me"


@pytest.fixture(autouse=True)
def policy(settings):
    settings.BERTH_ACCOUNT_DELETION = "on"
    return settings


def text_of(answer) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", answer.content.decode()).split())


def account_exists(user: User) -> bool:
    found = User.objects.get(pk=user.pk)
    assert (found.deleted_at is None) == found.is_active
    return found.is_active


# --- the whole process ----------------------------------------------------------------------------


def test_deletion_on_the_page_ends_access_and_reserves_the_username(as_user, bob, team):
    _, secret = make_token(bob)
    other = Client()
    other.post("/sign-in/", {"username": "bob", "password": PASSWORD})
    browser = as_user(bob)
    assert 'href="/account/delete/"' in browser.get("/account/").content.decode()
    words = text_of(browser.get(PAGE))
    for said in ("Delete your account?", "API tokens", "you are signed out here", "with your name"):
        assert said in words
    done = browser.post(PAGE, follow=True)
    assert done.redirect_chain[-1][0] == "/sign-in/"
    assert "Account deleted." in text_of(done)
    bob.refresh_from_db()
    assert (bob.state, bob.email, bob.memberships.count()) == (AccountState.DELETED, "", 0)
    assert browser.get("/").status_code == other.get("/").status_code == 302
    assert Client(headers={"Authorization": f"Bearer {secret}"}).get(REST).status_code == 401
    assert not ApiToken.objects.filter(owner=bob).exists()
    entry = Event.objects.get(kind="user.deleted")
    assert (entry.actor, entry.data["username"]) == (bob, "bob")
    assert Client().post("/sign-in/", {"username": "bob", "password": PASSWORD}).status_code == 200


def test_deletion_over_rest_with_a_session(as_user, bob, team):
    browser = as_user(bob)
    assert browser.delete(REST).status_code == 204
    assert not account_exists(bob)
    assert browser.get(REST).status_code == 401


def test_running_workspaces_stop_and_pending_requests_are_cancelled(
    as_user, bob, team, make, local_pool, sent
):
    workspace = make(bob)
    run_until_ready(sent, workspace)
    TeamFactory(slug="sound", name="Sound")
    asked, _ = join_requests.request_to_join(actor=bob, slug="sound")
    browser = as_user(bob)
    assert f"workspace {workspace.name} stops" in text_of(browser.get(PAGE))
    assert browser.delete(f"{REST}?workspaces=delete").status_code == 204
    workspace.refresh_from_db()
    asked.refresh_from_db()
    assert workspace.state in {State.STOPPING, State.TERMINATING}
    assert asked.state == "cancelled"


@pytest.mark.parametrize("how", ["page", "rest"])
@pytest.mark.parametrize("homes", [True, False])
def test_home_folders_are_kept_or_deleted_as_chosen(as_user, bob, pool, make, settle, how, homes):
    make(bob, "sim-cpu")
    settle()
    browser = as_user(bob)
    words = text_of(browser.get(PAGE))
    assert "Permanently delete 1 home folder with all its files: vision/bob (" in words
    assert "where an operator can find them" in words
    asked = {"workspaces": "delete"} | ({"homes": "delete"} if homes else {})
    if how == "page":
        browser.post(PAGE, asked)
    else:
        assert browser.delete(f"{REST}?{'&'.join(f'{k}={v}' for k, v in asked.items())}").status_code == 204
    assert HomeDeletion.objects.exists() == homes
    kind = "user.homes_delete_asked" if homes else "user.homes_kept"
    assert Event.objects.get(kind=kind).actor == bob


def test_leaving_owner_is_not_replaced_if_others_remain(as_user, alice, bob, team):
    Membership.objects.filter(user=bob, team=team).update(role="owner")
    browser = as_user(alice)
    assert "ownership of Vision, which has another owner" in text_of(browser.get(PAGE))
    assert browser.delete(REST).status_code == 204
    assert [place.user for place in team.memberships.filter(role="owner")] == [bob]


def test_team_without_other_members_is_left_to_operators(as_user, charlie):
    own = TeamFactory(slug="own", name="Own")
    MembershipFactory(team=own, user=charlie, role="owner")
    browser = as_user(charlie)
    assert "ownership of Own, which then has no members; operators manage it" in text_of(browser.get(PAGE))
    assert browser.delete(REST).status_code == 204
    assert own.memberships.count() == 0


# --- refusals -------------------------------------------------------------------------------------


def test_self_deletion_is_off_unless_enabled(as_user, bob, team, policy):
    for value in ("off", "", "request"):
        policy.BERTH_ACCOUNT_DELETION = value
        browser = as_user(bob)
        assert 'href="/account/delete/"' not in browser.get("/account/").content.decode()
        for answer in (browser.get(PAGE), browser.post(PAGE), browser.delete(REST)):
            assert answer.status_code == 403
            assert "Ask an administrator to delete your account." in answer.content.decode()
    assert account_exists(bob)
    with pytest.raises(NotAllowed):
        users.delete(actor=bob, user=bob)


def test_last_administrator_cannot_be_deleted(as_user, ada):
    browser = as_user(ada)
    page = browser.get(PAGE)
    assert "ada is the last administrator who can sign in. Make another" in text_of(page)
    assert "Delete my account" not in text_of(page)
    assert "last administrator" in text_of(browser.post(PAGE, follow=True))
    refused = browser.delete(REST)
    assert (refused.status_code, refused.json()["reason"]["code"]) == (409, "last_administrator")
    assert account_exists(ada)
    UserFactory(username="abe", is_superuser=True)
    assert browser.delete(REST).status_code == 204


@pytest.mark.parametrize("other", ["member", "viewer", "service account"])
def test_only_owner_of_a_team_with_other_members_cannot_leave(as_user, charlie, other):
    own = TeamFactory(slug="own", name="Own")
    MembershipFactory(team=own, user=charlie, role="owner")
    if other == "service account":
        service_accounts.create(actor=charlie, team=own, name="ci")
    else:
        MembershipFactory(team=own, user=UserFactory(username="dan"), role=other)
    browser = as_user(charlie)
    page = text_of(browser.get(PAGE))
    assert "You are the only owner of teams with other members: Own." in page
    assert "Make another member an owner" in page and "Delete my account" not in page
    assert "passes to" not in page
    refused = browser.delete(REST)
    assert (refused.status_code, refused.json()["reason"]["code"]) == (409, "last_owner_leaves")
    assert account_exists(charlie)


def test_administrator_must_hand_over_teams_before_self_deletion(as_user, ada, alice, team):
    UserFactory(username="abe", is_superuser=True)
    MembershipFactory(team=team, user=ada, role="owner")
    team.memberships.filter(user=alice).delete()
    browser = as_user(ada)
    refused = browser.delete("/api/v1/users/ada")
    assert (refused.status_code, refused.json()["reason"]["code"]) == (409, "last_owner_leaves")
    assert account_exists(ada)


def test_tokens_never_delete_their_user(with_token, bob, team, ada):
    UserFactory(username="abe", is_superuser=True)
    for user in (bob, ada):
        refused = with_token(user).delete(REST)
        assert (refused.status_code, refused.json()["reason"]["code"]) == (403, "own_account_by_token")
        assert account_exists(user)


def test_service_accounts_do_not_delete_themselves(alice, team):
    account = service_accounts.create(actor=alice, team=team, name="ci")
    _, secret = make_token(account)
    answer = Client(headers={"Authorization": f"Bearer {secret}"}).delete(REST)
    assert answer.status_code == 403
    with pytest.raises(NotAllowed):
        users.delete(actor=account, user=account)
    assert account_exists(account)


def test_users_cannot_delete_other_accounts(as_user, bob, alice, team):
    with pytest.raises(NotAllowed):
        users.delete(actor=bob, user=alice)
    browser = as_user(bob)
    assert browser.delete(f"{REST}?username=alice").status_code == 400
    browser.post(PAGE, {"username": "alice", "user": str(alice.pk)})
    assert account_exists(alice) and not account_exists(bob)


@pytest.mark.parametrize("asked", ["homes=keep", "homes=", "workspaces=yes", "homes=delete%00"])
def test_unknown_option_is_400_and_deletes_nothing(as_user, bob, team, asked):
    assert as_user(bob).delete(f"{REST}?{asked}").status_code == 400
    assert account_exists(bob)


def test_cross_site_request_is_refused(bob, team):
    client = Client(enforce_csrf_checks=True)
    client.force_login(bob, backend="django.contrib.auth.backends.ModelBackend")
    assert client.post(PAGE).status_code == 403
    assert client.delete(REST).status_code == 403
    assert client.get(PAGE).status_code == 200
    assert account_exists(bob)


def test_old_session_must_confirm_the_password(as_user, bob, team, clock):
    browser = as_user(bob)
    clock.shift(3600)
    asked = browser.post(PAGE, {"homes": "delete"})
    assert (asked.status_code, account_exists(bob)) == (403, True)
    assert 'name="homes" value="delete"' in asked.content.decode()
    refused = browser.delete(REST)
    assert (refused.status_code, refused.json()["code"]) == (403, "reauthentication_required")
    assert browser.post(PAGE, {"confirm_password": "wrong"}).status_code == 403
    assert account_exists(bob)
    assert browser.post(PAGE, {"confirm_password": PASSWORD}).status_code == 302
    assert not account_exists(bob)


def test_second_deletion_is_refused_without_changes(ada, bob, team):
    users.delete(actor=bob, user=bob)
    with pytest.raises(NotAllowed):
        users.delete(actor=bob, user=bob)
    users.delete(actor=ada, user=bob)
    assert Event.objects.filter(kind="user.deleted").count() == 1


def test_failed_deletion_changes_nothing(as_user, bob, team, monkeypatch):
    WorkspaceFactory(owner=bob, team=team, name="paper", state=State.STOPPED)

    def fail(**_: object) -> None:
        raise RuntimeError("the power is out")

    monkeypatch.setattr("portal.people.accounts.mfa.services.remove_all", fail)
    browser = as_user(bob)
    browser.raise_request_exception = False
    assert browser.delete(f"{REST}?workspaces=delete").status_code == 500
    assert account_exists(bob)
    assert Workspace.objects.get().state == State.STOPPED
    assert browser.get(REST).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_two_owners_at_once_cannot_both_leave():
    team = TeamFactory(slug="own", name="Own")
    pair = [UserFactory(username=name) for name in ("one", "two")]
    for user in pair:
        MembershipFactory(team=team, user=user, role="owner")
    MembershipFactory(team=team, user=UserFactory(username="dan"), role="member")
    barrier = threading.Barrier(2)
    refused: list[Exception] = []

    def leave(user: User) -> None:
        try:
            barrier.wait(10)
            users.delete(actor=user, user=user)
        except StateConflict as error:
            refused.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=leave, args=(user,)) for user in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(refused) == 1
    assert team.memberships.filter(role="owner", user__is_active=True).count() == 1
