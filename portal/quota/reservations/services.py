"""Services for reservations. Owners, approvers and operators request capacity; another user decides.

Booked amounts never exceed the site's capacity of a resource. Each write that books locks the queue's row: of
two concurrent requests for the last capacity, one is denied and names the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common import etags
from portal.common.actors import SYSTEM, SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.formatting import format_clock, format_time_span
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.models import PlacementLock
from portal.people.accounts import approvers
from portal.people.accounts.domain_events import TeamArchived, TeamDeletionStarted, UserDeactivated
from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import require_active_team
from portal.people.accounts.selectors import owners_of
from portal.quota.limits import policies, resources
from portal.quota.limits.codes import QuotaCode
from portal.quota.limits.domain_events import LimitsChanged
from portal.quota.reservations import permissions, selectors
from portal.quota.reservations import policies as decisions
from portal.quota.reservations.codes import ReservationCode
from portal.quota.reservations.models import Reservation, ReservationState
from portal.quota.reservations.presenters import format_amounts

MIN_LENGTH = timedelta(minutes=15)
MAX_AHEAD = timedelta(days=366)
MAX_PAST = timedelta(minutes=5)
"""Maximum age of the start time, for reservations that start now."""
REMIND_BEFORE = timedelta(minutes=15)
MAX_RESOURCES = 16
MAX_TITLE = 80
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
    """Request capacity (base units by resource). Booked at once with a permission (`permissions`).

    Raises `NotFound`, `NotAllowed`, `InvalidInput`, and `StateConflict` if too much is already booked; the
    conflict names these reservations and, as `next_start`, the first free time.
    """
    policies.require_reserve(actor, team)
    require_active_team(team)
    cleaned = _clean(title, amounts, starts_at, ends_at, timezone.now())
    _lock_calendar()
    _require_room(cleaned)
    permission = decisions.permission_for(actor, team)
    alone = permission is None and approvers.is_only_superuser(actor)
    booked = permission is not None or alone
    reservation = Reservation.objects.create(
        team=team,
        **cleaned,
        note=strip_nul(note).strip()[:2000],
        state=ReservationState.BOOKED if booked else ReservationState.REQUESTED,
        created_by=actor,
        decided_by=actor if alone else None,
        permission=permission,
    )
    text = _description(reservation)
    if permission is not None:
        by = permission.granted_by.username
        permission_data = {"permission": str(permission.pk), "permitted_by": by}
        _record(actor, reservation, "booked", f"booked {text}, as permitted by {by}", **permission_data)
    elif alone:
        message = f"booked {text} (there is no other administrator)"
        _record(actor, reservation, "booked", message, own=True)
    else:
        _record(actor, reservation, "requested", f"requested {text}")
    if booked:
        _notify(reservation, _("%(what)s is booked") % {"what": text}, actor)
        emit(LimitsChanged())
    else:
        events.notify(
            decisions.deciders_of(reservation),
            "reservation.requested",
            _("%(username)s requests %(what)s") % {"username": actor.username, "what": text},
            reservation.note,
            url(reservation),
        )
    return reservation


@transaction.atomic
def approve(*, actor: User, reservation_id: UUID, expected: frozenset[str] = etags.ANY) -> Reservation:
    """Book a requested reservation. For approvers and operators; raises like `request`.

    Also raises `StateConflict` if it has been decided or is over, and `PreconditionFailed` if its version is
    not in `expected`.
    """
    _lock_calendar()
    reservation = _locked(actor, reservation_id)
    decisions.require_decide(actor, reservation)
    _require_open(reservation)
    etags.require_expected(expected, reservation, name=reservation.title)
    if reservation.ends_at <= timezone.now():
        raise StateConflict(Reason(ReservationCode.TIME_OVER))
    _require_room(_fields(reservation), but=reservation.pk)
    reservation.state, reservation.decided_by = ReservationState.BOOKED, actor
    reservation.save(update_fields=["state", "decided_by"])
    text = _description(reservation)
    _record(actor, reservation, "booked", f"booked {text}", **_audit_data(actor, reservation))
    _refresh_approvals(reservation)
    title = _("%(username)s approved the reservation: %(what)s") % {"username": actor.username, "what": text}
    _notify(reservation, title, actor)
    emit(LimitsChanged())
    return reservation


@transaction.atomic
def deny(
    *, actor: User, reservation_id: UUID, note: str, expected: frozenset[str] = etags.ANY
) -> Reservation:
    """Deny a requested reservation, with a note. For approvers and operators; raises like `approve`."""
    reservation = _locked(actor, reservation_id)
    decisions.require_decide(actor, reservation)
    _require_open(reservation)
    etags.require_expected(expected, reservation, name=reservation.title)
    note = strip_nul(note).strip()[:2000]
    if not note:
        missing = Reason(ReservationCode.DENIAL_WITHOUT_NOTE)
        raise InvalidInput(missing, errors={"note": [missing]})
    reservation.state, reservation.decided_by, reservation.note = ReservationState.CANCELLED, actor, note
    reservation.save(update_fields=["state", "decided_by", "note"])
    message = f"denied {reservation.team.name} “{reservation.title}”: {note}"
    _record(actor, reservation, "denied", message, **_audit_data(actor, reservation))
    _refresh_approvals(reservation)
    _notify(reservation, _("%(what)s was denied") % {"what": _quoted_title(reservation)}, actor, note)
    return reservation


@transaction.atomic
def cancel(
    *, actor: User | SystemActor, reservation_id: UUID, expected: frozenset[str] = etags.ANY
) -> Reservation:
    """Cancel a reservation and free its capacity. For owners of the team and approvers. Idempotent."""
    reservation = _locked(actor, reservation_id)
    policies.require_reserve(actor, reservation.team)
    etags.require_expected(expected, reservation, name=reservation.title)
    if reservation.state == ReservationState.CANCELLED:
        return reservation
    if reservation.ends_at <= timezone.now():
        raise StateConflict(Reason(ReservationCode.NOTHING_TO_CANCEL))
    booked = reservation.state == ReservationState.BOOKED
    reservation.state = ReservationState.CANCELLED
    reservation.save(update_fields=["state"])
    _record(
        actor,
        reservation,
        "cancelled",
        f"cancelled “{reservation.title}” of {reservation.team.name}, {_span(reservation)}",
    )
    _notify(
        reservation,
        _("%(what)s is cancelled") % {"what": _quoted_title(reservation)},
        actor,
        _span(reservation),
    )
    if booked:
        emit(LimitsChanged())
    else:
        _refresh_approvals(reservation)
    return reservation


def cancel_all_in_team(event: TeamArchived | TeamDeletionStarted) -> None:
    """Cancel the current and future reservations of an archived or deleted team."""
    rows = Reservation.objects.filter(team=event.team, ends_at__gt=timezone.now()).order_by("pk")
    for reservation_id in rows.exclude(state=ReservationState.CANCELLED).values_list("pk", flat=True):
        cancel(actor=event.actor, reservation_id=reservation_id)


def release_reservations_of_user(event: UserDeactivated) -> None:
    """Cancel a deactivated user's requests, and pass booked reservations to an owner of their team."""
    now = timezone.now()
    reservations = Reservation.objects.filter(created_by=event.user, ends_at__gt=now).select_related("team")
    for row in reservations.filter(state=ReservationState.REQUESTED).select_for_update(of=("self",)):
        row.state = ReservationState.CANCELLED
        row.save(update_fields=["state"])
        _refresh_approvals(row)
        _record(event.actor, row, "cancelled", f"cancelled “{row.title}” of {row.team.name}, {_span(row)}")
    for row in reservations.filter(state=ReservationState.BOOKED).select_for_update(of=("self",)):
        row.created_by = owners_of(row.team).order_by("username").first()
        row.save(update_fields=["created_by"])
    permissions.end_all_of(event.user, event.actor)


