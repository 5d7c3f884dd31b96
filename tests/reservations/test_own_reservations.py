"""Own reservations cannot be decided: not by permission, as a delegate, or in a second role."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event, Notification
from portal.people.accounts import deactivation
from portal.people.accounts.models import Delegation, Role, Team
from portal.quota.reservations import permissions, policies, selectors, services
from portal.quota.reservations.models import BookingPermission, Reservation, ReservationState
from tests import sites
from tests.factories import MembershipFactory, UserFactory
from tests.reservations.test_reservations import H100, ask, form, times

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
WORLD = sites.people
REQUESTED, BOOKED = ReservationState.REQUESTED, ReservationState.BOOKED


def owner_of(team, user):
    MembershipFactory(team=team, user=user, role=Role.OWNER)
    return user


def lend(approver, delegate):
    now = timezone.now()
    Delegation.objects.create(
        approver=approver, delegate=delegate, starts_at=now, ends_at=now + dt.timedelta(days=1)
    )


def refused(actor, row) -> bool:
    """Return whether the actor can neither book nor deny it, and does not see it in the inbox."""
    with pytest.raises(NotAllowed):
        services.approve(actor=actor, reservation_id=row.pk)
    with pytest.raises(NotAllowed):
        services.deny(actor=actor, reservation_id=row.pk, note="x")
    row.refresh_from_db()
    return row.state == REQUESTED and row not in selectors.reservations_to_decide(actor)


# --- second roles ---------------------------------------------------------------------------------


@pytest.mark.parametrize("username", ["petra", "olga"])
@pytest.mark.parametrize("owner", [True, False])
def test_reservation_of_an_approver_or_operator_needs_another_decider(
    request, team, pool, ada, username, owner
):
    """For an own team as for any other."""
    actor = request.getfixturevalue(username)
    UserFactory(username="ann", is_superuser=True)
    if owner:
        owner_of(team, actor)
    row = ask(actor, team)
    assert row.state == REQUESTED and refused(actor, row)
    assert Notification.objects.filter(user=ada, kind="reservation.requested").exists()
    assert not Notification.objects.filter(user=actor, kind="reservation.requested").exists()
    assert list(selectors.reservations_to_decide(ada)) == [row]
    assert services.approve(actor=ada, reservation_id=row.pk).state == BOOKED


def test_user_with_all_roles_cannot_approve_own_reservation(team, pool):
    many = owner_of(team, UserFactory(username="max", is_approver=True, is_operator=True, is_superuser=True))
    UserFactory(username="ann", is_superuser=True)
    assert refused(many, ask(many, team))


def test_only_administrator_books_own_reservation_with_an_audit_note(team, pool, ada):
    row = ask(ada, team)
    assert (row.state, row.decided_by) == (BOOKED, ada)
    assert Event.objects.get(kind="reservation.booked").data["own"] is True


# --- delegates ------------------------------------------------------------------------------------


def test_delegate_does_not_decide_reservations_of_the_delegating_approver(team, pool, petra, bob):
    lend(petra, bob)
    row = ask(owner_of(team, petra), team)
    assert refused(bob, row)
    assert bob not in policies.deciders_of(row)


def test_delegate_does_not_decide_own_reservations(team, pool, petra, alice):
    lend(petra, alice)
    row = ask(alice, team)
    assert row.state == REQUESTED and refused(alice, row)
    assert services.approve(actor=petra, reservation_id=row.pk).state == BOOKED


def test_delegate_of_two_approvers_decides_for_the_other(team, pool, petra, bob):
    paul = UserFactory(username="paul", is_approver=True)
    lend(petra, bob)
    lend(paul, bob)
    row = ask(petra, team)
    assert row in selectors.reservations_to_decide(bob) and bob in policies.deciders_of(row)
    services.approve(actor=bob, reservation_id=row.pk)
    assert Event.objects.get(kind="reservation.booked").data["in_place_of"]


# --- changed requests of another user -------------------------------------------------------------


def test_user_changing_the_request_of_another_does_not_decide_it(team, pool, petra, alice, olga):
    row = ask(alice, team, 1)
    span = {"starts_at": row.starts_at, "ends_at": row.ends_at}
    services.change(actor=petra, reservation_id=row.pk, title="Paper", amounts={H100: 8000}, **span)
    row.refresh_from_db()
    assert row.changed_by == petra and refused(petra, row)
    assert row in selectors.reservations_to_decide(olga)


def test_own_booked_reservation_cannot_be_enlarged(team, pool, petra, olga, alice):
    row = ask(petra, team, 1)
    services.approve(actor=olga, reservation_id=row.pk)
    for actor in (petra, olga, alice):
        span = {"starts_at": row.starts_at, "ends_at": row.ends_at}
        with pytest.raises(NotAllowed):
            services.change(actor=actor, reservation_id=row.pk, title="Paper", amounts={H100: 8000}, **span)
    assert Reservation.objects.get().amounts == {H100: 1000}


# --- booking permissions --------------------------------------------------------------------------


def test_users_cannot_grant_themselves_booking(team, pool, petra, ada):
    for actor in (petra, ada):
        with pytest.raises(NotAllowed):
            permissions.permit_booking(actor=actor, username=actor.username)
    with pytest.raises(IntegrityError), transaction.atomic():
        BookingPermission.objects.create(user=petra, granted_by=petra)


@pytest.mark.parametrize("username", ["alice", "bob", "charlie", "olga"])
def test_only_approvers_grant_booking_and_delegates_cannot(request, team, petra, username):
    actor = request.getfixturevalue(username)
    lend(petra, actor)
    with pytest.raises(NotAllowed):
        permissions.permit_booking(actor=actor, username="petra")


def test_permission_and_bookings_by_it_are_audited(team, pool, petra, olga):
    given = permissions.permit_booking(actor=petra, username="olga")
    assert permissions.permit_booking(actor=petra, username="olga") == given
    entry = Event.objects.get(kind="reservation.permitted")
    assert (entry.actor, entry.data["username"]) == (petra, "olga")
    row = ask(olga, team)
    assert (row.state, row.permission, row.decided_by) == (BOOKED, given, None)
    booked = Event.objects.get(kind="reservation.booked")
    assert booked.data["permitted_by"] == "petra" and "as permitted by petra" in booked.message


def test_permission_for_all_teams_excludes_own_teams(team, pool, petra, olga):
    MembershipFactory(team=team, user=olga)
    permissions.permit_booking(actor=petra, username="olga")
    assert ask(olga, team, 1).state == REQUESTED
    permissions.permit_booking(actor=petra, username="olga", team=team)
    assert ask(olga, team, 1).state == BOOKED


def test_permission_for_another_team_does_not_apply(team, pool, petra, alice):
    permissions.permit_booking(actor=petra, username="alice", team=Team.objects.create(slug="x", name="X"))
    assert ask(alice, team).state == REQUESTED


def test_approver_or_holder_can_end_a_permission(team, pool, petra, olga, bob):
    given = permissions.permit_booking(actor=petra, username="olga")
    with pytest.raises(NotFound):
        permissions.end(actor=bob, permission_id=given.pk)
    permissions.end(actor=olga, permission_id=given.pk)
    assert Event.objects.filter(kind="reservation.permission_ended").exists()
    assert ask(olga, team).state == REQUESTED


def test_deactivating_the_holder_ends_the_permission(team, petra, olga):
    permissions.permit_booking(actor=petra, username="olga")
    deactivation.deactivate(actor=SYSTEM, user=olga)
    deactivation.reactivate(actor=SYSTEM, user=olga)
    assert not BookingPermission.objects.exists()


# --- pages and REST -------------------------------------------------------------------------------


def test_page_shows_that_another_user_decides(as_user, petra, olga, team, pool):
    made = as_user(petra).post("/calendar/", form())
    page = as_user(petra).get(made.url).content.decode()
    assert "someone else" in page and "Approve" not in page
    as_user(petra).post(made.url, {"do": "approve"})
    assert Reservation.objects.get().state == REQUESTED
    assert "Paper" in as_user(olga).get("/calendar/").content.decode()
    as_user(olga).post(made.url, {"do": "approve"})
    assert Reservation.objects.get().state == BOOKED


def test_permissions_are_managed_on_the_page(as_user, petra, olga, team, pool):
    browser = as_user(petra)
    assert "No permissions" in browser.get("/calendar/permissions/").content.decode()
    assert browser.post("/calendar/permissions/", {"username": "petra"}).status_code == 403
    assert browser.post("/calendar/permissions/", {"username": "nobody"}).status_code == 400
    assert browser.post("/calendar/permissions/", {"username": "olga", "team": "vision"}).status_code == 302
    page = as_user(olga).get("/calendar/permissions/").content.decode()
    assert "Vision" in page and "petra" in page
    given = BookingPermission.objects.get()
    as_user(olga).post(f"/calendar/permissions/{given.pk}/revoke/")
    assert not BookingPermission.objects.exists()


def test_own_reservation_is_refused_over_rest(with_token, petra, team, pool):
    when = {name: value.isoformat() for name, value in times().items()}
    body = {"team": "vision", "title": "Paper", "amounts": {H100: 4000}, **when}
    program = with_token(petra)
    made = program.post("/api/v1/reservations", json.dumps(body), content_type="application/json")
    assert made.json()["state"] == "requested"
    answer = program.post(
        f"/api/v1/reservations/{made.json()['id']}/approve", content_type="application/json"
    )
    assert answer.status_code == 403 and answer.json()["reason"]["code"] == "nobody_decides_own"


def test_late_decision_is_refused(team, pool, petra, olga, alice):
    row = ask(alice, team)
    services.approve(actor=petra, reservation_id=row.pk)
    with pytest.raises(StateConflict):
        services.approve(actor=olga, reservation_id=row.pk)
