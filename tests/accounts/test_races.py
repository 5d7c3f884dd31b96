"""Concurrent sign-in, invitation and deactivation."""

from __future__ import annotations

from collections import Counter

import pytest
from django.test import Client

from portal.common.actors import SYSTEM
from portal.common.errors import StateConflict
from portal.common.events.models import Event
from portal.people.accounts import deactivation, links, sessions, users
from portal.people.accounts.links import LinkKind
from portal.people.accounts.models import User, UserSession
from tests.factories import PASSWORD
from tests.races import Meanwhile, at_once

pytestmark = pytest.mark.django_db(transaction=True)


def signing_in(client: Client):
    return lambda: client.post(
        "/sign-in/", {"username": "bob", "password": PASSWORD}, REMOTE_ADDR="192.0.2.7"
    )


def signed_in(client: Client) -> bool:
    return client.get("/account/").status_code == 200


def assert_signed_out(bob: User, *clients: Client) -> None:
    """Check that bob is signed out and stays so after reactivation."""
    assert not bool([client for client in clients if signed_in(client)])
    assert not UserSession.objects.filter(user=bob).exists()
    deactivation.reactivate(actor=SYSTEM, user=bob)
    assert not bool([client for client in clients if signed_in(client)])


def test_invitation_accepted_eight_times_at_once_sets_one_password(ada):
    link = users.invite(actor=ada, username="gina")
    token = link.url.rstrip("/").rsplit("/", 1)[-1]
    assert links.resolve(link.user.pk, token) is not None
    passwords = [f"heron-{number}-vault-97" for number in range(8)]
    outcomes = at_once(
        [
            lambda given=given: users.join(
                user=link.user, kind=LinkKind.INVITATION, link=token, password=given
            )
            for given in passwords
        ]
    )
    assert Counter(type(outcome) for outcome in outcomes) == {User: 1, StateConflict: 7}, outcomes
    gina = User.objects.get(username="gina")
    works = [given for given in passwords if gina.check_password(given)]
    winner = next(place for place, each in enumerate(outcomes) if isinstance(each, User))
    assert works == [passwords[winner]]
    assert Event.objects.filter(kind="user.joined").count() == 1


def test_invitation_form_submitted_twice_at_once_is_accepted_once(ada):
    link = users.invite(actor=ada, username="gina")
    path = "/" + link.url.split("/", 3)[3]
    clients = [Client(), Client()]

    def accept(client: Client, password: str):
        return lambda: client.post(path, {"password": password, "repeated": password}).status_code

    statuses = at_once([accept(clients[0], "heron-vault-97"), accept(clients[1], "otter-cabin-31")])
    assert Counter(statuses) == {302: 1, 409: 1}, statuses
    assert [signed_in(client) for client in clients] == [status == 302 for status in statuses]


def test_account_deactivated_during_invitation_acceptance_stays_inactive(ada, monkeypatch):
    link = users.invite(actor=ada, username="gina")
    token = link.url.rstrip("/").rsplit("/", 1)[-1]
    meanwhile = Meanwhile(
        monkeypatch, users, "_set_password", lambda: deactivation.deactivate(actor=ada, user=link.user)
    )
    users.join(user=link.user, kind=LinkKind.INVITATION, link=token, password="heron-vault-97")
    assert not isinstance(meanwhile.outcome(), Exception)
    assert not User.objects.get(username="gina").is_active


@pytest.mark.parametrize("moment", ["login", "_note"])
def test_deactivation_during_sign_in_leaves_no_session(ada, bob, monkeypatch, moment):
    client = Client()
    meanwhile = Meanwhile(monkeypatch, sessions, moment, lambda: deactivation.deactivate(actor=ada, user=bob))
    signing_in(client)()
    assert not isinstance(meanwhile.outcome(), Exception)
    assert_signed_out(bob, client)


def test_sign_in_during_deactivation_leaves_no_session(ada, bob, monkeypatch):
    """The password is verified before, and the session would be created after all others ended."""
    client = Client()
    meanwhile = Meanwhile(monkeypatch, deactivation, "_end_delegations", signing_in(client))
    deactivation.deactivate(actor=ada, user=bob)
    assert meanwhile.outcome().status_code in (200, 302, 403)
    assert_signed_out(bob, client)
    assert not Event.objects.filter(kind="session.signed_in").exists()


def test_concurrent_sign_ins_and_deactivation_leave_no_session(ada, bob):
    clients = [Client() for _ in range(5)]
    outcomes = at_once(
        [lambda: deactivation.deactivate(actor=ada, user=bob), *(signing_in(client) for client in clients)]
    )
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)], outcomes
    assert_signed_out(bob, *clients)
    # A successful sign-in came first.
    ended = Event.objects.get(kind="user.deactivated")
    assert not Event.objects.filter(kind="session.signed_in", pk__gt=ended.pk).exists()


def test_ending_all_sessions_during_sign_in_leaves_no_session(bob, monkeypatch):
    client = Client()
    meanwhile = Meanwhile(monkeypatch, sessions, "login", lambda: users.end_sessions(actor=bob, user=bob))
    signing_in(client)()
    assert not isinstance(meanwhile.outcome(), Exception)
    assert not signed_in(client)
