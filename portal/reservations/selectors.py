"""What is reserved, and whether more fits beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.accounts.models import Team, User
from portal.common.actors import SystemActor
from portal.common.errors import NotFound
from portal.common.formatting import format_amount, format_resource_amount
from portal.quotas import policies, resources
from portal.quotas.presenters.bars import in_order
from portal.quotas.selectors import limits
from portal.quotas.selectors.site import site_capacity
from portal.reservations import slots
from portal.reservations.models import Reservation, ReservationStatus
from portal.reservations.slots import Booked, Clash

Amounts = Mapping[str, int]


def bookable() -> dict[str, int]:
    """What can be reserved, and how much the site has of it: accelerators that are there and work."""
    there = {
        name: amount
        for name, amount in site_capacity().items()
        if resources.is_accelerator(name) or name == resources.GPU
    }
    return {name: there[name] for name in in_order(there)}


def visible_to(actor: User | SystemActor) -> Q:
    """What is booked is everybody's business; what is only asked for, or was, the team's and deciders'."""
    if isinstance(actor, SystemActor) or policies.sees_every_team(actor):
        return Q()
    own = Team.objects.filter(memberships__user=actor)
    return Q(status=ReservationStatus.BOOKED) | Q(team__in=own)


def may_see(actor: User | SystemActor, row: Reservation) -> bool:
    return row.status == ReservationStatus.BOOKED or policies.may_view_team(actor, row.team)


def reservations_for(actor: User) -> QuerySet[Reservation]:
    """All that the actor may see; `team`, `created_by` and `decided_by` are there without a query each."""
    rows = Reservation.objects.select_related("team", "created_by", "decided_by")
    return rows.filter(visible_to(actor))


def reservation_by_id(actor: User, reservation_id: UUID) -> Reservation:
    found = reservations_for(actor).filter(pk=reservation_id).first()
    if found is None:
        raise NotFound("There is no such reservation that you may see.", next_action="Look at the calendar.")
    return found


def known_teams(actor: User) -> set[UUID] | None:
    """The teams whose reservations the actor sees with their titles; None for all."""
    if policies.sees_every_team(actor):
        return None
    return set(actor.memberships.values_list("team_id", flat=True))


def of_team(team: Team) -> QuerySet[Reservation]:
    """The team's reservations that last or are to come."""
    return Reservation.objects.filter(team=team, ends_at__gt=timezone.now()).exclude(
        status=ReservationStatus.CANCELLED
    )


def spoken(amounts: Amounts) -> str:
    """Amounts as people say them: "2 × H100 and 1 × A100"."""
    parts = [format_resource_amount(name, amounts[name]) for name in in_order(amounts)]
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else "nothing"


def booked_between(start: datetime, end: datetime | None = None, but: UUID | None = None) -> list[Booked]:
    """What is booked at any time between the two moments, for `bookings`."""
    rows = Reservation.objects.filter(status=ReservationStatus.BOOKED, ends_at__gt=start)
    if end is not None:
        rows = rows.filter(starts_at__lt=end)
    if but is not None:
        rows = rows.exclude(pk=but)
    return [
        Booked(team, amounts, int(first.timestamp()), int(last.timestamp()))
        for team, amounts, first, last in rows.values_list("team__name", "amounts", "starts_at", "ends_at")
    ]


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a reservation fits, in words. `next_start` is the first time at which it would."""

    fits: bool
    sentence: str
    next_action: str = ""
    next_start: datetime | None = None
    clash: Clash | None = None


def check(amounts: Amounts, starts_at: datetime, ends_at: datetime, but: UUID | None = None) -> Check:
    """Whether `amounts` fit beside what is booked (but for one reservation) at every moment of the time."""
    there = bookable()
    start_s, end_s = int(starts_at.timestamp()), int(ends_at.timestamp())
    others = booked_between(starts_at, but=but)
    found = slots.clash(amounts, start_s, end_s, others, there)
    if found is None:
        return Check(True, _fits_sentence(amounts, start_s, end_s, others, there))
    free_s = slots.first_fit(amounts, start_s, end_s, others, there)
    next_start = datetime.fromtimestamp(free_s, UTC) if free_s is not None else None
    advice = []
    if found.left > 0:
        advice.append(f"Take at most {format_amount(found.resource, found.left)}")
    if next_start:
        advice.append(f"begin at {next_start:%d %b %Y, %H:%M} UTC")
    words = " or ".join(advice)
    return Check(
        fits=False,
        sentence=_clash_sentence(found),
        next_action=f"{words[:1].upper()}{words[1:]}." if words else "Choose another model.",
        next_start=next_start,
        clash=found,
    )


def _fits_sentence(
    amounts: Amounts, start_s: int, end_s: int, others: Iterable[Booked], there: Amounts
) -> str:
    parts = []
    for name in in_order(amounts):
        taken = slots.peak(name, start_s, end_s, others)
        total = format_resource_amount(name, there.get(name, 0))
        said = (
            f"{format_amount(name, taken)} of {total} booked by others" if taken else f"{total}, none booked"
        )
        parts.append(said)
    return f"Fits: {'; '.join(parts)} in that time."


def _clash_sentence(found: Clash) -> str:
    at = datetime.fromtimestamp(found.at_s, UTC)
    total = format_resource_amount(found.resource, found.capacity)
    if not found.holders:
        return f"The site has {total}: {format_amount(found.resource, found.wanted)} do not fit."
    named = [f"{format_amount(found.resource, amount)} by {team}" for team, amount in found.holders[:3]]
    more = f" and {len(found.holders) - 3} more teams" if len(found.holders) > 3 else ""
    until = datetime.fromtimestamp(found.until_s, UTC)
    return (
        f"{format_amount(found.resource, found.booked)} of {total} are booked at {at:%d %b, %H:%M} UTC"
        f" ({', '.join(named)}{more}), until {until:%d %b, %H:%M} at least:"
        f" {format_amount(found.resource, found.left)} left,"
        f" {format_amount(found.resource, found.wanted)} wanted."
    )


def beyond_limits(team: Team, amounts: Amounts) -> list[str]:
    """What of the amounts the team may never hold at once by its quota, as sentences."""
    found = []
    for name in in_order(amounts):
        bar = limits.bar_of(team, name)
        if bar is not None and bar.limit is not None and amounts[name] > bar.limit:
            most = format_resource_amount(name, bar.limit)
            found.append(f"{team.name} may hold {most} at most by its quota: the rest would lie unused.")
    return found


def booked_from(now: datetime) -> Iterable[tuple[str, str, dict[str, int], int, int]]:
    """What is booked from now on: id, team, amounts, start and end in seconds."""
    for pk, team, amounts, start, end in Reservation.objects.filter(
        status=ReservationStatus.BOOKED, ends_at__gt=now
    ).values_list("pk", "team__slug", "amounts", "starts_at", "ends_at"):
        yield str(pk), team, amounts, int(start.timestamp()), int(end.timestamp())
