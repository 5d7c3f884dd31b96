"""Requests to join a team and their decisions, as services; and misuse."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings as django_settings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event, Notification
from portal.people.accounts import deactivation, users
from portal.people.accounts import services as accounts
from portal.people.accounts.models import Membership, Role, Team
from portal.people.join_requests import policies, selectors, services
from portal.people.join_requests.models import MAX_MESSAGE, JoinRequest, JoinState
from tests import sites
from tests.factories import MembershipFactory, TeamFactory, UserFactory

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
WORLD = sites.people


@pytest.fixture
def join_request(team, fay):
    return services.request_to_join(actor=fay, slug="vision", text="I train the new detector")[0]


def notices(user) -> list[str]:
    return list(Notification.objects.filter(user=user).order_by("id").values_list("kind", flat=True))


def kinds(request: JoinRequest) -> list[str]:
    found = Event.objects.filter(kind__startswith="team.join_", data__join_request=str(request.pk))
    return list(found.order_by("id").values_list("kind", flat=True))


# --- requests -------------------------------------------------------------------------------------


def test_owners_but_not_members_are_notified(team, fay, alice, bob, olga):
    asked, new = services.request_to_join(actor=fay, slug="vision", text=" I train \x00the new detector ")
    assert new and asked.state == JoinState.OPEN
    assert asked.message == "I train the new detector"
    notice = Notification.objects.get(user=alice)
    assert (notice.kind, notice.url) == ("team.join_asked", services.url_of(asked))
    assert not notices(bob) and not notices(olga)
    entry = Event.objects.get(kind="team.join_asked")
    assert (entry.actor, entry.team, entry.reason) == (fay, team, "I train the new detector")


def test_operators_are_notified_for_teams_without_active_owner(team, fay, alice, olga):
    alice.is_active = False
    alice.save()
    asked, _ = services.request_to_join(actor=fay, slug="vision")
    assert notices(olga) == ["team.join_asked"]
    assert list(selectors.requests_to_decide(olga)) == [asked]


def test_requesting_twice_creates_one_request(join_request, fay, alice):
    again, new = services.request_to_join(actor=fay, slug="vision", text="Another message")
    assert (again.pk, new, again.message) == (join_request.pk, False, "I train the new detector")
    assert notices(alice) == ["team.join_asked"]


def test_member_cannot_request_to_join(team, bob):
    with pytest.raises(StateConflict) as refused:
        services.request_to_join(actor=bob, slug="vision")
    assert refused.value.code == "already_in_team"


def test_unlisted_team_is_refused_like_a_missing_one(team, fay, settings):
    settings.BERTH_LIST_TEAMS = False
    said = []
    for slug in ("vision", "nowhere"):
        with pytest.raises(NotFound) as refused:
            services.request_to_join(actor=fay, slug=slug)
        said.append(refused.value.message.replace(slug, "…"))
    assert said[0] == said[1]
    assert not selectors.joinable_teams(fay).exists()


def test_auditor_sees_and_joins_no_team(team):
    una = UserFactory(username="una", is_auditor=True)
    assert not selectors.joinable_teams(una).exists()
    with pytest.raises(StateConflict):
        services.request_to_join(actor=una, slug="vision")


def test_request_can_be_approved_as_viewer(join_request, fay, alice, team, as_user):
    services.approve(actor=alice, request_id=join_request.pk, role=Role.VIEWER)
    part = as_user(fay).get("/", headers={"HX-Request": "true", "HX-Target": "no-team"}).content.decode()
    assert "View team" in part and "New workspace" not in part


def test_message_length_is_limited(team, fay):
    with pytest.raises(InvalidInput) as refused:
        services.request_to_join(actor=fay, slug="vision", text="x" * (MAX_MESSAGE + 1))
    assert "message" in refused.value.extra["errors"]


def test_deactivated_user_cannot_request(team, fay):
    """Also with a row that was read before."""
    deactivation.deactivate(actor=SYSTEM, user=fay)
    fay.is_active = True
    with pytest.raises(NotAllowed):
        services.request_to_join(actor=fay, slug="vision")
    assert not JoinRequest.objects.exists()


def test_open_and_daily_requests_per_user_are_limited(fay):
    for number in range(services.MAX_OPEN):
        services.request_to_join(actor=fay, slug=TeamFactory(slug=f"t-{number}").slug)
    TeamFactory(slug="more")
    with pytest.raises(services.TooManyJoinRequests):
        services.request_to_join(actor=fay, slug="more")
    # Cancelling and requesting again notifies the owners each time.
    for mine in JoinRequest.objects.filter(state="open"):
        services.cancel(actor=fay, request_id=mine.pk)
    for _ in range(services.MAX_A_DAY - services.MAX_OPEN):
        again, _new = services.request_to_join(actor=fay, slug="more")
        services.cancel(actor=fay, request_id=again.pk)
    with pytest.raises(services.TooManyJoinRequests):
        services.request_to_join(actor=fay, slug=TeamFactory(slug="last").slug)
    JoinRequest.objects.update(created_at=timezone.now() - timedelta(days=2))
    assert services.request_to_join(actor=fay, slug="last")[1]


# --- decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.MEMBER, Role.OWNER])
def test_owner_approves_a_request(join_request, fay, alice, team, role):
    services.approve(actor=alice, request_id=join_request.pk, role=role)
    join_request.refresh_from_db()
    assert (join_request.state, join_request.role, join_request.decided_by) == ("approved", role, alice)
    assert team.memberships.get(user=fay).role == role
    assert notices(fay) == ["team.join_approved"]
    assert kinds(join_request) == ["team.join_asked", "team.join_approved"]
    assert not selectors.requests_to_decide(alice).exists()


def test_owner_denies_with_a_note(join_request, fay, alice, team):
    with pytest.raises(InvalidInput):
        services.deny(actor=alice, request_id=join_request.pk, note="  ")
    services.deny(actor=alice, request_id=join_request.pk, note="We are full")
    assert not team.memberships.filter(user=fay).exists()
    assert Notification.objects.get(user=fay).body == "We are full"


def test_denied_user_can_request_again_later(join_request, fay, alice, clock):
    services.deny(actor=alice, request_id=join_request.pk, note="We are full")
    with pytest.raises(StateConflict) as refused:
        services.request_to_join(actor=fay, slug="vision")
    assert refused.value.code == "ask_to_join_later"
    clock.shift(django_settings.BERTH_JOIN_AGAIN_DAYS * 86400 + 1)
    assert services.request_to_join(actor=fay, slug="vision")[1]


def test_second_decision_names_the_first_decider(join_request, alice, team):
    amy = MembershipFactory(team=team, role=Role.OWNER).user
    services.deny(actor=amy, request_id=join_request.pk, note="No")
    with pytest.raises(StateConflict) as late:
        services.approve(actor=alice, request_id=join_request.pk)
    assert late.value.code == "decided_already" and amy.username in late.value.message
    assert not team.memberships.filter(user=join_request.requester).exists()


def test_unknown_role_is_refused(join_request, alice):
    with pytest.raises(InvalidInput):
        services.approve(actor=alice, request_id=join_request.pk, role="king")


@pytest.mark.parametrize("username", ["bob", "charlie", "petra"])
def test_request_is_hidden_from_members_other_owners_and_approvers(request, join_request, username):
    actor = request.getfixturevalue(username)
    for act in (
        lambda: selectors.request_by_id(actor, join_request.pk),
        lambda: services.approve(actor=actor, request_id=join_request.pk),
        lambda: services.deny(actor=actor, request_id=join_request.pk, note="x"),
        lambda: services.cancel(actor=actor, request_id=join_request.pk),
    ):
        with pytest.raises(NotFound):
            act()
    assert JoinRequest.objects.get().state == "open"


def test_users_cannot_approve_their_own_join_request(team, charlie, olga):
    """Neither an owner of another team nor an operator, who may add members to any team."""
    for actor in (charlie, olga):
        own, _ = services.request_to_join(actor=actor, slug="vision")
        with pytest.raises(NotAllowed):
            services.approve(actor=actor, request_id=own.pk)
        assert own not in selectors.requests_to_decide(actor)
    assert set(team.memberships.values_list("user__username", flat=True)) == {"alice", "bob"}


def test_operator_is_not_notified_of_the_own_request(olga):
    other = UserFactory(username="otto", is_operator=True)
    lone = TeamFactory(slug="lone")
    own, _ = services.request_to_join(actor=olga, slug=lone.slug)
    assert not notices(olga) and notices(other) == ["team.join_asked"]
    assert (
        list(selectors.requests_to_decide(other)) == [own] and not selectors.requests_to_decide(olga).exists()
    )


def test_operators_can_decide_but_have_no_inbox_item(join_request, olga, alice):
    assert not selectors.requests_to_decide(olga).exists()
    services.approve(actor=olga, request_id=join_request.pk)
    assert Membership.objects.filter(user=join_request.requester).exists()


# --- other ends -----------------------------------------------------------------------------------


def test_requester_can_cancel_twice_and_request_again(join_request, fay, alice):
    for _ in range(2):
        services.cancel(actor=fay, request_id=join_request.pk)
    assert kinds(join_request) == ["team.join_asked", "team.join_cancelled"]
    with pytest.raises(StateConflict):
        services.approve(actor=alice, request_id=join_request.pk)
    assert services.request_to_join(actor=fay, slug="vision")[1]


def test_only_the_requester_cancels(join_request, alice):
    with pytest.raises(NotAllowed):
        services.cancel(actor=alice, request_id=join_request.pk)


def test_deactivating_the_requester_cancels_the_request(join_request, fay, alice):
    deactivation.deactivate(actor=SYSTEM, user=fay)
    join_request.refresh_from_db()
    assert join_request.state == "cancelled"
    with pytest.raises(StateConflict):
        services.approve(actor=alice, request_id=join_request.pk)


def test_deleting_the_team_cancels_the_request_and_notifies_the_requester(join_request, fay):
    Team.objects.get(slug="vision").delete()
    join_request.refresh_from_db()
    assert (join_request.state, join_request.team, join_request.team_name) == ("cancelled", None, "Vision")
    assert notices(fay) == ["team.join_cancelled"]
    assert selectors.request_by_id(fay, join_request.pk) == join_request


def test_adding_the_requester_approves_the_request(join_request, fay, alice, team):
    accounts.set_member(actor=alice, team=team, username="fay", role=Role.MEMBER)
    join_request.refresh_from_db()
    assert (join_request.state, join_request.decided_by, join_request.role) == ("approved", alice, "member")


def test_request_expires(join_request, fay, clock):
    clock.shift(django_settings.BERTH_JOIN_REQUEST_DAYS * 86400 - 5)
    assert services.expire_due() == 0
    clock.shift(10)
    assert services.expire_due() == 1
    join_request.refresh_from_db()
    assert join_request.state == "expired" and notices(fay) == ["team.join_expired"]
    assert services.expire_due() == 0


def test_expired_open_request_does_not_block_a_new_one(join_request, fay, clock):
    clock.shift(django_settings.BERTH_JOIN_REQUEST_DAYS * 86400 + 1)
    assert services.request_to_join(actor=fay, slug="vision")[1]
    join_request.refresh_from_db()
    assert join_request.state == "expired"


# --- teams ----------------------------------------------------------------------------------------


def test_joinable_teams_have_owners_and_exclude_own_teams(team, charlie, fay):
    rows = {row.slug: row for row in selectors.joinable_teams(fay)}
    assert set(rows) == {"vision", "robots"}
    assert [place.user.username for place in rows["vision"].owner_places] == ["alice"]
    assert [row.slug for row in selectors.joinable_teams(charlie)] == ["vision"]


def test_teams_are_searched_by_name_and_owner(team, charlie, fay):
    def found(words):
        return [row.slug for row in selectors.search_teams(selectors.joinable_teams(fay), words)]

    assert (found("visi ali"), found("charlie"), found("bob")) == (["vision"], ["robots"], [])


def test_query_count_is_constant(team, fay, as_user):
    for number in range(60):
        MembershipFactory(team=TeamFactory(slug=f"t-{number:02}"), role=Role.OWNER)
    browser = as_user(fay)
    browser.get("/join/")
    with CaptureQueriesContext(connection) as queries:
        page = browser.get("/join/")
    assert page.status_code == 200 and len(queries) < 20, [query["sql"] for query in queries]


def test_operator_joining_without_approval_is_recorded_and_owners_are_notified(team, olga, alice):
    accounts.set_member(actor=olga, team=team, username="olga", role=Role.OWNER)
    entry = Event.objects.get(kind="team.member_set")
    assert entry.data["without_owners"] is True and "without approval of an owner" in entry.message
    assert notices(alice) == ["team.joined_without_owners"]
    assert notices(olga) == []


def test_owner_changing_the_own_role_sends_no_notice(team, alice, bob):
    accounts.set_member(actor=alice, team=team, username="bob", role=Role.OWNER)
    accounts.set_member(actor=alice, team=team, username="alice", role=Role.MEMBER)
    assert notices(bob) == notices(alice) == []


# --- the default team ---------------------------------------------------------------------------------


def test_new_accounts_join_the_default_team(team, settings):
    settings.BERTH_DEFAULT_TEAM = "vision"
    gina = users.create(actor=SYSTEM, username="gina")
    assert team.memberships.get(user=gina).role == Role.MEMBER
    hal = users.create(actor=SYSTEM, username="hal", teams={"vision": "owner"})
    assert team.memberships.get(user=hal).role == Role.OWNER


def test_missing_default_team_does_not_block_sign_in(db, settings, caplog):
    settings.BERTH_DEFAULT_TEAM = "nowhere"
    assert not users.create(actor=SYSTEM, username="gina").memberships.exists()
    assert "BERTH_DEFAULT_TEAM" in caplog.text


def test_policies_and_selectors_agree_on_deciders(join_request, alice, bob, charlie, olga):
    """Items to decide and notices use two queries that must agree."""
    for user in (alice, bob, charlie, olga, join_request.requester):
        waits = selectors.requests_to_decide(user).filter(pk=join_request.pk).exists()
        assert waits == (user in policies.deciders_of(join_request)), user
