"""Decisions: permissions, races, effects, and the end of grants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.utils import timezone

from portal.catalog import selectors as catalog
from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Event, Notification
from portal.people.accounts import approvers
from portal.people.accounts.models import Delegation
from portal.quota.ledger.models import LedgerAccount
from portal.quota.limits.models import Grant, MemberCap, Quota
from portal.quota.requests import policies
from portal.quota.requests.models import QuotaRequest, RequestState
from portal.quota.requests.services import grants, requests, rules
from portal.quota.requests.services import requests as services
from portal.quota.reservations.codes import ReservationCode
from portal.scheduling import cycle
from portal.workspaces.lifecycle import State
from portal.workspaces.models import QueueEntry, Workspace
from portal.workspaces.selectors import stages as start_stages
from portal.workspaces.services import start, stop
from tests import sites
from tests.factories import MembershipFactory, UserFactory, create_workspace
from tests.quota_requests.helpers import ask, in_hours
from tests.rows import error_code, error_message
from tests.workspaces.helpers import run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.eight_gpus


def notice_titles(user) -> list[str]:
    return [notice.title for notice in Notification.objects.filter(user=user).order_by("pk")]


# --- effects --------------------------------------------------------------------------------------


def test_approval_creates_a_grant_and_notifies_the_requester(bob, petra, team, eight, sent):
    made = ask(bob, team, amount=2000)
    sent.clear()
    requests.approve(actor=petra, request_id=made.pk, note="Good luck")
    made.refresh_from_db()
    assert (made.state, made.decided_by, made.granted_amount) == (RequestState.APPROVED, petra, 2000)
    grant = Grant.objects.get()
    assert (grant.team, grant.user, grant.amount, grant.ends_at) == (team, None, 2000, made.until)
    assert notice_titles(bob) == ["petra approved 2 × H100 for Vision"]
    event = Event.objects.get(kind="quota.request_approved")
    assert (event.actor, event.data["own"]) == (petra, False)
    assert "control.schedule" in sent.tasks


def test_approval_for_less_is_possible_and_for_more_refused(bob, petra, team, eight):
    made = ask(bob, team, amount=2000)
    for amount in (2001, 0, -1):
        with pytest.raises(InvalidInput, match="at most the requested 2 × H100"):
            requests.approve(actor=petra, request_id=made.pk, amount=amount)
    ends = in_hours(2)
    requests.approve(actor=petra, request_id=made.pk, amount=500, until=ends)
    grant = Grant.objects.get()
    assert (grant.amount, grant.ends_at) == (500, ends)
    assert notice_titles(bob) == ["petra approved 0.5 × H100 (of 2 requested) for Vision"]


def test_approved_cap_applies_to_the_requester_only(bob, alice, petra, team, eight):
    MemberCap.objects.create(team=team, user=None, resource="gpu:h100", amount=1000)
    made = ask(bob, team, kind="member_cap")
    with pytest.raises(NotAllowed):
        requests.approve(actor=petra, request_id=made.pk)
    requests.approve(actor=alice, request_id=made.pk)
    assert Grant.objects.get().user == bob


def test_approved_gpu_hours_are_credited_without_a_grant(bob, petra, team, eight, monkeypatch):
    now, credited = timezone.now(), []
    ledger = SimpleNamespace(credit=lambda **given: credited.append(given))
    monkeypatch.setattr(services, "ledger", ledger)
    LedgerAccount.objects.create(team=team, quota=0, period_started_at=now, charged_until=now)
    made = ask(bob, team, kind="ledger", resource="gpu_hours", amount=36_000_000, until=None)
    requests.approve(actor=petra, request_id=made.pk, amount=3_600_000, note="For now")
    assert credited == [{"actor": petra, "team": team, "amount": 3_600_000, "note": "For now"}]
    assert not Grant.objects.exists()


def test_denial_requires_a_note_for_the_requester(bob, petra, team, eight):
    made = ask(bob, team)
    with pytest.raises(InvalidInput):
        requests.deny(actor=petra, request_id=made.pk, note="  ")
    requests.deny(actor=petra, request_id=made.pk, note="Use two A100")
    made.refresh_from_db()
    assert (made.state, made.decision_note) == (RequestState.DENIED, "Use two A100")
    assert Notification.objects.get(user=bob).body == "Use two A100"
    assert not Grant.objects.exists()


def test_second_decision_is_refused_naming_the_decider(bob, petra, team, eight, clock):
    made = ask(bob, team)
    requests.approve(actor=petra, request_id=made.pk)
    other = UserFactory(username="paul", is_approver=True)
    with pytest.raises(StateConflict, match="petra approved the request a moment ago"):
        requests.deny(actor=other, request_id=made.pk, note="No")
    with pytest.raises(StateConflict, match="petra approved the request"):
        requests.cancel(actor=bob, request_id=made.pk)
    clock.shift(600)
    with pytest.raises(StateConflict, match="petra approved the request 10 minutes ago"):
        requests.approve(actor=other, request_id=made.pk)
    assert Grant.objects.count() == 1


def test_approval_after_the_requested_period_needs_another_end(bob, petra, team, eight, clock):
    made = ask(bob, team, until=in_hours(1))
    clock.shift(3601)
    with pytest.raises(InvalidInput, match="The requested period is over"):
        requests.approve(actor=petra, request_id=made.pk)
    requests.approve(actor=petra, request_id=made.pk, until=in_hours(1))
    assert Grant.objects.get().ends_at == in_hours(1)


def test_only_the_requester_cancels(bob, alice, petra, team, eight):
    made = ask(bob, team)
    for user in (alice, petra):
        with pytest.raises(NotAllowed):
            requests.cancel(actor=user, request_id=made.pk)
    requests.cancel(actor=bob, request_id=made.pk)
    requests.cancel(actor=bob, request_id=made.pk)
    assert Event.objects.filter(kind="quota.request_cancelled").count() == 1


# --- permissions ----------------------------------------------------------------------------------


def test_only_approvers_and_administrators_decide(bob, alice, charlie, olga, petra, team, eight):
    made = ask(bob, team)
    for user in (bob, alice, charlie, olga):
        with pytest.raises(NotAllowed):
            requests.approve(actor=user, request_id=made.pk)
        with pytest.raises(NotAllowed):
            requests.deny(actor=user, request_id=made.pk, note="No")
    requests.approve(actor=UserFactory(is_superuser=True), request_id=made.pk)


def test_own_request_cannot_be_decided(petra, team, eight):
    MembershipFactory(team=team, user=petra)
    made = ask(petra, team)
    with pytest.raises(NotAllowed) as denied:
        requests.approve(actor=petra, request_id=made.pk)
    assert denied.value.reason.code is ReservationCode.NOBODY_DECIDES_OWN
    petra.is_superuser = True
    petra.save()
    second = UserFactory(is_superuser=True)
    with pytest.raises(NotAllowed):
        requests.approve(actor=petra, request_id=made.pk)
    assert made not in QuotaRequest.objects.filter(policies.decidable_by(petra))
    second.is_active = False
    second.save()
    # The only administrator: allowed, with a note in the audit log.
    assert made in QuotaRequest.objects.filter(policies.decidable_by(petra))
    requests.approve(actor=petra, request_id=made.pk)
    event = Event.objects.get(kind="quota.request_approved")
    assert event.data["own"] is True
    assert "a request of their own" in event.message


def test_delegate_decides_during_the_delegation(bob, olga, petra, team, eight, clock):
    first, second, third = (
        ask(bob, team),
        ask(bob, team, resource="gpu"),
        ask(bob, team, resource="workspaces"),
    )
    rules.delegate(actor=petra, delegate="olga", starts_at=in_hours(1), ends_at=in_hours(2))

    def decide(request) -> None:
        requests.approve(actor=olga, request_id=request.pk)

    with pytest.raises(NotAllowed):
        decide(first)
    clock.shift(3600)
    decide(first)
    event = Event.objects.get(kind="quota.request_approved")
    assert event.data["in_place_of"] == "petra"
    assert "as delegate of petra" in event.message
    petra.is_approver = False
    petra.save()
    with pytest.raises(NotAllowed):
        decide(second)
    petra.is_approver = True
    petra.save()
    decide(second)
    clock.shift(3600)
    with pytest.raises(NotAllowed):
        decide(third)


def test_delegate_does_not_decide_requests_of_the_approver(olga, petra, bob, team, eight):
    MembershipFactory(team=team, user=petra)
    rules.delegate(actor=petra, delegate="bob", ends_at=in_hours(2))
    made = ask(petra, team)
    assert "petra asks for" not in " ".join(notice_titles(bob))
    assert made not in QuotaRequest.objects.filter(policies.decidable_by(bob))
    with pytest.raises(NotAllowed) as refused:
        requests.approve(actor=bob, request_id=made.pk)
    assert refused.value.reason.code == ReservationCode.DELEGATE_OF_REQUESTER
    # Another approver's delegation allows it.
    rules.delegate(actor=UserFactory(is_approver=True), delegate="bob", ends_at=in_hours(2))
    assert made in QuotaRequest.objects.filter(policies.decidable_by(bob))
    requests.approve(actor=bob, request_id=made.pk)


def test_delegation_is_revoked_by_its_approver_or_delegate(bob, olga, petra, clock):
    for actor, begins in ((petra, 0), (olga, 0), (petra, 5)):
        made = rules.delegate(actor=petra, delegate="olga", starts_at=in_hours(begins), ends_at=in_hours(9))
        with pytest.raises(StateConflict):
            rules.delegate(actor=petra, delegate="olga", ends_at=in_hours(8))
        with pytest.raises(NotAllowed):
            rules.end_delegation(actor=bob, delegation_id=made.pk)
        clock.shift(1)
        rules.end_delegation(actor=actor, delegation_id=made.pk)
        assert approvers.delegator_of(olga) is None
    assert Delegation.objects.count() == 2


@pytest.mark.parametrize(
    "given",
    [{"delegate": "petra"}, {"delegate": "nobody-has-this"}, {"ends_at": -1}, {"ends_at": 24 * 400}],
)
def test_invalid_delegation_is_refused(olga, petra, given):
    ends = in_hours(given.get("ends_at", 5))
    with pytest.raises(InvalidInput):
        rules.delegate(actor=petra, delegate=given.get("delegate", "olga"), ends_at=ends)


# --- end of grants --------------------------------------------------------------------------------


def test_revoked_grant_does_not_count(bob, alice, olga, petra, team, eight, sent):
    made = ask(bob, team)
    requests.approve(actor=petra, request_id=made.pk)
    grant = Grant.objects.get()
    for user in (bob, alice, olga):
        with pytest.raises(NotAllowed):
            grants.revoke_grant(actor=user, grant_id=grant.pk)
    sent.clear()
    grants.revoke_grant(actor=petra, grant_id=grant.pk, note="A mistake")
    grants.revoke_grant(actor=petra, grant_id=grant.pk)
    assert not Grant.objects.active(in_hours(0)).exists()
    assert "control.schedule" in sent.tasks
    assert Event.objects.filter(kind="quota.grant_revoked").count() == 1
    assert "petra revoked the grant of 1 × H100 to Vision" in notice_titles(alice)


def test_grant_warns_once_a_day_before_and_ends_once(bob, alice, petra, team, eight, clock, sent):
    made = ask(bob, team, until=in_hours(48))
    requests.approve(actor=petra, request_id=made.pk)
    grants.end_due_grants()
    assert not notice_titles(alice)
    clock.shift(24 * 3600)
    for _ in range(2):
        assert grants.end_due_grants() == 0
    assert len(notice_titles(alice)) == 1
    assert "ends" in notice_titles(alice)[0]
    clock.shift(24 * 3600)
    sent.clear()
    assert [grants.end_due_grants(), grants.end_due_grants()] == [1, 0]
    assert notice_titles(alice)[1:] == ["Grant of 1 × H100 to Vision has ended"]
    assert notice_titles(bob)[-1] == "Grant of 1 × H100 to Vision has ended"
    assert "control.schedule" in sent.tasks
    assert Event.objects.filter(kind="quota.grant_ended").count() == 1


def test_short_grant_gives_no_warning(bob, alice, petra, team, eight):
    requests.approve(actor=petra, request_id=ask(bob, team, until=in_hours(8)).pk)
    grants.end_due_grants()
    assert not notice_titles(alice)


# --- waiting workspaces ---------------------------------------------------------------------------


@pytest.fixture
def waiting(bob, team, eight):
    """bob's workspace of one GPU, for which the team has no quota, and its request."""
    Quota.objects.create(team=team, resource="gpu:h100", quota=0, borrowing_limit=0)
    workspace = create_workspace(
        unapproved=True,
        actor=bob,
        team=team,
        template=catalog.all_templates().get(slug="jupyterlab"),
        flavor=catalog.all_flavors().get(slug="gpu-1"),
        name="big",
    )
    assert (workspace.state, error_code(workspace)) == (State.PENDING, "needs_approval")
    return workspace, ask(bob, team, workspace=workspace)


