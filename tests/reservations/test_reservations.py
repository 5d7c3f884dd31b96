"""Reservations: permissions, capacity and time, on a simulated pool of 8 H100."""

from __future__ import annotations

import datetime as dt
import json
import re
import threading

import pytest
from django.db import connection
from django.utils import timezone

from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Notification
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.quota.reservations import permissions, services
from portal.quota.reservations.models import Reservation, ReservationState
from tests.factories import TeamFactory

pytestmark = pytest.mark.django_db
H100 = "gpu:simulated-h100"


def times(start_h=24, hours=4, now=None):
    """Return whole minutes. With `now`, several begin in the same minute, however long requests take."""
    start = ((now or timezone.now()) + dt.timedelta(hours=start_h)).replace(second=0, microsecond=0)
    return {"starts_at": start, "ends_at": start + dt.timedelta(hours=hours)}


def ask(actor, team, gpus=4, title="Paper", **when):
    return services.request(actor=actor, team=team, title=title, amounts={H100: gpus * 1000}, **times(**when))


@pytest.fixture
def booker(olga, petra, team):
    """olga, an operator permitted by petra to book without approval."""
    permissions.permit_booking(actor=petra, username="olga")
    return olga


def test_owner_requests_and_approver_books(alice, petra, team, pool):
    row = ask(alice, team)
    assert row.state == ReservationState.REQUESTED
    assert Notification.objects.get(user=petra).kind == "reservation.requested"
    services.approve(actor=petra, reservation_id=row.pk)
    assert Reservation.objects.get().state == ReservationState.BOOKED
    assert Notification.objects.get(user=alice).kind == "reservation.changed"
    with pytest.raises(StateConflict):
        services.deny(actor=petra, reservation_id=row.pk, note="late")


def change(actor, row, gpus, title="Paper"):
    there = {"starts_at": row.starts_at, "ends_at": row.ends_at}
    services.change(actor=actor, reservation_id=row.pk, title=title, amounts={H100: gpus * 1000}, **there)


VERSION = re.compile(r'name="version" value="([0-9a-f]{16})"')


@pytest.mark.parametrize("do", ["approve", "deny"])
def test_stale_page_cannot_decide_a_changed_reservation(alice, petra, team, pool, as_user, do):
    row = ask(alice, team, 1)
    page, http = services.url(row), as_user(petra)
    read = VERSION.findall(http.get(page).content.decode())
    change(alice, row, 8)
    given = {"do": do, "note": "No", "version": read[0]}
    answered = http.post(page, given, follow=True)
    row.refresh_from_db()
    assert row.state == ReservationState.REQUESTED
    assert message_of(Reason(CommonCode.CHANGED_SINCE, {"name": "Paper"})) in answered.content.decode()
    http.post(page, {**given, "version": VERSION.findall(answered.content.decode())[0]})
    row.refresh_from_db()
    assert row.state != ReservationState.REQUESTED


def test_rest_decision_requires_the_current_version(alice, petra, team, pool, with_token):
    row = ask(alice, team, 1)
    where, http = f"/api/v1/reservations/{row.pk}", with_token(petra)
    read = http.get(where)["ETag"]
    change(alice, row, 8)
    for verb, body in (("approve", {}), ("deny", {"note": "No"})):
        refused = http.post(
            f"{where}/{verb}", body, content_type="application/json", headers={"If-Match": read}
        )
        assert (refused.status_code, refused.json()["code"]) == (412, "changed_meanwhile")
    now = http.get(where)["ETag"]
    booked = http.post(f"{where}/approve", content_type="application/json", headers={"If-Match": now})
    assert booked.json()["state"] == "booked"


def test_stale_page_cannot_cancel_a_changed_booking(booker, team, pool, as_user):
    row = ask(booker, team, 4)
    page, http = services.url(row), as_user(booker)
    read = VERSION.findall(http.get(page).content.decode())[-1]
    change(booker, row, 2, title="Camera-ready")
    http.post(page, {"do": "cancel", "version": read})
    row.refresh_from_db()
    assert row.state == ReservationState.BOOKED


def test_members_cannot_request_and_owners_cannot_book(bob, alice, team, pool):
    with pytest.raises(NotAllowed):
        ask(bob, team)
    row = ask(alice, team)
    with pytest.raises(NotAllowed):
        services.approve(actor=alice, reservation_id=row.pk)


def test_bookings_never_exceed_capacity_at_any_time(booker, team, pool):
    other, now = TeamFactory(name="Speech"), timezone.now()
    ask(booker, other, 6, start_h=26, hours=2, now=now)
    ask(booker, team, 2, start_h=24, hours=4, now=now)
    with pytest.raises(StateConflict) as refused:
        ask(booker, team, 1, start_h=24, hours=4, now=now)
    assert "Speech" in refused.value.message
    assert refused.value.extra["next_start"]
    assert ask(booker, team, 6, start_h=24, hours=2, now=now).state == ReservationState.BOOKED


