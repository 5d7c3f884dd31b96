"""Concurrent decisions of one request to join."""

from __future__ import annotations

from collections import Counter

import pytest

from portal.common.actors import SYSTEM
from portal.common.errors import StateConflict
from portal.common.events.models import Event
from portal.people.accounts import deactivation
from portal.people.accounts.models import Membership, Role
from portal.people.join_requests import services
from portal.people.join_requests.codes import JoinCode
from portal.people.join_requests.models import JoinRequest, JoinState
from tests.factories import MembershipFactory, UserFactory
from tests.races import Meanwhile, at_once

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def fay():
    return UserFactory(username="fay")


@pytest.fixture
def owners(team, alice):
    return [
        alice,
        *(MembershipFactory(team=team, role=Role.OWNER, user=UserFactory()).user for _ in range(5)),
    ]


@pytest.fixture
def join_request(team, fay) -> JoinRequest:
    return services.request_to_join(actor=fay, slug="vision", text="We share the corpus")[0]


def test_approvals_of_six_owners_at_once_add_the_requester_once(join_request, owners, team, fay):
    outcomes = at_once(
        [lambda owner=owner: services.approve(actor=owner, request_id=join_request.pk) for owner in owners]
    )
    assert Counter(type(outcome) for outcome in outcomes) == {JoinRequest: 1, StateConflict: 5}, outcomes
    winner = owners[next(place for place, each in enumerate(outcomes) if isinstance(each, JoinRequest))]
    for each in outcomes:
        if isinstance(each, StateConflict):
            assert each.reason.code is JoinCode.JOIN_APPROVED_ALREADY
            assert each.reason.params == {"who": winner.username}
    assert Membership.objects.get(team=team, user=fay).role == Role.MEMBER
    join_request.refresh_from_db()
    assert (join_request.state, join_request.decided_by) == (JoinState.APPROVED, winner)
    assert Event.objects.filter(kind="team.join_approved").count() == 1


def test_approval_and_denial_at_once_have_one_outcome(join_request, owners, team, fay):
    approve = [
        lambda owner=owner: services.approve(actor=owner, request_id=join_request.pk) for owner in owners[:3]
    ]
    deny = [
        lambda owner=owner: services.deny(actor=owner, request_id=join_request.pk, note="Full")
        for owner in owners[3:]
    ]
    outcomes = at_once([*approve, *deny])
    assert Counter(type(outcome) for outcome in outcomes) == {JoinRequest: 1, StateConflict: 5}, outcomes
    join_request.refresh_from_db()
    taken = Membership.objects.filter(team=team, user=fay).exists()
    assert taken == (join_request.state == JoinState.APPROVED)


def test_cancellation_during_an_approval(join_request, team, fay, alice, monkeypatch):
    meanwhile = Meanwhile(
        monkeypatch, services, "_close", lambda: services.cancel(actor=fay, request_id=join_request.pk)
    )
    services.approve(actor=alice, request_id=join_request.pk)
    assert isinstance(meanwhile.outcome(), StateConflict)
    assert Membership.objects.filter(team=team, user=fay).exists()


def test_deactivation_of_the_requester_during_an_approval(join_request, team, fay, alice, monkeypatch):
    meanwhile = Meanwhile(
        monkeypatch,
        services.accounts,
        "set_member",
        lambda: deactivation.deactivate(actor=SYSTEM, user=fay),
    )
    services.approve(actor=alice, request_id=join_request.pk)
    assert not isinstance(meanwhile.outcome(), Exception), meanwhile.outcome()
    join_request.refresh_from_db()
    assert join_request.state in (JoinState.APPROVED, JoinState.CANCELLED)
    fay.refresh_from_db()
    assert not fay.is_active