def test_waiting_workspace_starts_on_approval(waiting, petra, sent):
    workspace, made = waiting
    sent.clear()
    stages = {stage.key: stage for stage in start_stages(workspace)}
    assert (stages["approved"].state, stages["admitted"].state) == ("current", "todo")
    requests.approve(actor=petra, request_id=made.pk)
    for message in sent.take("control.schedule"):
        sent.deliver(message)
    run_until_ready(sent, workspace)
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    assert (error_code(workspace), error_message(workspace)) == ("", "")
    stages = {stage.key: stage for stage in start_stages(workspace)}
    assert list(stages)[:3] == ["requested", "approved", "admitted"]
    assert (stages["approved"].by, stages["approved"].ended_at) == ("petra", stages["admitted"].began_at)


def test_a_later_start_has_no_approval(waiting, petra, bob):
    workspace, made = waiting
    requests.approve(actor=petra, request_id=made.pk)
    stop(actor=bob, workspace_id=workspace.pk)
    workspace.refresh_from_db()
    assert workspace.approved_by == "petra"
    Workspace.objects.filter(pk=workspace.pk).update(state=State.STOPPED, lease="", lease_expires_at=None)
    start(actor=bob, workspace_id=workspace.pk)
    workspace.refresh_from_db()
    assert "approved" not in {stage.key for stage in start_stages(workspace)}


