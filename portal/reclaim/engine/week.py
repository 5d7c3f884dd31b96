"""A week: working hours and the hour at which what is not used is stopped, in a time zone of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY = timedelta(days=1)
NIGHT_S = 12 * 3600
"""For how long an hour of stopping holds where no hours of work end it."""


@dataclass(frozen=True, slots=True)
class Week:
    """`days` are those of `DAYS` on which people work, but for `holidays`, from `begins` until `ends`.

    `after_hours_s` is the idle limit outside these hours, None where it is the usual one. `stop_at` is when
    what is not used is stopped on these days, on holidays too; None: never. It holds until people work again.
    `start_at` is when what was stopped so is started again, on these days but not on holidays; None: never.
    Times are local, in `zone` (IANA): one that a clock is put forward over comes as much later, and of one
    that comes twice the first counts.
    """

    zone: str
    days: frozenset[str]
    begins: time | None = None
    ends: time | None = None
    after_hours_s: int | None = None
    stop_at: time | None = None
    holidays: frozenset[date] = frozenset()
    start_at: time | None = None

    def works(self, now_s: float) -> bool:
        """Whether people work now. Without hours of work that is always so."""
        return _works(self, now_s)

    def stop_near(self, now_s: float, notice_s: float) -> float | None:
        """The hour of stopping that holds now, or does in less than `notice_s`; None where there is none."""
        return _stop_near(self, now_s, notice_s)

    def stops(self, from_s: float, until_s: float) -> list[float]:
        """All hours of stopping from one moment to another."""
        if self.stop_at is None:
            return []
        return _moments(self, self.stop_at, from_s, until_s, holidays=True)

    def starts(self, from_s: float, until_s: float) -> list[float]:
        """All hours of starting from one moment to another."""
        if self.start_at is None:
            return []
        return _moments(self, self.start_at, from_s, until_s, holidays=False)

    def start_due(self, stopped_s: float, now_s: float) -> bool:
        """Whether what was stopped at a moment before now is to be started again.

        An hour of starting has come since, and none of stopping after it: a morning that was missed is made
        up for on the same day, and otherwise on the next.
        """
        past = self.starts(max(stopped_s + 1, now_s - 8 * 86_400), now_s + 1)
        return bool(past) and not self.stops(past[-1] + 1, now_s + 1) and now_s < past[-1] + NIGHT_S

    def next_start(self, now_s: float) -> float | None:
        """The next hour of starting; None where there is none in the next month."""
        return next(iter(self.starts(now_s, now_s + 31 * 86_400)), None)

    def borders(self, from_s: float, until_s: float) -> list[float]:
        """When hours of work begin or end from one moment to another."""
        return [
            moment
            for at in (self.begins, self.ends)
            if at is not None
            for moment in _moments(self, at, from_s, until_s, holidays=False)
        ]


def _moments(week: Week, at: time, from_s: float, until_s: float, *, holidays: bool) -> list[float]:
    """When it is `at` on one of the days, from one moment to another."""
    zone = ZoneInfo(week.zone)
    day = datetime.fromtimestamp(from_s, zone).date() - DAY
    last = datetime.fromtimestamp(until_s, zone).date()
    found = []
    while day <= last:
        if DAYS[day.weekday()] in week.days and (holidays or day not in week.holidays):
            moment = datetime.combine(day, at, tzinfo=zone).timestamp()
            if from_s <= moment < until_s:
                found.append(moment)
        day += DAY
    return found


# A pass asks the same of thousands of workspaces.
@lru_cache(maxsize=1024)
def _works(week: Week, now_s: float) -> bool:
    if week.begins is None or week.ends is None:
        return True
    local = datetime.fromtimestamp(now_s, ZoneInfo(week.zone))
    day = local.date()
    if DAYS[day.weekday()] not in week.days or day in week.holidays:
        return False
    return week.begins <= local.time() < week.ends


@lru_cache(maxsize=1024)
def _stop_near(week: Week, now_s: float, notice_s: float) -> float | None:
    week_s = 8 * 86_400
    past = week.stops(now_s - week_s, now_s + notice_s + 1)
    if not past:
        return None
    stop_s = past[-1]
    if stop_s >= now_s:
        return stop_s
    begins = _moments(week, week.begins, stop_s, now_s + 1, holidays=False) if week.begins is not None else []
    over = bool(begins) if week.begins is not None else now_s >= stop_s + NIGHT_S
    return None if over else stop_s
