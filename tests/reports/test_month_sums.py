"""Whole months are summed once, and a report always equals its days."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from random import Random

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.reports import gpu_use, month_sums
from portal.reports.days import FIGURES
from portal.reports.models import Dimension, GpuDay, GpuMonth
from tests.factories import TeamFactory

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 10, 12, tzinfo=UTC)
FIRST = date(2026, 6, 20)
DAYS = [FIRST + timedelta(days=each) for each in range((NOW.date() - FIRST).days + 1)]
KEYS = {
    "": [(Dimension.TEAM, "vision"), *((Dimension.USER, f"user-{each}") for each in range(4))],
    "vision": [(Dimension.USER, "user-1"), (Dimension.USER, "user-2")],
}


def write(chance: Random, days: list[date]) -> None:
    """Rewrite these days with other figures; not every user has some on each day."""
    GpuDay.objects.filter(day__in=days).delete()
    GpuDay.objects.bulk_create(
        GpuDay(
            day=day,
            team=team,
            dimension=dimension,
            key=key,
            **{name: chance.randrange(10**12) for name in FIGURES},
        )
        for day in days
        for team, keys in KEYS.items()
        for dimension, key in [(Dimension.ALL, ""), *keys]
        if dimension == Dimension.ALL or chance.random() < 0.7
    )


def plainly(team: str, by: str, since: date, until: date) -> list[gpu_use.GpuUseLine]:
    """Return the lines, summed directly from each row."""
    sums: dict[str, list[int]] = {}
    for row in GpuDay.objects.filter(team=team, dimension=by, day__range=(since, until)):
        there = sums.setdefault(row.key, [0] * len(FIGURES))
        sums[row.key] = [before + getattr(row, name) for before, name in zip(there, FIGURES, strict=True)]
    lines = [gpu_use.GpuUseLine(key, gpu_use.Amounts(*figures)) for key, figures in sums.items()]
    return sorted(lines, key=lambda line: (-line.amounts.held, -line.amounts.waited, line.key))


@pytest.fixture
def days(clock) -> Random:
    clock.move_to(NOW)
    TeamFactory(slug="vision")
    chance = Random(7)
    write(chance, DAYS)
    return chance


def check(chance: Random, olga, spans: int = 6) -> None:
    for number in range(spans):
        # The first of the month, complete.
        since, until = sorted(chance.sample(DAYS, 2)) if number else (DAYS[0], DAYS[-1])
        for team, by in (("", "user"), ("vision", "user"), ("", "team")):
            found = gpu_use.report(actor=olga, since=since, until=until, team=team, by=by)
            assert list(found.lines) == plainly(team, by, since, until)
            for part, whole in ((found.total, (since, until)), (found.before, before(since, until))):
                lines = plainly(team, Dimension.ALL, *whole)
                assert part == (lines[0].amounts if lines else gpu_use.Amounts())


def before(since: date, until: date) -> tuple[date, date]:
    return since - (until - since) - timedelta(days=1), since - timedelta(days=1)


def test_report_equals_the_sum_of_its_days(days, olga):
    check(days, olga, 1)
    # The current month and the partial first one are summed as far as they go.
    assert month_sums.run(NOW) == [date(2026, month, 1) for month in (10, 9, 8)]
    check(days, olga)
    assert month_sums.run(NOW) == [date(2026, month, 1) for month in (7, 6)]
    check(days, olga)
    assert month_sums.run(NOW) == []
    for _ in range(3):
        # Days arrive late, are rewritten, or are deleted.
        write(days, days.sample(DAYS, 5))
        GpuDay.objects.filter(day__in=days.sample(DAYS, 2)).delete()
        check(days, olga, 2)
        assert month_sums.run(NOW)
        check(days, olga, 2)


def test_report_of_a_year_uses_month_sums(days, olga):
    """A sum that no day has reveals its source, and disappears when a day is rewritten."""
    month_sums.run(NOW)
    GpuMonth.objects.filter(month=date(2026, 9, 1), team="", key="user-1").update(held=10**17)

    def most() -> int:
        return gpu_use.report(actor=olga, since=DAYS[0], until=DAYS[-1], by="user").lines[0].amounts.held

    assert most() > 10**17
    # Not for a partial month.
    found = gpu_use.report(actor=olga, since=date(2026, 9, 2), until=DAYS[-1], by="user")
    assert found.lines[0].amounts.held < 10**17
    found = gpu_use.report(actor=olga, since=DAYS[0], until=date(2026, 9, 29), by="user")
    assert found.lines[0].amounts.held < 10**17
    write(days, [date(2026, 9, 30)])
    assert most() < 10**17
    assert month_sums.run(NOW)[0] == date(2026, 9, 1)
    assert most() < 10**17


def test_no_sums_during_recalculation_and_old_ones_are_deleted(days, settings):
    assert month_sums.run(NOW.replace(hour=1)) == []
    month_sums.run(NOW)
    month_sums.run(NOW)
    settings.BERTH_KEEP_HOURS_DAYS = 1
    later = datetime(2028, 8, 20, 1, tzinfo=UTC)
    # From then on 731 days back are in August 2026: that month is read by day.
    assert month_sums.run(later) == []
    months = GpuMonth.objects.order_by("month").values_list("month", flat=True).distinct()
    assert list(months) == [date(2026, 9, 1), date(2026, 10, 1)]


def test_keys_of_a_year_take_three_queries(days, olga):
    month_sums.run(NOW)
    with CaptureQueriesContext(connection) as seen:
        gpu_use.report(actor=olga, since=DAYS[0], until=DAYS[-1], by="user")
    assert len(seen) == 3