@transaction.atomic
def change(
    *,
    actor: User,
    reservation_id: UUID,
    title: str,
    amounts: Amounts,
    starts_at: datetime,
    ends_at: datetime,
    expected: frozenset[str] = etags.ANY,
) -> Reservation:
    """Change a reservation. Raises like `request`, and `PreconditionFailed`.

    A requested reservation can be changed freely, and its last editor becomes the requester. A booked one can
    only be reduced, in amounts or to a shorter period within its own, except by users who book without
    approval. The start cannot change once it has passed.
    """
    _lock_calendar()
    reservation = _locked(actor, reservation_id)
    policies.require_reserve(actor, reservation.team)
    etags.require_expected(expected, reservation, name=reservation.title)
    now = timezone.now()
    if reservation.state == ReservationState.CANCELLED or reservation.ends_at <= now:
        named = {"title": reservation.title}
        raise StateConflict(
            Reason(ReservationCode.WAS_CANCELLED, named)
            if reservation.ends_at > now
            else Reason(ReservationCode.OVER, named)
        )
    has_begun = reservation.starts_at <= now
    if has_begun:
        starts_at = reservation.starts_at
    cleaned = _clean(title, amounts, starts_at, ends_at, reservation.starts_at if has_begun else now)
    if ends_at <= now:
        wrong = Reason(ReservationCode.END_NOT_IN_FUTURE)
        raise InvalidInput(wrong, errors={"ends_at": [wrong]})
    before = _fields(reservation)
    if before == cleaned:
        return reservation
    booked = reservation.state == ReservationState.BOOKED
    permission_data: dict[str, Any] = {}
    if booked and not _is_reduction(cleaned, reservation):
        if not decisions.may_book_at_once(actor, reservation.team):
            raise NotAllowed(Reason(ReservationCode.ONLY_LESS))
        if (permission := decisions.permission_for(actor, reservation.team)) is not None:
            permission_data = {
                "permission": str(permission.pk),
                "permitted_by": permission.granted_by.username,
            }
    _require_room(cleaned, but=reservation.pk)
    for name, value in cleaned.items():
        setattr(reservation, name, value)
    reservation.reminded_at = None if reservation.starts_at > now else reservation.reminded_at
    if not booked:
        # Also refresh pages of users who no longer have to decide the request.
        _refresh_approvals(reservation)
        reservation.changed_by = actor
    reservation.save(update_fields=[*cleaned, "reminded_at", "changed_by"])
    text = _description(reservation)
    _record(
        actor,
        reservation,
        "changed",
        f"changed “{reservation.title}” to {text}",
        before=_as_json(before),
        **permission_data,
    )
    _notify(reservation, _("“%(title)s” is now %(what)s") % {"title": reservation.title, "what": text}, actor)
    if booked:
        emit(LimitsChanged())
    else:
        _refresh_approvals(reservation)
    return reservation


