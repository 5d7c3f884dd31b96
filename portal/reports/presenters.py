"""Presenters of the reports: texts and plots. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.common import plots
from portal.common.formatting import MILLI_GPU_S_PER_HOUR, format_money, format_number, format_share
from portal.common.plots import Line, Plot, Style, TableRow
from portal.reclaim.engine.idle_time import KeptReason
from portal.reports.gpu_use import DAY, Amounts, GpuUseReport
from portal.reports.idle_gpus import IdleAmounts, IdleReport
from portal.reports.models import Dimension

DIMENSION_LABELS = {
    Dimension.TEAM.value: gettext_lazy("Team"),
    Dimension.USER.value: gettext_lazy("User"),
    Dimension.FLAVOR.value: gettext_lazy("Flavor"),
    Dimension.MODEL.value: gettext_lazy("Model"),
    Dimension.NODE.value: gettext_lazy("Node"),
    DAY: gettext_lazy("Day (UTC)"),
}
NONE = "–"


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A row of the table as text. A dash means not measured or not applicable."""

    key: str
    allocated: str
    used: str
    idle: str
    missing: str
    reclaimed: str
    waited: str
    cost: str
    idle_share: str


def hours(amount: int) -> str:
    """Return GPU-hours with one decimal."""
    return format_number(amount / MILLI_GPU_S_PER_HOUR, 1)


def row(key: str, amounts: Amounts) -> UsageRow:
    """Return a table row for the amounts."""
    unseen = not amounts.held_measured
    return UsageRow(
        key or _("none"),
        hours(amounts.held),
        NONE if unseen else hours(amounts.held_used),
        NONE if unseen else hours(amounts.idle),
        hours(amounts.missing),
        hours(amounts.reclaimed),
        hours(amounts.waited),
        format_money(amounts.money) if amounts.cost else NONE,
        format_share(amounts.idle_share),
    )


def finding(report: GpuUseReport) -> str:
    """Return a sentence about the idle share, compared with the preceding range."""
    dark, before = report.total.idle_share, report.before.idle_share
    if dark is None:
        return _("No measurements in this period.")
    sentence = _("%(dark)s of the measured GPU time was without work.") % {"dark": format_share(dark)}
    if before is None:
        return sentence
    points = round(100 * dark) - round(100 * before)
    if not points:
        return f"{sentence} {_('Same as in the previous period.')}"
    return "{} {}".format(
        sentence,
        _("Previous period: %(before)s.") % {"before": format_share(before)},
    )


def caveat(report: GpuUseReport) -> str:
    """Return a sentence about time without measurements, or an empty string."""
    share = report.total.unmeasured
    if not share or round(100 * share) == 0:
        return ""
    return _("%(share)s of the GPU time was not measured and is not included.") % {
        "share": format_share(share)
    }


def plot(report: GpuUseReport) -> Plot:
    """Return the plot of the idle share per day (UTC), in percent."""
    shares = tuple(
        None if amounts is None or amounts.idle_share is None else 100 * amounts.idle_share
        for _day, amounts in report.days
    )
    noon = datetime.combine(report.since, time(12), UTC)
    return Plot(
        key="days",
        title=finding(report),
        quantity=_("GPU time without work, % of measured time"),
        start_s=noon.timestamp(),
        step_s=plots.DAY_S,
        lines=(Line(_("without work"), Style.MEAN, shares),),
        columns=(_("Without work"),),
        rows=tuple(
            TableRow(
                datetime.combine(day, time(12), UTC),
                (format_share(amounts.idle_share if amounts is not None else None),),
            )
            for day, amounts in reversed(report.days)
        ),
        top=100,
    )


@dataclass(frozen=True, slots=True)
class IdleRow:
    """Idle GPU-hours of a team as text. `kept` has the hours by reason, in the order of `KeptReason`."""

    team: str
    idle: str
    kept: tuple[str, ...]
    given_back: str
    would_give_back: str


@dataclass(frozen=True, slots=True)
class IdleTable:
    """The table of idle GPU-hours. `sentence` is the summary; `since` is the first day, or empty."""

    sentence: str
    since: date
    reasons: tuple[str, ...]
    total: IdleRow
    rows: tuple[IdleRow, ...]


KEPT_WORDS = {
    KeptReason.KEPT_BY_USER: gettext_lazy("Kept by users"),
    KeptReason.OTHER_WORK: gettext_lazy("Other work"),
    KeptReason.NO_LIMIT: gettext_lazy("No limit"),
    KeptReason.BELOW_LIMIT: gettext_lazy("Below limit"),
}


def idle_table(report: IdleReport) -> IdleTable:
    """Return the table of idle GPU-hours."""
    total = report.total
    values = {
        "returned": _gpu_hours(total.returned),
        "share": format_share(_share_returned(total)),
        "idle": _gpu_hours(total.idle),
    }
    if total.returned or total.idle:
        sentence = (
            _("Reclaimed: %(returned)s GPU-hours, %(share)s of all idle time. Kept: %(idle)s.") % values
        )
    else:
        sentence = _("No idle GPUs recorded.")
    return IdleTable(
        sentence,
        report.since,
        tuple(str(words) for words in KEPT_WORDS.values()),
        _idle_row(_("Total"), total),
        tuple(_idle_row(line.team, line.amounts) for line in report.lines),
    )


def _share_returned(amounts: IdleAmounts) -> float | None:
    total = amounts.returned + amounts.idle
    return amounts.returned / total if total else None


def _idle_row(team: str, amounts: IdleAmounts) -> IdleRow:
    return IdleRow(
        team or _("none"),
        _gpu_hours(amounts.idle),
        tuple(_gpu_hours(amounts.kept.get(reason.value, 0.0)) for reason in KEPT_WORDS),
        _gpu_hours(amounts.returned),
        _gpu_hours(amounts.would_give_back),
    )


def _gpu_hours(amount: float) -> str:
    return hours(round(amount))
