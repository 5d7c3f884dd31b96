"""Notifies team owners about GPU use each month, also by e-mail.

A row per team and month is written in the same transaction as the notifications. If a run crashes before the
commit, no notification is sent; if two runs are concurrent, one finds the row.
"""

from __future__ import annotations

import logging
from datetime import UTC, date, datetime, time, timedelta

from django.db import transaction
from django.db.models import Sum
from django.utils import formats, timezone
from django.utils.translation import gettext as _

from portal.common.events import services as events
from portal.common.formatting import format_money, format_number, format_share
from portal.people.accounts.models import Team
from portal.people.accounts.selectors import owners_of
from portal.reclaim.models import IdleKind, IdlePeriod
from portal.reports import days, presenters
from portal.reports.days import FIGURES, HOUR_S
from portal.reports.gpu_use import Amounts
from portal.reports.models import Dimension, GpuDay, MonthlyReport

log = logging.getLogger(__name__)
KIND = "ledger.month"
FROM_HOUR = 6
"""Hour of the first day (UTC) at which owners are notified, as the month's last hours may arrive late."""
WITHIN_DAYS = 7
"""Days after which a missed month is no longer reported."""
MAX_IDLE = 3


def run(now: datetime | None = None) -> int:
    """Notify the owners about the last month if due, and return the number of teams."""
    now = (now or timezone.now()).astimezone(UTC)
    if now.day > WITHIN_DAYS or (now.day == 1 and now.hour < FROM_HOUR):
        return 0
    until = now.date().replace(day=1) - timedelta(days=1)
    since = until.replace(day=1)
    if any(day >= since for day in days.days_without_sums(until)):
        log.info("monthly report delayed: some days have no totals yet")
        return 0
    of_month = GpuDay.objects.filter(dimension=Dimension.ALL, day__range=(since, until), held__gt=0)
    slugs = set(of_month.exclude(team="").values_list("team", flat=True))
    existing = MonthlyReport.objects.filter(month=since)
    teams = Team.objects.filter(slug__in=slugs).exclude(pk__in=existing.values("team")).order_by("slug")
    return sum(_send_once(team, since, until) for team in teams)


def _send_once(team: Team, since: date, until: date) -> bool:
    try:
        with transaction.atomic():
            _row, new = MonthlyReport.objects.get_or_create(team=team, month=since)
            if new:
                _notify_owners(team, since, until)
            return new
    except Exception:
        # One team must not block the others. It is retried within the hour.
        log.exception("could not notify owners of %s about the report of %s", team.slug, since)
        return False


def _notify_owners(team: Team, since: date, until: date) -> None:
    events.notify(
        owners_of(team),
        kind=KIND,
        title=_("GPU use of %(team)s in %(month)s")
        % {"team": team.name, "month": formats.date_format(since, "F Y")},
        body="\n".join(report_sentences(team, since, until)),
        url=f"/reports/gpu-use/?team={team.slug}&span=90",
    )


def report_sentences(team: Team, since: date, until: date) -> list[str]:
    """Return the sentences of the notification."""
    rows = GpuDay.objects.filter(team=team.slug, dimension=Dimension.ALL, day__range=(since, until))
    sums = rows.aggregate(**{f"sum_{name}": Sum(name) for name in FIGURES})
    amounts = Amounts(*(sums[f"sum_{name}"] or 0 for name in FIGURES))
    sentences = [_("Allocated: %(hours)s GPU-hours.") % {"hours": presenters.hours(amounts.held)}]
    if amounts.idle_share is not None:
        sentences.append(
            _("Without work: %(dark)s of the measured time.") % {"dark": format_share(amounts.idle_share)}
        )
    if amounts.missing:
        sentences.append(
            _("Not measured: %(hours)s GPU-hours.") % {"hours": presenters.hours(amounts.missing)}
        )
    if amounts.cost:
        sentences.append(_("Cost: %(money)s.") % {"money": format_money(amounts.money)})
    idle = most_idle_workspaces(team, since, until)
    if idle:
        listed = ", ".join(f"{name} ({format_number(hours, 1)})" for name, hours in idle)
        sentences.append(_("Most idle GPU-hours: %(names)s.") % {"names": listed})
    return sentences


def most_idle_workspaces(team: Team, since: date, until: date) -> list[tuple[str, float]]:
    """Return the workspaces with the most idle GPU-hours as `owner/name`, from retained data."""
    begin = datetime.combine(since, time(), UTC)
    end = datetime.combine(until, time(), UTC) + timedelta(days=1)
    periods = IdlePeriod.objects.filter(
        workspace__team=team, kind=IdleKind.GPU, ended_at__gt=begin, began_at__lt=end
    )
    seconds: dict[str, float] = {}
    for owner, name, gpus, began_at, ended_at in periods.values_list(
        "workspace__owner__username",
        "workspace__name",
        "workspace__flavor__accelerator_count",
        "began_at",
        "ended_at",
    ):
        lasted_s = (min(ended_at, end) - max(began_at, begin)).total_seconds()
        key = f"{owner}/{name}"
        seconds[key] = seconds.get(key, 0.0) + lasted_s * (gpus or 0) / HOUR_S
    ranked = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    return [(name, hours) for name, hours in ranked[:MAX_IDLE] if hours >= 0.1]
