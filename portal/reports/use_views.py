"""The report of GPU use as a page and as CSV; templates are in templates/reports/."""

from __future__ import annotations

import csv
from datetime import UTC, timedelta

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.csv_output import cell
from portal.common.htmx import partial_of
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.quota.ledger import budgets
from portal.reclaim.engine.idle_time import KeptReason
from portal.reports import gpu_use, idle_gpus, presenters
from portal.reports.api import amounts_json
from portal.reports.freed import STOPS
from portal.reports.idle_api import hours
from portal.reports.models import Dimension

DEFAULT_SPAN = 30


def _report(request: SignedInRequest) -> gpu_use.GpuUseReport:
    """Return the report for the query string. Uses defaults for invalid parameters."""
    team = strip_nul(request.GET.get("team", ""))
    by, span = request.GET.get("by", ""), request.GET.get("span", "")
    days = int(span) if span in map(str, gpu_use.SPANS) else DEFAULT_SPAN
    until = timezone.now().astimezone(UTC).date()
    since = until - timedelta(days=days - 1)
    default = Dimension.USER if team else Dimension.TEAM
    return gpu_use.report(
        actor=request.user, since=since, until=until, team=team, by=by if by in gpu_use.BY else default
    )


def _idle_report(request: SignedInRequest) -> idle_gpus.IdleReport:
    """Return the report of idle GPUs for the query string, limited to the recorded days."""
    team, span = strip_nul(request.GET.get("team", "")), request.GET.get("span", "")
    days = min(int(span) if span in map(str, gpu_use.SPANS) else DEFAULT_SPAN, DEFAULT_SPAN)
    until = timezone.now().astimezone(UTC).date()
    return idle_gpus.report(
        actor=request.user, since=until - timedelta(days=days - 1), until=until, team=team
    )


@require_safe
@never_cache
def gpu_use_page(request: SignedInRequest) -> HttpResponse:
    """Show GPU use. Redirects team owners without access to the site's report to that of their team."""
    teams = list(gpu_use.may_choose(request.user)[:500])
    if not request.GET.get("team") and not request.user.sees_all and teams:
        return redirect(f"{reverse('reports:gpu-use')}?team={teams[0].slug}")
    report = _report(request)
    context = {
        "report": report,
        "span": len(report.days),
        "spans": gpu_use.SPANS,
        "teams": teams,
        "choices": [
            (name, label)
            for name, label in presenters.DIMENSION_LABELS.items()
            if not (report.team is not None and name == Dimension.TEAM)
        ],
        "by_label": presenters.DIMENSION_LABELS[report.by],
        "caveat": presenters.caveat(report),
        "total": presenters.row("", report.total),
        "budget": budgets.statement(report.team) if report.team is not None else None,
        "plot": presenters.plot(report),
        "rows": [presenters.row(line.key, line.amounts) for line in report.lines],
        "idle": presenters.idle_table(_idle_report(request)),
    }
    return render(request, partial_of(request, "reports/gpu_use.html", "report"), context)


@require_safe
@never_cache
def gpu_use_csv(request: SignedInRequest) -> HttpResponse:
    """Return the lines of the report in GPU-hours as CSV. Unknown values are empty cells."""
    report = _report(request)
    answer = HttpResponse(content_type="text/csv; charset=utf-8")
    name = f"berth-gpu-use-{report.since}-{report.until}-{report.by}.csv"
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    table = csv.writer(answer)
    first = amounts_json(report.total)
    table.writerow([report.by, *first])
    for line in report.lines:
        cells = ["" if value is None else value for value in amounts_json(line.amounts).values()]
        table.writerow([cell(line.key), *cells])
    return answer


@require_safe
@never_cache
def idle_gpus_csv(request: SignedInRequest) -> HttpResponse:
    """Return idle GPU-hours by team as CSV: kept and freed, by reason."""
    report = _idle_report(request)
    answer = HttpResponse(content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = (
        f'attachment; filename="berth-idle-gpus-{report.since}-{report.until}.csv"'
    )
    table = csv.writer(answer)
    codes = sorted(STOPS)
    table.writerow(
        [
            *("team", "allocated", "idle"),
            *(f"kept:{reason.value}" for reason in KeptReason),
            *("given_back", *(f"given_back:{code}" for code in codes), "would_give_back"),
        ]
    )
    for line in report.lines:
        amounts = line.amounts
        figures = [
            amounts.held,
            amounts.idle,
            *(amounts.kept.get(reason.value, 0.0) for reason in KeptReason),
        ]
        figures += [amounts.returned, *(amounts.given_back.get(code, 0.0) for code in codes)]
        figures.append(amounts.would_give_back)
        table.writerow([cell(line.team), *map(hours, figures)])
    return answer
