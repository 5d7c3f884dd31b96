"""Reports GPU use over a range of days, for the page, REST and CSV."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, timedelta
from operator import add
from typing import Any

from django.db.models import QuerySet, Sum
from django.utils import timezone

from portal.common.errors import InvalidInput
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import require_manage_team, require_operator
from portal.people.accounts.selectors import team_by_slug
from portal.reports import month_sums
from portal.reports.codes import ReportCode
from portal.reports.days import FIGURES
from portal.reports.models import Dimension, GpuDay, GpuMonth

DAY = "day"
BY = (*(dimension.value for dimension in Dimension if dimension is not Dimension.ALL), DAY)
SPANS = (7, 30, 90, 365)
MAX_DAYS = 731
MAX_ROWS = 1000
COST_PER_UNIT = 100_000


@dataclass(frozen=True, slots=True)
class Amounts:
    """Thousandths of GPU-seconds, and of cents for `cost`, as in `GpuDay`."""

    capacity: int = 0
    measured: int = 0
    used: int = 0
    held: int = 0
    held_measured: int = 0
    held_used: int = 0
    reclaimed: int = 0
    waited: int = 0
    cost: int = 0

    @property
    def money(self) -> float:
        """The cost of allocated time, in the site's currency."""
        return self.cost / COST_PER_UNIT

    @property
    def idle(self) -> int:
        """The amount allocated and measured, but not used."""
        return max(0, self.held_measured - self.held_used)

    @property
    def missing(self) -> int:
        """The amount allocated but not measured, which is neither used nor idle."""
        return max(0, self.held - self.held_measured)

    @property
    def idle_share(self) -> float | None:
        """The share of measured time without work, 0 to 1; `None` if nothing was measured.

        Covers the time of all devices or, if only allocations are known (as for a team), allocated time.
        """
        measured, used = (self.measured, self.used) if self.capacity else (self.held_measured, self.held_used)
        return max(0.0, 1 - used / measured) if measured else None

    @property
    def unmeasured(self) -> float | None:
        """The share without measurements, 0 to 1, of the time that `idle_share` covers."""
        total, measured = (self.capacity, self.measured) if self.capacity else (self.held, self.held_measured)
        return max(0.0, 1 - measured / total) if total else None


@dataclass(frozen=True, slots=True)
class GpuUseLine:
    """A row of the report: a team, user, flavor, model, node or day."""

    key: str
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class GpuUseReport:
    """GPU use from `since` to `until`, both inclusive (UTC).

    `days` has an entry for each day, `None` without sums; `before` is the preceding range of the same length.
    `lines` are grouped `by` a dimension, largest allocation first, up to `MAX_ROWS`; `cut` means that there
    are more.
    """

    since: date
    until: date
    team: Team | None
    by: str
    total: Amounts
    before: Amounts
    days: tuple[tuple[date, Amounts | None], ...]
    lines: tuple[GpuUseLine, ...]
    cut: bool


def may_choose(actor: User) -> QuerySet[Team]:
    """Return the teams whose reports the actor may read."""
    if actor.sees_all:
        return Team.objects.order_by("slug")
    return Team.objects.filter(memberships__user=actor, memberships__role="owner").order_by("slug")


def report(
    *,
    actor: User,
    since: date | None = None,
    until: date | None = None,
    team: str = "",
    by: str = Dimension.TEAM,
) -> GpuUseReport:
    """Return GPU use from daily and monthly sums, with three queries plus permission checks.

    For operators and auditors, and for a team's owners. Raises `NotAllowed`, `NotFound`, `InvalidInput`.
    """
    of_team = team_for(actor, team)
    today = timezone.now().astimezone(UTC).date()
    until = until or today
    since = since or until - timedelta(days=29)
    if by not in BY:
        reason = Reason(ReportCode.BREAKDOWN_UNKNOWN, {"known": list(BY)})
        raise InvalidInput(reason, errors={"by": [reason]})
    if not 0 <= (until - since).days < MAX_DAYS:
        reason = Reason(ReportCode.DAYS_OUT_OF_RANGE, {"maximum": MAX_DAYS})
        raise InvalidInput(reason, errors={"since": [reason]})
    length = (until - since).days + 1
    earlier = since - timedelta(days=length)
    by_day, whole_months = _days(team, earlier, until)
    days = tuple(
        (day, by_day.get(day)) for day in (since + timedelta(days=offset) for offset in range(length))
    )
    if by == DAY:
        lines = [
            GpuUseLine(day.isoformat(), amounts) for day, amounts in reversed(days) if amounts is not None
        ]
    else:
        lines = _lines(team, by, [day for day, _amounts in days], whole_months)
    return GpuUseReport(
        since,
        until,
        of_team,
        by,
        _total([amounts for _day, amounts in days if amounts is not None]),
        _total([amounts for day, amounts in by_day.items() if day < since]),
        days,
        tuple(lines[:MAX_ROWS]),
        len(lines) > MAX_ROWS,
    )


def _days(team: str, since: date, until: date) -> tuple[dict[date, Amounts], dict[date, int]]:
    """Return the amounts per day, and the `identity_of_days` of each month, with one query."""
    rows = GpuDay.objects.filter(
        team__in={"", team}, dimension=Dimension.ALL, day__range=(since, until)
    ).order_by("day")
    by_day: dict[date, Amounts] = {}
    of_site: list[tuple[date, int]] = []
    for day, pk, of_team, *figures in rows.values_list("day", "pk", "team", *FIGURES):
        if not of_team:
            of_site.append((day, pk))
        if of_team == team:
            by_day[day] = Amounts(*figures)
    return by_day, month_sums.identity_of_days(of_site)


def _lines(team: str, by: str, days: Sequence[date], whole_months: Mapping[date, int]) -> list[GpuUseLine]:
    """Return lines by key, largest allocation first, from sums of whole months and other days.

    Uses two queries.
    """
    sums: dict[str, list[int]] = {}
    summed_months: set[date] = set()
    months = GpuMonth.objects.filter(team=team, dimension=by, month__range=(days[0], days[-1]))
    for month, of_days, key, *figures in months.order_by().values_list("month", "made_of", "key", *FIGURES):
        if whole_months.get(month) == of_days and month_sums.month_end(month) <= days[-1]:
            summed_months.add(month)
            _add(sums, key, figures)
    unsummed = [day for day in days if month_sums.month_start(day) not in summed_months]
    rows = GpuDay.objects.filter(team=team, dimension=by, day__in=unsummed).order_by()
    for key, *figures in rows.values_list("key").annotate(*(Sum(name) for name in FIGURES)):
        _add(sums, key, figures)
    lines = [GpuUseLine(key, Amounts(*figures)) for key, figures in sums.items()]
    return heapq.nsmallest(
        MAX_ROWS + 1, lines, key=lambda line: (-line.amounts.held, -line.amounts.waited, line.key)
    )


def _add(sums: dict[str, list[int]], key: str, figures: Sequence[int]) -> None:
    before = sums.get(key)
    sums[key] = list(figures) if before is None else list(map(add, before, figures))


def team_for(actor: User, slug: str) -> Team | None:
    """Return the requested team, or `None` for the site. Checks permissions."""
    if not slug:
        if not actor.sees_all:
            require_operator(actor)
        return None
    team = team_by_slug(actor, slug)
    if not actor.sees_all:
        require_manage_team(actor, team)
    return team


def _total(items: list[Amounts]) -> Amounts:
    values: dict[str, Any] = {
        column.name: sum(getattr(amounts, column.name) for amounts in items) for column in fields(Amounts)
    }
    return Amounts(**values)