@pytest.mark.parametrize("how", ["denied", "cancelled"])
def test_waiting_workspace_is_deleted_after_denial_or_cancellation(waiting, bob, petra, how):
    workspace, made = waiting
    if how == "denied":
        requests.deny(actor=petra, request_id=made.pk, note="No room this week")
    else:
        requests.cancel(actor=bob, request_id=made.pk)
    workspace.refresh_from_db()
    assert workspace.state == State.TERMINATED
    why = Event.objects.get(kind="workspace.not_approved", workspace=workspace).reason
    assert ("No room this week" if how == "denied" else "cancelled") in why


def test_waiting_workspace_stays_after_denial_if_it_can_start(waiting, petra):
    workspace, made = waiting
    QueueEntry.objects.filter(pk=workspace.pk).update(outcome="queued")
    requests.deny(actor=petra, request_id=made.pk, note="No")
    workspace.refresh_from_db()
    assert workspace.state == State.PENDING


def test_request_for_the_workspace_of_another_user_is_refused(waiting, alice, team):
    workspace, _ = waiting
    with pytest.raises(InvalidInput):
        ask(alice, team, workspace=workspace)


def test_approval_reaches_the_cached_snapshot_at_once(waiting, petra, sent):
    workspace, made = waiting
    cycle.run()
    requests.approve(actor=petra, request_id=made.pk)
    cycle.run()
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING
