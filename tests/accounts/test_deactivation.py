"""Deactivated accounts: what ends, and what reactivation restores."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import NotAllowed, StateConflict
from portal.common.events import live
from portal.common.events.models import Event, Notification
from portal.people.accounts import approvers, deactivation, links, services, token_lookup, users
from portal.people.accounts.links import LinkKind
from portal.people.accounts.models import AccountState, Delegation, User
from portal.quota.requests.models import RequestState
from portal.quota.requests.services import requests
from portal.quota.reservations.models import Reservation, ReservationState
from portal.workspaces import services as workspaces
from portal.workspaces.gateway import publishing, tickets, workspace_views
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
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
SOON = timedelta(hours=1)


@pytest.fixture
def gateway_messages(monkeypatch) -> list[tuple[str, object]]:
    """Messages sent to the gateway and the event streams, in order."""
    calls: list[tuple[str, object]] = []
    monkeypatch.setattr(live, "connection", lambda: "store")
    monkeypatch.setattr(live, "publish", lambda *_: None)
    monkeypatch.setattr(live, "publish_feed", lambda: None)
    monkeypatch.setattr(live, "publish_to", lambda *_: None)
    monkeypatch.setattr(live, "publish_account", lambda user_id: calls.append(("streams end", user_id)))
    monkeypatch.setattr(tickets, "revoke_user", lambda _, user_id: calls.append(("tickets end", user_id)))
    monkeypatch.setattr(
        workspace_views, "store_view", lambda _, view: calls.append(("may enter", set(view.user_ids)))
    )
    monkeypatch.setattr(
        "portal.people.accounts.changes._announce", lambda: calls.append(("tokens end", None))
    )
    return calls


def reloaded(user: User) -> User:
    return User.objects.get(pk=user.pk)


# --- effects --------------------------------------------------------------------------------------


def test_sessions_tokens_and_links_end_at_once_and_reactivation_does_not_restore_them(ada, bob):
    browser = Client()
    browser.post("/sign-in/", {"username": "bob", "password": PASSWORD})
    assert browser.get("/api/v1/me").status_code == 200
    _, secret = make_token(bob)
    stale = dict(browser.cookies)
    link = links.make(bob, LinkKind.FORGOTTEN).split("/", 3)[3]

    deactivation.deactivate(actor=ada, user=bob)
    for _ in range(2):  # before and after reactivation
        assert browser.get("/api/v1/me").status_code == 401
        other = Client()
        other.cookies.update(stale)
        assert other.get("/").status_code == 302
        assert token_lookup.find_valid_token(secret) is None
        assert Client().get(f"/{link}").status_code == 409
        deactivation.reactivate(actor=ada, user=bob)
    assert Client().post("/sign-in/", {"username": "bob", "password": PASSWORD}).status_code == 302


def test_pending_invitation_ends_and_reactivation_needs_a_new_one(ada):
    link = users.invite(actor=ada, username="gina")
    path = "/" + link.url.split("/", 3)[3]
    deactivation.deactivate(actor=ada, user=link.user)
    assert Client().get(path).status_code == 409
    deactivation.reactivate(actor=ada, user=link.user)
    assert Client().get(path).status_code == 409
    assert reloaded(link.user).state == AccountState.INVITED


def test_gateway_is_notified_and_blocks_the_account(ada, bob, make, local_pool, sent, gateway_messages):
    workspace = make(bob)
    run_until_ready(sent, workspace, "http://127.0.0.1:18001")
    gateway_messages.clear()
    deactivation.deactivate(actor=ada, user=bob)
    assert ("tickets end", str(bob.pk)) in gateway_messages
    assert ("streams end", bob.pk) in gateway_messages
    assert ("tokens end", None) in gateway_messages
    # Also users who got a ticket at the same moment: views are removed last.
    assert [value for what, value in gateway_messages if what == "may enter"][-1] == set()
    workspace.refresh_from_db()
    assert publishing.view_of(workspace).user_ids == frozenset()
    with pytest.raises(NotAllowed):
        publishing.issue_ticket(actor=reloaded(bob), workspace=workspace)


def test_workspaces_stop_and_their_files_stay(ada, bob, team, make, local_pool, sent):
    running = make(bob, name="running")
    run_until_ready(sent, running)
    WorkspaceFactory(owner=bob, team=team, name="waiting", state=State.STOPPED, desired_state="running")
    deactivation.deactivate(actor=ada, user=bob)
    assert [command.op for command in sent.commands if command.ref.workspace_id == str(running.pk)] == [
        "stop"
    ]
    left = {row.name: row for row in Workspace.objects.filter(owner=bob)}
    assert (left["running"].state, left["running"].desired_state) == (State.STOPPING, "stopped")
    # Preempted workspaces do not start again either.
    assert (left["waiting"].state, left["waiting"].desired_state) == (State.STOPPED, "stopped")
    deactivation.reactivate(actor=ada, user=bob)
    assert not Workspace.objects.filter(owner=bob, desired_state="running").exists()


def test_requests_are_cancelled_and_booked_reservations_pass_to_an_owner(ada, alice, bob, team, eight):
    asked = requests.create_request(
        actor=bob, team=team, kind="quota", resource="gpu:h100", amount=1000, until=None, note="More"
    )
    now = timezone.now()
    booked, wished = (
        Reservation.objects.create(
            team=team,
            title="Paper",
            amounts={"gpu": 1000},
            starts_at=now + SOON,
            ends_at=now + 2 * SOON,
            state=state,
            created_by=bob,
        )
        for state in (ReservationState.BOOKED, ReservationState.REQUESTED)
    )
    deactivation.deactivate(actor=ada, user=bob)
    for row in (asked, booked, wished):
        row.refresh_from_db()
    assert asked.state == RequestState.CANCELLED
    assert wished.state == ReservationState.CANCELLED
    assert (booked.state, booked.created_by) == (ReservationState.BOOKED, alice)


def test_reactivation_does_not_restore_delegations(ada, bob, petra):
    now = timezone.now()
    Delegation.objects.create(approver=petra, delegate=bob, starts_at=now - SOON, ends_at=now + SOON)
    Delegation.objects.create(approver=petra, delegate=bob, starts_at=now + SOON, ends_at=now + 2 * SOON)
    assert approvers.may_decide_all(bob)
    deactivation.deactivate(actor=ada, user=bob)
    deactivation.reactivate(actor=ada, user=bob)
    assert not approvers.may_decide_all(reloaded(bob))
    assert Delegation.objects.count() == 1


# --- teams ----------------------------------------------------------------------------------------


def roles(team) -> dict[str, str]:
    return dict(team.memberships.values_list("user__username", "role"))


def test_longest_serving_member_replaces_the_only_owner(ada, team, alice, bob):
    MembershipFactory(team=team, user=UserFactory(username="carla"))
    deactivation.deactivate(actor=ada, user=alice)
    assert roles(team) == {"alice": "member", "bob": "owner", "carla": "member"}
    assert Notification.objects.get(user=bob).title == "You are now the owner of Vision"
    deactivation.reactivate(actor=ada, user=alice)
    assert roles(team)["alice"] == "member"


def test_another_owner_remains_and_a_team_without_active_members_passes_to_the_actor(ada, team, alice, bob):
    services.set_member(actor=SYSTEM, team=team, username="bob", role="owner")
    own = MembershipFactory(team=TeamFactory(slug="own"), user=alice, role="owner").team
    inactive = UserFactory(username="gone", is_active=False)
    MembershipFactory(team=own, user=inactive)
    deactivation.deactivate(actor=ada, user=alice)
    assert roles(team) == {"alice": "member", "bob": "owner"}
    assert roles(own) == {"alice": "member", "gone": "member", "ada": "owner"}


# --- permissions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("username", ["alice", "bob", "olga"])
def test_only_administrators_deactivate_and_reactivate(request, team, bob, username):
    for act in (deactivation.deactivate, deactivation.reactivate):
        with pytest.raises(NotAllowed):
            act(actor=request.getfixturevalue(username), user=bob)
    assert reloaded(bob).is_active


def test_last_administrator_cannot_deactivate_themselves(ada, with_token):
    with pytest.raises(StateConflict, match="last administrator who can sign in"):
        deactivation.deactivate(actor=ada, user=ada)
    answer = with_token(ada).post("/api/v1/users/ada/deactivate", {}, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (409, "last_administrator")
    assert answer.json()["next_action"]
    other = UserFactory(username="other", is_superuser=True)
    deactivation.deactivate(actor=ada, user=ada)
    with pytest.raises(StateConflict):
        deactivation.deactivate(actor=other, user=other)


def test_deactivating_twice_succeeds_with_one_audit_entry(ada, bob):
    for _ in range(2):
        deactivation.deactivate(actor=ada, user=bob, reason="left the company")
    entry = Event.objects.get(kind="user.deactivated")
    assert (entry.actor, entry.reason, entry.data["username"]) == (ada, "left the company", "bob")
    for _ in range(2):
        deactivation.reactivate(actor=ada, user=bob)
    assert Event.objects.filter(kind="user.reactivated").count() == 1


def test_deleted_account_cannot_be_reactivated(ada, bob):
    users.delete(actor=ada, user=bob)
    with pytest.raises(StateConflict):
        deactivation.reactivate(actor=ada, user=bob)


def test_failed_deactivation_leaves_the_account_active(ada, bob, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise StateConflict(deactivation.Reason(deactivation.AccountCode.USER_DELETED, {"username": "x"}))

    monkeypatch.setattr(deactivation, "revoke_tokens", broken)
    with pytest.raises(StateConflict):
        deactivation.deactivate(actor=ada, user=bob)
    assert reloaded(bob).is_active
    assert not Event.objects.filter(kind="user.deactivated").exists()


def test_starts_are_refused_for_an_account_deactivated_after_it_was_read(
    ada, bob, olga, team, make, local_pool
):
    """A request admitted earlier still holds the user as active."""
    stopped = WorkspaceFactory(owner=bob, team=team, state=State.STOPPED, desired_state="stopped")
    deactivation.deactivate(actor=ada, user=bob)
    assert bob.is_active  # the stale row of that request
    with pytest.raises(StateConflict, match="deactivated"):
        make(bob)
    for actor in (bob, olga):
        with pytest.raises(StateConflict, match="deactivated"):
            workspaces.start(actor=actor, workspace_id=stopped.pk)
    assert not Workspace.objects.exclude(pk=stopped.pk).exists()


def test_workspaces_of_other_owners_are_unchanged(ada, alice, bob, team):
    hers = WorkspaceFactory(owner=alice, team=team, state=State.PENDING)
    deactivation.deactivate(actor=ada, user=bob)
    hers.refresh_from_db()
    assert hers.desired_state == "running"


@pytest.mark.django_db(transaction=True)
def test_two_administrators_at_once_cannot_deactivate_each_other():
    pair = [UserFactory(username=name, is_superuser=True) for name in ("ada", "abe")]
    barrier = threading.Barrier(2)
    refused: list[Exception] = []

    def act(actor: User, user: User) -> None:
        try:
            barrier.wait(10)
            deactivation.deactivate(actor=actor, user=user)
        except StateConflict as error:
            refused.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=act, args=(one, other)) for one, other in (pair, pair[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(refused) == 1
    assert User.objects.filter(is_superuser=True, is_active=True).count() == 1
