"""Queries for reservations, and checks whether another one fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.common.actors import SystemActor
from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of
from portal.people.accounts.models import Team, User
from portal.quota.limits import policies, resources
from portal.quota.limits.presenters.bars import sort_resources
from portal.quota.limits.selectors import limits
from portal.quota.limits.selectors.site import site_capacity
from portal.quota.reservations import policies as decisions
from portal.quota.reservations import slots
from portal.quota.reservations.codes import ReservationCode
from portal.quota.reservations.models import Reservation, ReservationState
from portal.quota.reservations.slots import BookedSlot, SlotConflict

Amounts = Mapping[str, int]


def bookable_amounts() -> dict[str, int]:
    """Return the accelerators in service at the site, which can be reserved, by resource."""
    bookable = {
        name: amount
        for name, amount in site_capacity().items()
        if resources.is_accelerator(name) or name == resources.GPU
    }
    return {name: bookable[name] for name in sort_resources(bookable)}


def visible_to(actor: User | SystemActor) -> Q:
    """Return the filter for visible reservations: all for approvers, else booked and own teams'."""
    if isinstance(actor, SystemActor) or policies.sees_every_team(actor):
        return Q()
    own = Team.objects.filter(memberships__user=actor)
    return Q(state=ReservationState.BOOKED) | Q(team__in=own)


def may_see(actor: User | SystemActor, row: Reservation) -> bool:
    return row.state == ReservationState.BOOKED or policies.may_view_team(actor, row.team)


def reservations_for(actor: User) -> QuerySet[Reservation]:
    """Return reservations that the actor may see, with `team`, `created_by` and `decided_by` joined."""
    rows = Reservation.objects.select_related("team", "created_by", "decided_by")
    return rows.filter(visible_to(actor))


def reservation_by_id(actor: User, reservation_id: UUID) -> Reservation:
    reservation = reservations_for(actor).filter(pk=reservation_id).first()
    if reservation is None:
        raise NotFound(Reason(ReservationCode.NO_SUCH_RESERVATION))
    return reservation


def reservations_to_decide(actor: User) -> QuerySet[Reservation]:
    """Return reservations for the actor to decide, earliest start first."""
    rows = Reservation.objects.select_related("team", "created_by")
    return rows.filter(decisions.filter_decidable(actor)).order_by("starts_at", "pk")


def known_teams(actor: User) -> set[UUID] | None:
    """Return the teams whose reservation titles the actor may see; None for all."""
    if policies.sees_every_team(actor):
        return None
    return set(actor.memberships.values_list("team_id", flat=True))


def reservations_of_team(team: Team) -> QuerySet[Reservation]:
    """Return the team's current and future reservations."""
    return Reservation.objects.filter(team=team, ends_at__gt=timezone.now()).exclude(
        state=ReservationState.CANCELLED
    )


def bookings_between(
    start: datetime, end: datetime | None = None, but: UUID | None = None
) -> list[BookedSlot]:
    """Return the booked slots within the period."""
    rows = Reservation.objects.filter(state=ReservationState.BOOKED, ends_at__gt=start)
    if end is not None:
        rows = rows.filter(starts_at__lt=end)
    if but is not None:
        rows = rows.exclude(pk=but)
    return [
        BookedSlot(team, amounts, int(first.timestamp()), int(last.timestamp()))
        for team, amounts, first, last in rows.values_list("team__name", "amounts", "starts_at", "ends_at")
    ]


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a reservation fits, and why. `next_start` is the first time at which it would fit."""

    fits: bool
    reason: Reason
    next_start: datetime | None = None
    clash: SlotConflict | None = None

    @property
    def sentence(self) -> str:
        """The result as a sentence: booked amounts, or the conflict."""
        return message_of(self.reason)

    @property
    def next_action(self) -> str:
        """The amounts or time that would fit, or an empty string."""
        return next_action_of(self.reason)


def check(amounts: Amounts, starts_at: datetime, ends_at: datetime, but: UUID | None = None) -> Check:
    """Check whether `amounts` fit beside other reservations (except `but`) throughout the period."""
    bookable = bookable_amounts()
    start_s, end_s = int(starts_at.timestamp()), int(ends_at.timestamp())
    others = bookings_between(starts_at, but=but)
    conflict = slots.find_conflict(amounts, start_s, end_s, others, bookable)
    if conflict is None:
        peaks = [
            [name, slots.peak(name, start_s, end_s, others), bookable.get(name, 0)]
            for name in sort_resources(amounts)
        ]
        return Check(True, Reason(ReservationCode.FITS, {"peaks": peaks}))
    free_s = slots.earliest_fitting_start(amounts, start_s, end_s, others, bookable)
    next_start = datetime.fromtimestamp(free_s, UTC) if free_s is not None else None
    return Check(False, _conflict_reason(conflict, next_start), next_start, conflict)


def _conflict_reason(conflict: SlotConflict, next_start: datetime | None) -> Reason:
    params: dict[str, Any] = {
        "resource": conflict.resource,
        "capacity": conflict.capacity,
        "wanted": conflict.wanted,
        "left": conflict.remaining,
        "next_start": next_start.isoformat() if next_start else None,
    }
    if not conflict.holders:
        return Reason(ReservationCode.SITE_TOO_SMALL, params)
    params |= {
        "booked": conflict.booked,
        "holders": [list(holder) for holder in conflict.holders],
        "at": datetime.fromtimestamp(conflict.at_s, UTC).isoformat(),
        "until": datetime.fromtimestamp(conflict.until_s, UTC).isoformat(),
    }
    return Reason(ReservationCode.BOOKED_BY_OTHERS, params)


def quota_excess_sentences(team: Team, amounts: Amounts) -> list[str]:
    """Return sentences on amounts beyond the team's quota."""
    messages = []
    for name in sort_resources(amounts):
        bar = limits.resource_usage(team, name)
        if bar is not None and bar.limit is not None and amounts[name] > bar.limit:
            params = {"team": team.name, "resource": name, "capacity": bar.limit}
            messages.append(message_of(Reason(ReservationCode.BEYOND_QUOTA, params)))
    return messages


def current_bookings(now: datetime) -> Iterable[tuple[str, str, dict[str, int], int, int]]:
    """Yield current and future bookings: id, team, amounts, start and end in seconds."""
    for pk, team, amounts, start, end in Reservation.objects.filter(
        state=ReservationState.BOOKED, ends_at__gt=now
    ).values_list("pk", "team__slug", "amounts", "starts_at", "ends_at"):
        yield str(pk), team, amounts, int(start.timestamp()), int(end.timestamp())
