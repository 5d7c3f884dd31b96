"""What teams have spent in a month: the days of GPUs, added up. The one arithmetic of money."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime

from django.db.models import Sum
from django.utils import timezone

from portal.quota.ledger import budgets
from portal.quota.ledger.domain_events import BudgetChanged
from portal.reports.models import Dimension, GpuDay


def spent_in(month: date) -> dict[str, int]:
    """Thousandths of a cent by the team's short name; `month` is its first day."""
    after = date(month.year + month.month // 12, month.month % 12 + 1, 1)
    rows = GpuDay.objects.filter(team="", dimension=Dimension.TEAM, day__gte=month, day__lt=after, cost__gt=0)
    return {row["key"]: row["spent"] for row in rows.values("key").annotate(spent=Sum("cost"))}


def run(days: Iterable[date], now: datetime | None = None) -> int:
    """Tell budgets what was spent in the months of the days that were added up, the earliest first."""
    now = now or timezone.now()
    months = {day.replace(day=1) for day in days} | {budgets.month_of(now)}
    return sum(budgets.take_spent(month, spent_in(month), now=now) for month in sorted(months))


def budget_changed(event: BudgetChanged) -> None:
    """A budget that is new or another one stands as it should at once."""
    month = budgets.month_of(timezone.now())
    budgets.take_spent(month, spent_in(month), only=event.team)
