"""GPU-hours of a user's own workspaces by day, at the current rates of the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common import plots
from portal.common.formatting import format_gpu_hours
from portal.common.plots import Line, Plot, Style, TableRow
from portal.people.accounts.models import User
from portal.quota.ledger import accounting, spending

DAYS = 7


@dataclass(frozen=True, slots=True)
class OwnUse:
    """Daily GPU use (UTC days), oldest first, in weighted milli-GPU-seconds. Today is the last day."""

    days: tuple[tuple[date, int], ...]

    @property
    def total(self) -> int:
        return sum(amount for _day, amount in self.days)


def own_use(user: User, now: datetime | None = None) -> OwnUse:
    """Return the GPU use of the user's workspaces in all teams over the last `DAYS` days. Two queries."""
    now = now or timezone.now()
    today = now.astimezone(UTC).date()
    first = today - timedelta(days=DAYS - 1)
    usage = spending.intervals_of_owner(user.pk, datetime.combine(first, time(), UTC))
    weights = spending.weights()
    now_s = int(now.timestamp())
    days = []
    for day in (first + timedelta(days=offset) for offset in range(DAYS)):
        start_s = int(datetime.combine(day, time(), UTC).timestamp())
        end_s = min(start_s + plots.DAY_S, now_s)
        charged = sum(
            period.rate * (period.end_s - period.start_s)
            for period in spending.rate_periods(usage, weights, start_s, end_s)
        )
        days.append((day, charged // 1000))
    return OwnUse(tuple(days))


def plot_of(use: OwnUse) -> Plot:
    """Return the plot of the daily GPU-hours, with its table."""
    noons = [datetime.combine(day, time(12), UTC) for day, _amount in use.days]
    return Plot(
        key="own-use",
        title=_("%(hours)s GPU-hours in %(days)s days")
        % {"hours": format_gpu_hours(use.total), "days": len(use.days)},
        quantity=_("GPU-hours of your workspaces by day"),
        start_s=noons[0].timestamp(),
        step_s=plots.DAY_S,
        lines=(
            Line(
                _("GPU-hours"),
                Style.MEAN,
                tuple(amount / accounting.GPU_HOUR for _day, amount in use.days),
            ),
        ),
        columns=(_("GPU-hours"),),
        rows=tuple(
            TableRow(noon, (format_gpu_hours(amount),))
            for noon, (_day, amount) in reversed(list(zip(noons, use.days, strict=True)))
        ),
        digits=2,
    )
