"""Sums of whole months, so that a report over a year need not read each day.

The sums of a month record which days they include. A rewritten day has another key, which invalidates the
sums of its month. Reports then read the days of this month until its sums are written again, so reports are
never outdated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from itertools import groupby

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from portal.people.accounts.domain_events import TeamDeleted
from portal.reports.days import BATCH, FIGURES, keep_days
from portal.reports.models import Dimension, GpuDay, GpuMonth

AT_ONCE = 3
"""Maximum number of months per run. After an upgrade, up to 2 years may be missing."""
LATE_UNTIL_HOUR = 2
"""Hour (UTC) until which runs may still rewrite days of the previous month."""

SiteDay = tuple[date, int]
"""A day and the key of its total row. Rewriting the day changes the key."""


def month_start(day: date) -> date:
    return day.replace(day=1)


def month_end(month: date) -> date:
    """Return the last day of the month."""
    return month_start(month + timedelta(days=31)) - timedelta(days=1)


def identity_of_days(days: Iterable[SiteDay]) -> dict[date, int]:
    """Return the identity of each month's days. `days` are in order."""
    digests = {}
    for month, rows in groupby(days, key=lambda row: month_start(row[0])):
        text = " ".join(f"{day}:{pk}" for day, pk in rows)
        digests[month] = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], signed=True)
    return digests


def run(now: datetime | None = None) -> list[date]:
    """Write sums of past months, newest first, a few per run, and return them. Idempotent."""
    now = (now or timezone.now()).astimezone(UTC)
    oldest = now.date() - timedelta(days=keep_days())
    days = GpuDay.objects.filter(
        team="", dimension=Dimension.ALL, day__gte=oldest, day__lt=month_start(now.date())
    )
    current = identity_of_days(days.order_by("day").values_list("day", "pk"))
    # The oldest month may be incomplete, because its days expire one by one.
    current.pop(month_start(oldest), None)
    GpuMonth.objects.exclude(month__in=list(current)).delete()
    if now.hour < LATE_UNTIL_HOUR:
        return []
    markers = GpuMonth.objects.filter(team="", dimension=Dimension.ALL)
    digests = dict(markers.values_list("month", "made_of"))
    due = [month for month in sorted(current, reverse=True) if digests.get(month) != current[month]][:AT_ONCE]
    for month in due:
        _replace_rows(month, current[month])
    return due


def _replace_rows(month: date, of_days: int) -> None:
    """Replace the rows of a month. If a day is rewritten meanwhile, the rows are invalid."""
    days = GpuDay.objects.filter(day__range=(month, month_end(month))).order_by()
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


def team_deleted(event: TeamDeleted) -> None:
    """Move the sums of a deleted team to its new slug, like `days.team_deleted`."""
    GpuMonth.objects.filter(team=event.former_slug).update(team=event.team.slug)
    of_site = GpuMonth.objects.filter(team="", dimension=Dimension.TEAM, key=event.former_slug)
    of_site.update(key=event.team.slug)