@pytest.mark.parametrize(
    "wrong",
    [{"gpus": 9}, {"gpus": 0}, {"title": " "}, {"start_h": -3}, {"hours": 0.1}, {"start_h": 9000}],
)
def test_invalid_reservations_are_refused(booker, team, pool, wrong):
    with pytest.raises(InvalidInput):
        ask(booker, team, **wrong)
    assert not Reservation.objects.exists()


def test_cancelling_twice_succeeds_and_frees_capacity(alice, booker, team, pool):
    row = ask(booker, team, 8)
    services.cancel(actor=alice, reservation_id=row.pk)
    services.cancel(actor=alice, reservation_id=row.pk)
    assert ask(booker, team, 8).state == ReservationState.BOOKED


def test_owner_can_reduce_but_not_enlarge_a_booking(alice, booker, team, pool):
    row = ask(booker, team, 4)
    span = {"starts_at": row.starts_at, "ends_at": row.ends_at}
    change = {"actor": alice, "reservation_id": row.pk, "title": "Paper", **span}
    with pytest.raises(NotAllowed):
        services.change(**change, amounts={H100: 5000})
    assert services.change(**change, amounts={H100: 2000}).amounts == {H100: 2000}


def test_team_is_reminded_and_begin_and_end_apply_once(alice, bob, booker, team, pool, clock, sent):
    ask(booker, team, start_h=1, hours=1)
    clock.shift(46 * 60)
    assert services.process_due() == 1
    assert {note.user for note in Notification.objects.filter(kind="reservation.soon")} == {alice, bob}
    assert services.process_due() == 0
    sent.clear()
    clock.shift(15 * 60)
    assert services.process_due() == 1
    assert sent.of("control.schedule")
    clock.shift(3600)
    assert (services.process_due(), services.process_due()) == (1, 0)


def test_undecided_request_expires(alice, team, pool, clock):
    row = ask(alice, team, start_h=1, hours=1)
    clock.shift(3 * 3600)
    assert services.process_due() == 1
    row.refresh_from_db()
    assert (row.state, row.note) == (ReservationState.CANCELLED, "Not decided in time.")


@pytest.mark.django_db(transaction=True)
def test_one_of_two_concurrent_bookings_gets_the_last_capacity(booker, team, pool):
    together = threading.Barrier(2)
    outcomes = []

    def book():
        together.wait(10)
        try:
            ask(booker, team, 5)
            outcomes.append("booked")
        except StateConflict:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=book) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["booked", "refused"]


# --- pages and REST -------------------------------------------------------------------------------


def form(**more):
    when = times()
    return {
        "title": "Paper", "team": "vision", "resource": H100, "amount": "4",
        "starts": f"{when['starts_at']:%Y-%m-%dT%H:%M}", "ends": f"{when['ends_at']:%Y-%m-%dT%H:%M}", **more,
    }  # fmt: skip


def test_calendar_requests_checks_and_shows_reservations(as_user, alice, charlie, olga, team, pool):
    checked = as_user(alice).get("/calendar/", form(), headers={"HX-Request": "true", "HX-Target": "check"})
    assert "fits" in checked.content.decode()
    made = as_user(alice).post("/calendar/", form())
    assert made.status_code == 302
    assert "Waiting for approval" in as_user(alice).get(made.url).content.decode()
    assert as_user(charlie).get(made.url).status_code == 404
    as_user(olga).post(made.url, {"do": "approve"})
    row = Reservation.objects.get()
    page = as_user(charlie).get(f"/calendar/?week={row.starts_at:%Y-%m-%d}").content.decode()
    assert "4" in page
    assert "Vision" in page
    assert "Paper" not in page, "what it is for is the team's business"
    assert as_user(olga).post("/calendar/", form(amount="6")).status_code == 409
    assert as_user(olga).post("/calendar/", form(amount="x")).status_code == 400
    as_user(alice).post(made.url, {"do": "cancel"})
    assert Reservation.objects.get().state == ReservationState.CANCELLED


def test_reservations_are_managed_over_rest(with_token, alice, bob, charlie, petra, team, pool):
    when = {name: value.isoformat() for name, value in times().items()}
    body = {"team": "vision", "title": "Paper", "amounts": {H100: 4000}, **when}

    def post(user, path, data):
        return with_token(user).post(f"/api/v1/{path}", json.dumps(data), content_type="application/json")

    made = post(alice, "reservations", body)
    assert made.status_code == 201
    one = f"reservations/{made.json()['id']}"
    assert post(bob, "reservations", body).status_code == 403
    assert post(petra, f"{one}/approve", {}).json()["state"] == "booked"
    seen = with_token(charlie).get("/api/v1/reservations").json()["results"]
    assert [(row["title"], row["amounts"]) for row in seen] == [("", {H100: 4000})]
    assert post(petra, "reservations", {**body, "amounts": {H100: 5000}}).status_code == 409
    assert [post(alice, f"{one}/cancel", {}).json()["state"] for _ in range(2)] == ["cancelled"] * 2
