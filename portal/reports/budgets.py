"""Monthly spending of teams, from daily sums of GPU use."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime

from django.db.models import Sum
from django.utils import timezone

from portal.quota.ledger import budgets
from portal.quota.ledger.domain_events import BudgetChanged
from portal.reports.models import Dimension, GpuDay


def spending_by_team(month: date) -> dict[str, int]:
    """Return the spending in thousandths of a cent, by team slug. `month` is the first day of the month."""
    after = date(month.year + month.month // 12, month.month % 12 + 1, 1)
    rows = GpuDay.objects.filter(team="", dimension=Dimension.TEAM, day__gte=month, day__lt=after, cost__gt=0)
    return {row["key"]: row["spent"] for row in rows.values("key").annotate(spent=Sum("cost"))}


def run(days: Iterable[date], now: datetime | None = None) -> int:
    """Update budgets with the spending in the months of these days, earliest month first."""
    now = now or timezone.now()
    months = {day.replace(day=1) for day in days} | {budgets.month_of(now)}
    return sum(budgets.store_spending(month, spending_by_team(month), now=now) for month in sorted(months))


def budget_changed(event: BudgetChanged) -> None:
    """Apply the current spending to a new or changed budget."""
    month = budgets.month_of(timezone.now())
    budgets.store_spending(month, spending_by_team(month), only=event.team)
