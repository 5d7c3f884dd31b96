"""Creating quota requests: valid values, permissions, and approval by rules."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Event, Notification
from portal.people.accounts.models import Team
from portal.quota.ledger.models import LedgerAccount
from portal.quota.limits.models import Grant, MemberCap, SiteLimit
from portal.quota.requests import selectors
from portal.quota.requests.models import QuotaRequest, RequestState
from portal.quota.requests.services import requests, rules
from tests import sites
from tests.factories import MembershipFactory, UserFactory
from tests.quota_requests.helpers import ask, in_hours

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
WORLD = sites.eight_gpus


def test_member_request_notifies_approvers(bob, alice, team, petra, eight):
    made = ask(bob, team, amount=2000, note="The review")
    assert (made.state, made.amount, made.resource) == (RequestState.OPEN, 2000, "gpu:h100")
    notice = Notification.objects.get()
    assert notice.user == petra
    assert notice.title == "bob requests 2 × H100 more for Vision"
    assert notice.url == f"/quotas/requests/{made.pk}/"
    event = Event.objects.get(kind="quota.request_asked")
    assert (event.actor, event.team) == (bob, team)
    assert event.data["request"] == str(made.pk)


def test_delegates_are_notified_during_their_delegation(bob, alice, team, petra, olga, eight):
    rules.delegate(actor=petra, delegate="olga", ends_at=in_hours(5))
    Notification.objects.all().delete()
    ask(bob, team)
    assert set(Notification.objects.values_list("user__username", flat=True)) == {"petra", "olga"}


def test_only_members_can_request(charlie, olga, team, eight):
    for user in (charlie, olga):
        with pytest.raises(NotAllowed):
            ask(user, team)
    assert not QuotaRequest.objects.exists()


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("amount", {"amount": 0}),
        ("amount", {"amount": 8001}),
        ("amount", {"amount": True}),
        ("until", {"until": timezone.now() - dt.timedelta(seconds=1)}),
        ("note", {"note": " \n "}),
        ("resource", {"resource": "gpu_hours"}),
        ("resource", {"resource": "gpu:b200"}),
        ("resource", {"resource": "nonsense"}),
        ("kind", {"kind": "friendship"}),
        ("kind", {"kind": "member_cap"}),  # bob has no cap
        ("kind", {"kind": "ledger", "resource": "gpu_hours", "until": None}),  # there is no budget
    ],
)
def test_invalid_value_is_refused_at_its_field(bob, team, eight, field, given):
    with pytest.raises(InvalidInput) as refused:
        ask(bob, team, **given)
    assert list(refused.value.extra["errors"]) == [field]


def test_amount_above_the_site_capacity_is_refused_with_the_number(bob, team, eight):
    with pytest.raises(InvalidInput, match="The site has only 8 × H100"):
        ask(bob, team, amount=9000)
    assert ask(bob, team, amount=8000)
    SiteLimit.objects.create(resource="gpu:h100", amount=4000)
    with pytest.raises(InvalidInput, match="The site has only 4 × H100"):
        ask(bob, team, amount=5000)


def test_request_for_gpu_hours_has_no_end(bob, team, eight):
    now = timezone.now()
    LedgerAccount.objects.create(team=team, quota=0, period_started_at=now, charged_until=now)
    with pytest.raises(InvalidInput, match="GPU-hours do not expire"):
        ask(bob, team, kind="ledger", resource="gpu_hours", amount=3_600_000)
    assert ask(bob, team, kind="ledger", resource="gpu_hours", amount=3_600_000, until=None)


def test_owners_are_notified_of_a_cap(bob, alice, petra, team, eight):
    MemberCap.objects.create(team=team, user=None, resource="gpu:h100", amount=1000)
    ask(bob, team, kind="member_cap")
    assert Notification.objects.get().user == alice


def test_operator_is_notified_of_the_cap_of_the_only_owner(alice, olga, team, eight):
    MemberCap.objects.create(team=team, user=alice, resource="gpu:h100", amount=1000)
    ask(alice, team, kind="member_cap")
    assert Notification.objects.get().user == olga


def test_same_request_cannot_be_created_twice(bob, alice, team, eight):
    first = ask(bob, team)
    with pytest.raises(StateConflict) as refused:
        ask(bob, team, amount=2000)
    assert refused.value.extra["url"] == f"/quotas/requests/{first.pk}/"
    ask(alice, team)  # allowed for another member
    ask(bob, team, resource="cpu_milli", amount=4000)
    requests.cancel(actor=bob, request_id=first.pk)
    ask(bob, team)


# --- rules ----------------------------------------------------------------------------------------


@pytest.fixture
def rule(petra, eight):
    return rules.create_rule(
        actor=petra, team=None, resource="gpu:h100", amount_at_most=2000, hours_at_most=8
    )


def test_request_within_a_rule_is_approved_at_once_without_notices(bob, team, petra, rule, sent):
    made = ask(bob, team, amount=2000, until=in_hours(8) - dt.timedelta(seconds=5))
    assert (made.state, made.rule, made.decided_by) == (RequestState.APPROVED, rule, None)
    grant = Grant.objects.get()
    assert (grant.amount, grant.ends_at, grant.user) == (2000, made.until, None)
    assert not Notification.objects.exists()
    assert Event.objects.get(kind="quota.request_approved").actor_label == "Berth"
    assert "control.schedule" in sent.tasks


@pytest.mark.parametrize(
    "given",
    [
        {"amount": 2001},
        {"until": None},
        {"until": "late"},
        {"resource": "cpu_milli", "amount": 1000},
    ],
)
def test_request_outside_a_rule_waits_for_an_approver(bob, team, rule, given):
    if given.get("until") == "late":
        given = {"until": in_hours(8.1)}
    made = ask(bob, team, **{"amount": 1000, "until": in_hours(1), **given})
    assert made.state == RequestState.OPEN


def test_rule_limit_includes_earlier_grants_by_rules(bob, alice, team, petra, rule, clock):
    assert ask(bob, team, amount=1500, until=in_hours(2)).state == RequestState.APPROVED
    by_hand = ask(alice, team, amount=1500, until=in_hours(2))
    assert by_hand.state == RequestState.OPEN
    requests.approve(actor=petra, request_id=by_hand.pk)
    # Grants by a person do not count; recreating a rule keeps its usage.
    rules.delete_rule(actor=petra, rule_id=rule.pk)
    rules.create_rule(actor=petra, team=team, resource="gpu:h100", amount_at_most=2000, hours_at_most=8)
    assert ask(bob, team, amount=500, until=in_hours(2)).state == RequestState.APPROVED
    assert ask(alice, team, amount=1, until=in_hours(2)).state == RequestState.OPEN
    clock.shift(2 * 3600 + 1)
    assert ask(bob, team, amount=2000, until=in_hours(2)).state == RequestState.APPROVED


def test_rule_of_another_team_or_disabled_rule_does_not_apply(bob, team, petra, rule, charlie):
    rules.change_rule(actor=petra, rule_id=rule.pk, enabled=False)
    rules.create_rule(
        actor=petra,
        team=Team.objects.get(slug="robots"),
        resource="gpu:h100",
        amount_at_most=9000,
        hours_at_most=99,
    )
    assert ask(bob, team, until=in_hours(1)).state == RequestState.OPEN


def test_own_rule_does_not_approve_own_request_of_an_approver(bob, team, petra, eight, rule):
    MembershipFactory(team=team, user=petra)
    other = UserFactory(is_approver=True)
    assert selectors.immediate_approval(petra, team, "gpu:h100") is None
    first = ask(petra, team, until=in_hours(1))
    assert first.state == RequestState.OPEN
    requests.cancel(actor=petra, request_id=first.pk)
    # A change by another approver does not transfer a rule.
    rules.change_rule(actor=other, rule_id=rule.pk, hours_at_most=9)
    assert ask(petra, team, until=in_hours(1)).state == RequestState.OPEN
    others = rules.create_rule(
        actor=other, team=team, resource="gpu:h100", amount_at_most=2000, hours_at_most=8
    )
    rules.change_rule(actor=petra, rule_id=others.pk, amount_at_most=9000)
    QuotaRequest.objects.all().delete()
    assert ask(petra, team, until=in_hours(1)).state == RequestState.OPEN
    assert ask(bob, team, until=in_hours(1)).state == RequestState.APPROVED


def test_rule_of_another_approver_applies_to_approvers(team, petra, eight):
    MembershipFactory(team=team, user=petra)
    other = UserFactory(is_approver=True)
    rules.create_rule(actor=other, team=team, resource="gpu:h100", amount_at_most=2000, hours_at_most=8)
    assert ask(petra, team, until=in_hours(1)).state == RequestState.APPROVED


def test_only_approvers_create_rules(alice, olga, bob, petra, team, eight):
    rules.delegate(actor=petra, delegate="bob", ends_at=in_hours(2))
    for user in (alice, olga, bob):
        with pytest.raises(NotAllowed):
            rules.create_rule(actor=user, team=None, resource="gpu:h100", amount_at_most=1, hours_at_most=1)
