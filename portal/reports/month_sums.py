"""Adds up the days of whole months, so that a year need not be read day by day.

Sums of a month say of which days they were made. A day that was made anew is another one, so that its month's
sums count no more, and its days are read, until they are made again: no report is ever of what has been.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from itertools import groupby

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from portal.reports.days import BATCH, FIGURES, keep_days
from portal.reports.models import Dimension, GpuDay, GpuMonth

AT_ONCE = 3
"""A run makes so many at most: after an upgrade there may be two years of them."""
LATE_UNTIL_HOUR = 2
"""Until then days of the month before may still be made anew, by each run."""

SiteDay = tuple[date, int]
"""A day, and the key of its row of everything: whoever makes the day anew gives it another one."""


def begin_of(day: date) -> date:
    return day.replace(day=1)


def end_of(month: date) -> date:
    """Its last day."""
    return begin_of(month + timedelta(days=31)) - timedelta(days=1)


def made_of(days: Iterable[SiteDay]) -> dict[date, int]:
    """By month what its sums have to be made of, for days in order."""
    found = {}
    for month, rows in groupby(days, key=lambda row: begin_of(row[0])):
        text = " ".join(f"{day}:{pk}" for day, pk in rows)
        found[month] = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], signed=True)
    return found


def run(now: datetime | None = None) -> list[date]:
    """Add up months that are over, the newest first, a few at once; returns them. May be repeated."""
    now = (now or timezone.now()).astimezone(UTC)
    oldest = now.date() - timedelta(days=keep_days())
    days = GpuDay.objects.filter(
        team="", dimension=Dimension.ALL, day__gte=oldest, day__lt=begin_of(now.date())
    )
    wanted = made_of(days.order_by("day").values_list("day", "pk"))
    # The first days of the oldest go one by one.
    wanted.pop(begin_of(oldest), None)
    GpuMonth.objects.exclude(month__in=list(wanted)).delete()
    if now.hour < LATE_UNTIL_HOUR:
        return []
    markers = GpuMonth.objects.filter(team="", dimension=Dimension.ALL)
    there = dict(markers.values_list("month", "made_of"))
    due = [month for month in sorted(wanted, reverse=True) if there.get(month) != wanted[month]][:AT_ONCE]
    for month in due:
        _make(month, wanted[month])
    return due


def _make(month: date, of_days: int) -> None:
    """Its rows anew. Where a day is made anew meanwhile, they are of one that is no more and never count."""
    days = GpuDay.objects.filter(day__range=(month, end_of(month))).order_by()
    sums = days.values_list("team", "dimension", "key").annotate(*(Sum(name) for name in FIGURES))
    rows = [
        GpuMonth(
            month=month,
            made_of=of_days,
            team=team,
            dimension=dimension,
            key=key,
            **dict(zip(FIGURES, figures, strict=True)),
        )
        for team, dimension, key, *figures in sums
    ]
    with transaction.atomic():
        GpuMonth.objects.filter(month=month).delete()
        GpuMonth.objects.bulk_create(rows, batch_size=BATCH)
