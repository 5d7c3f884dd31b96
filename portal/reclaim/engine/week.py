"""Weekly schedules: working hours, stop hours and start hours, each in its own time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY = timedelta(days=1)
NIGHT_S = 12 * 3600
"""Seconds for which a stop hour applies without working hours."""


@dataclass(frozen=True, slots=True)
class Week:
    """A weekly schedule. Times are local in `zone` (IANA).

    - `days`: working days from `DAYS`, except `holidays`; working hours last from `begins` to `ends`.
    - `after_hours_s`: idle limit outside working hours; None: the usual one.
    - `stop_at`: hour at which unused workspaces stop on these days, holidays included; None: never. It
      applies until working hours begin.
    - `start_at`: hour at which workspaces stopped that way start again on these days except holidays; None:
      never.

    A time that daylight saving skips is shifted later; if a time is repeated, the first applies.
    """

    zone: str
    days: frozenset[str]
    begins: time | None = None
    ends: time | None = None
    after_hours_s: int | None = None
    stop_at: time | None = None
    holidays: frozenset[date] = frozenset()
    start_at: time | None = None

    def is_working_time(self, now_s: float) -> bool:
        """Return whether `now_s` is working time. Always true without working hours."""
        return _is_working_time(self, now_s)

    def stop_near(self, now_s: float, notice_s: float) -> float | None:
        """Return the stop hour that applies now or within `notice_s`, or None."""
        return _stop_near(self, now_s, notice_s)

    def stops(self, from_s: float, until_s: float) -> list[float]:
        """Return all stop hours from `from_s` (inclusive) to `until_s` (exclusive)."""
        if self.stop_at is None:
            return []
        return _moments(self, self.stop_at, from_s, until_s, holidays=True)

    def starts(self, from_s: float, until_s: float) -> list[float]:
        """Return all start hours from `from_s` (inclusive) to `until_s` (exclusive)."""
        if self.start_at is None:
            return []
        return _moments(self, self.start_at, from_s, until_s, holidays=False)

    def start_due(self, stopped_s: float, now_s: float) -> bool:
        """Return whether a workspace stopped at `stopped_s` is due to start.

        True if a start hour has passed since, without a later stop hour. Starts can be late by up to
        `NIGHT_S`.
        """
        past = self.starts(max(stopped_s + 1, now_s - 8 * 86_400), now_s + 1)
        return bool(past) and not self.stops(past[-1] + 1, now_s + 1) and now_s < past[-1] + NIGHT_S

    def next_start(self, now_s: float) -> float | None:
        """Return the next start hour, or None if there is none within a month."""
        return next(iter(self.starts(now_s, now_s + 31 * 86_400)), None)

    def boundaries(self, from_s: float, until_s: float) -> list[float]:
        """Return the starts and ends of working hours from `from_s` to `until_s`."""
        return [
            moment
            for at in (self.begins, self.ends)
            if at is not None
            for moment in _moments(self, at, from_s, until_s, holidays=False)
        ]


def _moments(week: Week, at: time, from_s: float, until_s: float, *, holidays: bool) -> list[float]:
    """Return the occurrences of `at` on the schedule's days."""
    zone = ZoneInfo(week.zone)
    day = datetime.fromtimestamp(from_s, zone).date() - DAY
    last = datetime.fromtimestamp(until_s, zone).date()
    moments = []
    while day <= last:
        if DAYS[day.weekday()] in week.days and (holidays or day not in week.holidays):
            moment = datetime.combine(day, at, tzinfo=zone).timestamp()
            if from_s <= moment < until_s:
                moments.append(moment)
        day += DAY
    return moments


# Cached, because a pass needs the same result for thousands of workspaces.
@lru_cache(maxsize=1024)
def _is_working_time(week: Week, now_s: float) -> bool:
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
    stops = week.stops(now_s - week_s, now_s + notice_s + 1)
    if not stops:
        return None
    stop_s = stops[-1]
    if stop_s >= now_s:
        return stop_s
    begins = _moments(week, week.begins, stop_s, now_s + 1, holidays=False) if week.begins is not None else []
    is_over = bool(begins) if week.begins is not None else now_s >= stop_s + NIGHT_S
    return None if is_over else stop_s