# --- time-based transitions -----------------------------------------------------------------------------


def process_due(*, now: datetime | None = None) -> int:
    """Process reservations that begin, end or begin soon, each once, even if late. Returns their number."""
    now = now or timezone.now()
    booked, requested = ReservationState.BOOKED, ReservationState.REQUESTED
    to_remind = Reservation.objects.filter(
        state=booked, reminded_at=None, begun_at=None, starts_at__gt=now, starts_at__lte=now + REMIND_BEFORE
    )
    to_begin = Reservation.objects.filter(state=booked, begun_at=None, starts_at__lte=now, ends_at__gt=now)
    to_end = Reservation.objects.filter(state=booked, ended_at=None, ends_at__lte=now)
    undecided_requests = Reservation.objects.filter(state=requested, ends_at__lte=now)
    done = 0
    for rows, act in (
        (to_remind, _remind),
        (to_begin, _begin),
        (to_end, _end),
        (undecided_requests, _cancel_undecided),
    ):
        for key in list(rows.order_by("starts_at", "pk").values_list("pk", flat=True)[:BATCH]):
            with transaction.atomic():
                # Check the state again under lock: the reservation may have been cancelled, changed or
                # processed meanwhile.
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
        _("%(amounts)s reserved for %(team)s from %(time)s")
        % {
            "amounts": format_amounts(row.amounts),
            "team": row.team.name,
            "time": format_clock(row.starts_at, row.starts_at),
        },
        _("“%(title)s”, %(span)s. Workspaces started then have priority.")
        % {"title": row.title, "span": _span(row)},
        url(row),
    )


