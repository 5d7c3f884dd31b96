"""Reservations: capacity for a team and a time. Owners of a team ask, approvers and operators book.

What is booked never exceeds what the site has of a resource, at any moment: each write that books holds
the queue's row, so that of two at once for the last capacity one is refused and told of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from portal.accounts import approvers
from portal.accounts.models import Team, User
from portal.accounts.selectors import owners_of
from portal.common.actors import SYSTEM, SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.formatting import format_amount, format_resource, format_resource_amount
from portal.common.texts import storable
from portal.events import services as events
from portal.inventory.models import PlacementLock
from portal.quotas import policies
from portal.quotas.domain_events import LimitsChanged
from portal.quotas.services.limits import clean_resource
from portal.reservations import selectors as selectors
from portal.reservations.models import Reservation, ReservationStatus

LASTS_AT_LEAST = timedelta(minutes=15)
AHEAD_AT_MOST = timedelta(days=366)
PAST_AT_MOST = timedelta(minutes=5)
"""Who books for now has looked at the clock a moment ago."""
REMIND_BEFORE = timedelta(minutes=15)
RESOURCES_AT_MOST = 16
BATCH = 200
Amounts = Mapping[str, int]


@transaction.atomic
def request(
    *,
    actor: User,
    team: Team,
    title: str,
    amounts: Amounts,
    starts_at: datetime,
    ends_at: datetime,
    note: str = "",
) -> Reservation:
    """Ask for capacity (base units by resource); an approver's or operator's is booked at once.

    Raises `NotFound`, `NotAllowed`, `InvalidInput` (what, when) and `StateConflict` where others have
    booked too much of it; the conflict names them and, as `next_start`, the first time that is free.
    """
    policies.require_reserve(actor, team)
    wanted = _clean(title, amounts, starts_at, ends_at, timezone.now())
    _lock_calendar()
    _require_room(wanted)
    booked = policies.may_book(actor)
    made = Reservation.objects.create(
        team=team,
        **wanted,
        note=storable(note).strip()[:2000],
        status=ReservationStatus.BOOKED if booked else ReservationStatus.REQUESTED,
        created_by=actor,
        decided_by=actor if booked else None,
    )
    words = f"{selectors.spoken(made.amounts)} for {team.name}, {span(made)}"
    _record(actor, made, "booked" if booked else "requested", f"{'books' if booked else 'asks for'} {words}")
    if booked:
        _tell(made, f"{words} is booked", actor)
        emit(LimitsChanged())
    else:
        events.notify(
            _deciders(actor),
            "reservation.requested",
            f"{actor.username} asks for {words}",
            made.note,
            url(made),
        )
    return made


@transaction.atomic
def approve(*, actor: User, reservation_id: UUID) -> Reservation:
    """Book what was asked for. Approvers and operators; raises as `request` does.

    `StateConflict` also where somebody has decided, or its time is over.
    """
    _lock_calendar()
    found = _locked(actor, reservation_id)
    policies.require_book(actor)
    _require_open(found)
    if found.ends_at <= timezone.now():
        raise StateConflict("Its time is over.", next_action="Ask for another time.")
    _require_room(_fields(found), but=found.pk)
    found.status, found.decided_by = ReservationStatus.BOOKED, actor
    found.save(update_fields=["status", "decided_by"])
    words = f"{selectors.spoken(found.amounts)} for {found.team.name}, {span(found)}"
    _record(actor, found, "booked", f"books {words}")
    _tell(found, f"{actor.username} booked {words}", actor)
    emit(LimitsChanged())
    return found


@transaction.atomic
def deny(*, actor: User, reservation_id: UUID, reason: str) -> Reservation:
    """Refuse what was asked for, with a reason. Approvers and operators."""
    found = _locked(actor, reservation_id)
    policies.require_book(actor)
    _require_open(found)
    reason = storable(reason).strip()[:2000]
    if not reason:
        sentence = "Say why, so that they know what to do."
        raise InvalidInput(sentence, errors={"reason": [sentence]})
    found.status, found.decided_by, found.note = ReservationStatus.CANCELLED, actor, reason
    found.save(update_fields=["status", "decided_by", "note"])
    _record(actor, found, "denied", f"denies {found.team.name} “{found.title}”: {reason}")
    _tell(found, f"“{found.title}” of {found.team.name} is not booked", actor, reason)
    return found


@transaction.atomic
def cancel(*, actor: User, reservation_id: UUID) -> Reservation:
    """Give it up; its capacity is free at once. Owners of the team and who books. Twice is success."""
    found = _locked(actor, reservation_id)
    policies.require_reserve(actor, found.team)
    if found.status == ReservationStatus.CANCELLED:
        return found
    if found.ends_at <= timezone.now():
        raise StateConflict("Its time is over.", next_action="There is nothing to cancel.")
    booked = found.status == ReservationStatus.BOOKED
    found.status = ReservationStatus.CANCELLED
    found.save(update_fields=["status"])
    _record(actor, found, "cancelled", f"cancels “{found.title}” of {found.team.name}, {span(found)}")
    _tell(found, f"“{found.title}” of {found.team.name} is cancelled", actor, span(found))
    if booked:
        emit(LimitsChanged())
    return found


@transaction.atomic
def change(
    *,
    actor: User,
    reservation_id: UUID,
    title: str,
    amounts: Amounts,
    starts_at: datetime,
    ends_at: datetime,
) -> Reservation:
    """Book or ask for something else in its place. Raises as `request` does.

    An owner changes freely what waits for approval; of what is booked an owner only gives back: less of
    it, or a shorter time inside it. What has begun keeps its start.
    """
    _lock_calendar()
    found = _locked(actor, reservation_id)
    policies.require_reserve(actor, found.team)
    now = timezone.now()
    if found.status == ReservationStatus.CANCELLED or found.ends_at <= now:
        raise StateConflict(
            f"“{found.title}” is {'cancelled' if found.ends_at > now else 'over'}.",
            next_action="Ask for a new one.",
        )
    begun = found.starts_at <= now
    if begun:
        starts_at = found.starts_at
    wanted = _clean(title, amounts, starts_at, ends_at, found.starts_at if begun else now)
    if ends_at <= now:
        sentence = "Choose an end in the future, or cancel it."
        raise InvalidInput(sentence, errors={"ends_at": [sentence]})
    before = _fields(found)
    if before == wanted:
        return found
    if found.status == ReservationStatus.BOOKED and not policies.may_book(actor) and not _less(wanted, found):
        raise NotAllowed(
            "An owner gives back a part of what is booked, but takes no more.",
            next_action="Ask for the rest as a reservation of its own, or ask an approver to change this.",
        )
    _require_room(wanted, but=found.pk)
    for name, value in wanted.items():
        setattr(found, name, value)
    found.reminded_at = None if found.starts_at > now else found.reminded_at
    found.save(update_fields=[*wanted, "reminded_at"])
    words = f"{selectors.spoken(found.amounts)} for {found.team.name}, {span(found)}"
    _record(actor, found, "changed", f"changes “{found.title}” to {words}", before=_plain(before))
    _tell(found, f"“{found.title}” is now {words}", actor)
    if found.status == ReservationStatus.BOOKED:
        emit(LimitsChanged())
    return found


# --- what time brings -----------------------------------------------------------------------------------


def due(*, now: datetime | None = None) -> int:
    """Act on what begins, ends, or begins soon; returns how many. Each is told once, late or not."""
    now = now or timezone.now()
    booked, asked = ReservationStatus.BOOKED, ReservationStatus.REQUESTED
    soon = Reservation.objects.filter(
        status=booked, reminded_at=None, begun_at=None, starts_at__gt=now, starts_at__lte=now + REMIND_BEFORE
    )
    begins = Reservation.objects.filter(status=booked, begun_at=None, starts_at__lte=now, ends_at__gt=now)
    ends = Reservation.objects.filter(status=booked, ended_at=None, ends_at__lte=now)
    missed = Reservation.objects.filter(status=asked, ends_at__lte=now)
    done = 0
    for rows, act in ((soon, _remind), (begins, _begin), (ends, _end), (missed, _miss)):
        for key in list(rows.order_by("starts_at", "pk").values_list("pk", flat=True)[:BATCH]):
            with transaction.atomic():
                # Under its lock it may be another one by now: cancelled, changed, or done by another worker.
                row = rows.select_for_update(of=("self",)).select_related("team").filter(pk=key).first()
                if row is not None:
                    act(row, now)
                    done += 1
    return done


def _remind(row: Reservation, now: datetime) -> None:
    row.reminded_at = now
    row.save(update_fields=["reminded_at"])
    events.notify(
        User.objects.filter(memberships__team=row.team),
        "reservation.soon",
        f"{selectors.spoken(row.amounts)} are kept for {row.team.name} from {row.starts_at:%H:%M} UTC on",
        f"“{row.title}”, {span(row)}. Start your workspaces then: they go first.",
        url(row),
    )


def _begin(row: Reservation, now: datetime) -> None:
    row.begun_at = now
    row.save(update_fields=["begun_at"])
    _record(SYSTEM, row, "begun", f"keeps {selectors.spoken(row.amounts)} for {row.team.name} from now on")
    emit(LimitsChanged())


def _end(row: Reservation, now: datetime) -> None:
    row.ended_at = now
    row.save(update_fields=["ended_at"])
    _record(SYSTEM, row, "ended", f"keeps nothing more for “{row.title}” of {row.team.name}")
    emit(LimitsChanged())


def _miss(row: Reservation, _now: datetime) -> None:
    row.status, row.note = ReservationStatus.CANCELLED, "Nobody decided it in time."
    row.save(update_fields=["status", "note"])
    _record(SYSTEM, row, "missed", f"closes “{row.title}” of {row.team.name}: nobody decided it in time")
    _tell(row, f"“{row.title}” of {row.team.name} was not decided in time", SYSTEM, span(row))


# --- helpers --------------------------------------------------------------------------------------------


def span(row: Reservation) -> str:
    """Its time as people read it, in UTC."""
    start, end = row.starts_at, row.ends_at
    until = f"{end:%H:%M}" if start.date() == end.date() else f"{end:%d %b %Y, %H:%M}"
    return f"{start:%d %b %Y, %H:%M} to {until} UTC"


def url(row: Reservation) -> str:
    return reverse("reservations:reservation", args=[row.pk])


def _clean(
    title: str, amounts: Amounts, starts_at: datetime, ends_at: datetime, earliest: datetime
) -> dict[str, Any]:
    """What is to be booked, in the form in which it is kept; all that is wrong with it at once."""
    problems: dict[str, list[str]] = {}
    title = " ".join(storable(title).split())
    if not 0 < len(title) <= 80:
        problems["title"] = ["Say in 1 to 80 characters what it is for."]
    cleaned: dict[str, int] = {}
    try:
        cleaned = _clean_amounts(amounts)
    except InvalidInput as error:
        problems["amounts"] = [error.message]
    starts_at, ends_at = starts_at.replace(second=0, microsecond=0), ends_at.replace(second=0, microsecond=0)
    if starts_at < earliest - PAST_AT_MOST:
        problems["starts_at"] = ["Choose a start from now on."]
    if ends_at - starts_at < LASTS_AT_LEAST:
        problems["ends_at"] = ["It lasts 15 minutes at least: choose a later end."]
    elif ends_at > timezone.now() + AHEAD_AT_MOST:
        problems["ends_at"] = ["Choose an end within a year."]
    if problems:
        first = next(iter(problems.values()))[0]
        raise InvalidInput(first, next_action="Correct it and try again.", errors=problems)
    return {"title": title, "amounts": cleaned, "starts_at": starts_at, "ends_at": ends_at}


def _clean_amounts(amounts: Amounts) -> dict[str, int]:
    if not 0 < len(amounts) <= RESOURCES_AT_MOST:
        raise InvalidInput(f"Name from one to {RESOURCES_AT_MOST} resources and how much of each.")
    there = selectors.bookable()
    cleaned: dict[str, int] = {}
    for given, amount in amounts.items():
        name = clean_resource(given)
        if name not in there:
            known = ", ".join(there) or "none at present"
            raise InvalidInput(
                f"This site has no {format_resource(name)} to reserve. Accelerators are reserved: {known}."
            )
        if not isinstance(amount, int) or isinstance(amount, bool) or amount <= 0:
            raise InvalidInput(f"Reserve more than none of {format_resource(name)}.")
        if amount > there[name]:
            raise InvalidInput(
                f"The site has {format_resource_amount(name, there[name])}: {format_amount(name, amount)}"
                " can never be had."
            )
        cleaned[name] = amount
    return cleaned


def _fields(row: Reservation) -> dict[str, Any]:
    return {
        "title": row.title, "amounts": row.amounts, "starts_at": row.starts_at, "ends_at": row.ends_at,
    }  # fmt: skip


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in fields.items()}


def _less(wanted: Mapping[str, Any], row: Reservation) -> bool:
    """Whether it takes nothing that is not booked already."""
    inside = row.starts_at <= wanted["starts_at"] and wanted["ends_at"] <= row.ends_at
    return inside and all(amount <= row.amounts.get(name, 0) for name, amount in wanted["amounts"].items())


def _lock_calendar() -> None:
    """Whoever books waits for whoever is booking, and for the cycle that is under way."""
    PlacementLock.hold()


def _locked(actor: User | SystemActor, reservation_id: UUID) -> Reservation:
    found = (
        Reservation.objects.select_for_update(of=("self",))
        .select_related("team", "created_by", "decided_by")
        .filter(pk=reservation_id)
        .first()
    )
    if found is None or not selectors.may_see(actor, found):
        raise NotFound("There is no such reservation.", next_action="Look at the calendar.")
    return found


def _require_open(found: Reservation) -> None:
    if found.status == ReservationStatus.REQUESTED:
        return
    word = "booked" if found.status == ReservationStatus.BOOKED else "cancelled"
    by = f" by {found.decided_by.username}" if found.decided_by else ""
    raise StateConflict(f"“{found.title}” is {word} already{by}.", next_action="Look at the calendar.")


def _require_room(wanted: Mapping[str, Any], but: UUID | None = None) -> None:
    found = selectors.check(wanted["amounts"], wanted["starts_at"], wanted["ends_at"], but=but)
    if not found.fits:
        raise StateConflict(
            found.sentence,
            next_action=found.next_action,
            next_start=found.next_start.isoformat() if found.next_start else None,
        )


def _record(actor: User | SystemActor, row: Reservation, word: str, message: str, **data: Any) -> None:
    events.record(
        actor=actor,
        kind=f"reservation.{word}",
        team=row.team,
        message=message,
        data={"reservation": str(row.pk), **_plain(_fields(row)), **data},
    )


def _deciders(actor: User) -> Iterable[User]:
    found = {user.pk: user for user in approvers.approvers()}
    for delegation in approvers.delegations_at(timezone.now()).select_related("delegate"):
        found[delegation.delegate_id] = delegation.delegate
    found.pop(actor.pk, None)
    return found.values()


def _tell(row: Reservation, title: str, actor: User | SystemActor, body: str = "") -> None:
    """The team's owners and who made it, but for who has just done it."""
    found = {user.pk: user for user in owners_of(row.team)}
    if row.created_by is not None:
        found[row.created_by.pk] = row.created_by
    if isinstance(actor, User):
        found.pop(actor.pk, None)
    events.notify(found.values(), "reservation.changed", title, body, url(row))
