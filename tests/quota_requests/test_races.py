"""Concurrent requests and decisions with separate connections, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections import Counter

import pytest

from portal.common.errors import StateConflict
from portal.common.events.models import Event, Notification
from portal.quota.limits.models import Grant
from portal.quota.requests.models import QuotaRequest, RequestState
from portal.quota.requests.services import grants, requests, rules
from tests.factories import MembershipFactory, UserFactory
from tests.quota_requests.helpers import ask, in_hours
from tests.races import at_once

pytestmark = pytest.mark.django_db(transaction=True)


def test_two_approvers_at_once_make_one_grant(bob, petra, team, eight, sent):
    paul = UserFactory(username="paul", is_approver=True)
    for _ in range(3):
        made = ask(bob, team)
        outcome = at_once(
            [
                lambda made=made: requests.approve(actor=petra, request_id=made.pk),
                lambda made=made: requests.approve(actor=paul, request_id=made.pk, amount=500),
                lambda made=made: requests.deny(actor=paul, request_id=made.pk, note="No"),
                lambda made=made: requests.cancel(actor=bob, request_id=made.pk),
            ]
        )
        assert Counter(type(item) for item in outcome) == {QuotaRequest: 1, StateConflict: 3}, outcome
        made.refresh_from_db()
        winner = made.decided_by.username
        for item in outcome:
            if isinstance(item, StateConflict):
                assert item.message.startswith(winner)
                assert item.message.endswith("a moment ago.")
        assert Grant.objects.filter(request=made).count() == (made.state == RequestState.APPROVED)


def test_two_members_at_once_do_not_exceed_a_rule(petra, team, eight, sent):
    rules.create_rule(actor=petra, team=None, resource="gpu:h100", amount_at_most=2000, hours_at_most=24)
    members = [MembershipFactory(team=team, user=UserFactory()).user for _ in range(5)]
    until = in_hours(2)
    outcome = at_once([lambda user=user: ask(user, team, until=until) for user in members])
    assert not [item for item in outcome if isinstance(item, Exception)], outcome
    assert Counter(item.state for item in outcome) == {"approved": 2, "open": 3}
    assert Grant.objects.count() == 2


def test_concurrent_requests_of_one_member_make_one(bob, team, eight, sent):
    outcome = at_once([lambda: ask(bob, team)] * 4)
    assert Counter(type(item) for item in outcome) == {QuotaRequest: 1, StateConflict: 3}, outcome


def test_end_of_a_grant_is_reported_once(bob, alice, petra, team, eight, sent):
    requests.approve(actor=petra, request_id=ask(bob, team).pk)
    Grant.objects.update(ends_at=in_hours(-1))
    Notification.objects.all().delete()
    outcome = at_once([grants.end_due_grants] * 4)
    assert sorted(outcome) == [0, 0, 0, 1]
    assert Event.objects.filter(kind="quota.grant_ended").count() == 1
    assert Notification.objects.filter(user=alice).count() == 1
