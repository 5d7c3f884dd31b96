"""Presents a week of reservations as a table: one row per resource, one cell per day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from django.utils.translation import gettext as _

from portal.common.formatting import format_amount, format_resource, format_resource_amount
from portal.common.reasons.wording import join_names
from portal.quota.limits import resources
from portal.quota.limits.presenters.bars import sort_resources
from portal.quota.reservations.models import Reservation, ReservationState
from portal.quota.reservations.slots import BookedSlot, peak

DAYS = 7


@dataclass(frozen=True, slots=True)
class Entry:
    """A reservation in one cell. `titled`: the user may see its title."""

    row: Reservation
    amount: str
    hours: str
    titled: bool

    @property
    def asked(self) -> bool:
        return self.row.state == ReservationState.REQUESTED


@dataclass(frozen=True, slots=True)
class Cell:
    """A day of a resource: its reservations, and the peak of the booked amounts."""

    day: date
    today: bool
    entries: tuple[Entry, ...]
    booked: str
    full: bool


@dataclass(frozen=True, slots=True)
class ResourceWeek:
    """A resource over the week, with the site's amount."""

    label: str
    total: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Week:
    """7 days from `first`, in UTC."""

    first: date
    lines: tuple[ResourceWeek, ...]

    @property
    def days(self) -> list[date]:
        return [self.first + timedelta(days=n) for n in range(DAYS)]

    @property
    def last(self) -> date:
        return self.first + timedelta(days=DAYS - 1)

    @property
    def before(self) -> date:
        return self.first - timedelta(days=DAYS)

    @property
    def after(self) -> date:
        return self.first + timedelta(days=DAYS)


def format_amounts(amounts: Mapping[str, int]) -> str:
    """Format amounts: "2 × H100 and 1 × A100"."""
    parts = [format_resource_amount(name, amounts[name]) for name in sort_resources(amounts)]
    return join_names(parts) or _("nothing")


def week_bounds(first: date) -> tuple[datetime, datetime]:
    """Return the start of the week and of the next one."""
    start = datetime.combine(first, time(), UTC)
    return start, start + timedelta(days=DAYS)


def week(
    first: date,
    rows: Iterable[Reservation],
    site_amounts: Mapping[str, int],
    visible_teams: set[object] | None,
    today: date,
) -> Week:
    """Return the week of `rows`, sorted by start.

    `site_amounts`: the site's amounts; `visible_teams`: as `known_teams`.
    """
    listed = list(rows)
    names = sort_resources(
        {*site_amounts, *(name for row in listed for name in row.amounts)} - {resources.GPU}
    )
    booked = [
        BookedSlot(row.team.name, row.amounts, int(row.starts_at.timestamp()), int(row.ends_at.timestamp()))
        for row in listed
        if row.state == ReservationState.BOOKED
    ]
    lines = []
    for name in names:
        cells = []
        for number in range(DAYS):
            day = first + timedelta(days=number)
            start = datetime.combine(day, time(), UTC)
            end = start + timedelta(days=1)
            inside = [
                row for row in listed if name in row.amounts and row.starts_at < end and row.ends_at > start
            ]
            most = peak(name, int(start.timestamp()), int(end.timestamp()), booked)
            cells.append(
                Cell(
                    day=day,
                    today=day == today,
                    entries=tuple(_entry(row, name, start, end, visible_teams) for row in inside),
                    booked=format_amount(name, most) if most else "",
                    full=most >= site_amounts.get(name, 0) > 0,
                )
            )
        lines.append(
            ResourceWeek(format_resource(name), format_amount(name, site_amounts.get(name, 0)), tuple(cells))
        )
    return Week(first, tuple(lines))


def _entry(
    row: Reservation, name: str, start: datetime, end: datetime, visible_teams: set[object] | None
) -> Entry:
    begins = "" if row.starts_at <= start else f"{row.starts_at:%H:%M}"
    ends = "" if row.ends_at >= end else f"{row.ends_at:%H:%M}"
    hours = _("all day") if not begins and not ends else f"{begins or '…'}–{ends or '…'}"
    titled = visible_teams is None or row.team_id in visible_teams
    return Entry(row, format_amount(name, row.amounts[name]), hours, titled)