def _begin(row: Reservation, now: datetime) -> None:
    row.begun_at = now
    row.save(update_fields=["begun_at"])
    _record(SYSTEM, row, "begun", f"started to keep {format_amounts(row.amounts)} free for {row.team.name}")
    emit(LimitsChanged())


def _end(row: Reservation, now: datetime) -> None:
    row.ended_at = now
    row.save(update_fields=["ended_at"])
    _record(SYSTEM, row, "ended", f"stopped keeping capacity free for “{row.title}” of {row.team.name}")
    emit(LimitsChanged())


def _cancel_undecided(row: Reservation, _now: datetime) -> None:
    row.state, row.note = ReservationState.CANCELLED, _("Not decided in time.")
    row.save(update_fields=["state", "note"])
    _refresh_approvals(row)
    _record(SYSTEM, row, "missed", f"closed “{row.title}” of {row.team.name}: nobody decided it in time")
    _notify(
        row,
        _("%(what)s was not decided in time") % {"what": _quoted_title(row)},
        SYSTEM,
        _span(row),
    )


# --- helpers --------------------------------------------------------------------------------------------


def _span(row: Reservation) -> str:
    return format_time_span(row.starts_at, row.ends_at)


def _description(row: Reservation) -> str:
    """Return the amounts, the team and the period as text."""
    params = {"amounts": format_amounts(row.amounts), "team": row.team.name, "span": _span(row)}
    return _("%(amounts)s for %(team)s, %(span)s") % params


def _quoted_title(row: Reservation) -> str:
    return _("“%(title)s” of %(team)s") % {"title": row.title, "team": row.team.name}


def url(row: Reservation) -> str:
    return reverse("reservations:reservation", args=[row.pk])


def _clean(
    title: str, amounts: Amounts, starts_at: datetime, ends_at: datetime, earliest: datetime
) -> dict[str, Any]:
    """Validate and normalise the fields. Raises `InvalidInput` with all errors at once."""
    problems: dict[str, list[Reason]] = {}
    title = " ".join(strip_nul(title).split())
    if not 0 < len(title) <= MAX_TITLE:
        problems["title"] = [Reason(ReservationCode.TITLE_LENGTH, {"max": MAX_TITLE})]
    cleaned = _clean_amounts(amounts)
    if isinstance(cleaned, Reason):
        problems["amounts"] = [cleaned]
    starts_at, ends_at = starts_at.replace(second=0, microsecond=0), ends_at.replace(second=0, microsecond=0)
    if starts_at < earliest - MAX_PAST:
        problems["starts_at"] = [Reason(ReservationCode.START_NOT_IN_FUTURE)]
    if ends_at - starts_at < MIN_LENGTH:
        minutes = int(MIN_LENGTH.total_seconds() // 60)
        problems["ends_at"] = [Reason(ReservationCode.TOO_SHORT, {"minutes": minutes})]
    elif ends_at > timezone.now() + MAX_AHEAD:
        problems["ends_at"] = [Reason(ReservationCode.ENDS_TOO_LATE)]
    if problems:
        first = next(iter(problems.values()))[0]
        raise InvalidInput(Reason(CommonCode.CORRECT_AND_RETRY, {"first": first.as_json()}), errors=problems)
    return {"title": title, "amounts": cleaned, "starts_at": starts_at, "ends_at": ends_at}


def _clean_amounts(amounts: Amounts) -> dict[str, int] | Reason:
    """Return the amounts with normalised resource names, or the reason why they are invalid."""
    if not 0 < len(amounts) <= MAX_RESOURCES:
        return Reason(ReservationCode.RESOURCES_COUNT, {"max": MAX_RESOURCES})
    bookable = selectors.bookable_amounts()
    cleaned: dict[str, int] = {}
    for key, amount in amounts.items():
        name = key.strip().lower()
        if name not in bookable:
            if not resources.is_resource(name):
                return Reason(QuotaCode.NO_SUCH_RESOURCE, {"resource": name})
            return Reason(ReservationCode.NOT_RESERVABLE, {"resource": name, "known": list(bookable)})
        if not isinstance(amount, int) or isinstance(amount, bool) or amount <= 0:
            return Reason(ReservationCode.RESERVE_NOTHING, {"resource": name})
        if amount > bookable[name]:
            params = {"resource": name, "capacity": bookable[name], "wanted": amount}
            return Reason(ReservationCode.MORE_THAN_SITE_HAS, params)
        cleaned[name] = amount
    return cleaned


def _fields(row: Reservation) -> dict[str, Any]:
    return {
        "title": row.title, "amounts": row.amounts, "starts_at": row.starts_at, "ends_at": row.ends_at,
    }  # fmt: skip


def _as_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in fields.items()}


def _is_reduction(cleaned: Mapping[str, Any], row: Reservation) -> bool:
    """Return whether the change only reduces the booked capacity."""
    inside = row.starts_at <= cleaned["starts_at"] and cleaned["ends_at"] <= row.ends_at
    return inside and all(amount <= row.amounts.get(name, 0) for name, amount in cleaned["amounts"].items())


def _lock_calendar() -> None:
    """Serialise bookings with each other and with the scheduling cycle."""
    PlacementLock.hold()


def _locked(actor: User | SystemActor, reservation_id: UUID) -> Reservation:
    reservation = (
        Reservation.objects.select_for_update(of=("self",))
        .select_related("team", "created_by", "decided_by")
        .filter(pk=reservation_id)
        .first()
    )
    if reservation is None or not selectors.may_see(actor, reservation):
        raise NotFound(Reason(ReservationCode.NO_SUCH_RESERVATION))
    return reservation


def _require_open(reservation: Reservation) -> None:
    if reservation.state == ReservationState.REQUESTED:
        return
    params = {
        "title": reservation.title,
        "by": reservation.decided_by.username if reservation.decided_by else "",
    }
    raise StateConflict(
        Reason(ReservationCode.BOOKED_ALREADY, params)
        if reservation.state == ReservationState.BOOKED
        else Reason(ReservationCode.CANCELLED_ALREADY, params)
    )


def _require_room(cleaned: Mapping[str, Any], but: UUID | None = None) -> None:
    result = selectors.check(cleaned["amounts"], cleaned["starts_at"], cleaned["ends_at"], but=but)
    if not result.fits:
        raise StateConflict(
            result.reason,
            next_start=result.next_start.isoformat() if result.next_start else None,
        )


def _record(actor: User | SystemActor, row: Reservation, action: str, message: str, **data: Any) -> None:
    events.record(
        actor=actor,
        kind=AuditKind(f"reservation.{action}"),
        team=row.team,
        message=message,
        data={"reservation": str(row.pk), **_as_json(_fields(row)), **data},
    )


def _audit_data(actor: User, row: Reservation) -> dict[str, Any]:
    """Return the audit data of a decision: the delegating approver, and whether the request is their own."""
    details: dict[str, Any] = {}
    if actor.pk in (row.created_by_id, row.changed_by_id):
        details["own"] = True
    if not (actor.operates or approvers.is_approver(actor)) and (lender := approvers.delegator_of(actor)):
        details["in_place_of"] = lender.username
    return details


def _refresh_approvals(row: Reservation) -> None:
    """Refresh open pages of deciders, for whom the reservation no longer waits."""
    events.refresh_pages(decisions.deciders_of(row))


def _notify(row: Reservation, title: str, actor: User | SystemActor, body: str = "") -> None:
    """Notify the team's owners and the creator, except the actor."""
    users = {user.pk: user for user in owners_of(row.team)}
    if row.created_by is not None:
        users[row.created_by.pk] = row.created_by
    if isinstance(actor, User):
        users.pop(actor.pk, None)
    events.notify(users.values(), "reservation.changed", title, body, url(row))
