"""Pages of a user's own GPU-hours, and actions on a team's ledger and budget."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.common import etags
from portal.common.errors import InvalidInput, PortalError
from portal.common.formatting import format_gpu_hours, format_money, parse_input
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.models import Team
from portal.quota.ledger import budgets, own_use, services
from portal.quota.ledger.codes import LedgerCode
from portal.quota.ledger.models import Period
from portal.quota.limits import resources
from portal.quota.limits.forms import parse_amount
from portal.quota.limits.selectors import limits


@require_safe
@never_cache
def own_use_page(request: SignedInRequest) -> HttpResponse:
    """Show the GPU-hours of the user's own workspaces over the last few days."""
    plot = own_use.plot_of(own_use.own_use(request.user))
    return render(request, "quotas/own_use.html", {"plot": plot})


@require_http_methods(["GET", "HEAD", "POST"])
def ledger(request: SignedInRequest, slug: str) -> HttpResponse:
    """Set, close or credit a ledger. A GET, as after signing in again, only shows the team's page."""
    team = limits.team_for(request.user, slug)
    if request.method == "POST":
        try:
            messages.success(request, _execute(request, team))
        except PortalError as error:
            messages.error(request, error.sentence)
    return redirect(f"{reverse('home:team', args=[team.slug])}#ledger")


@require_http_methods(["GET", "HEAD", "POST"])
def budget(request: SignedInRequest, slug: str) -> HttpResponse:
    """Set or delete a budget in money. A GET, as after signing in again, only shows the team's page."""
    team = limits.team_for(request.user, slug)
    if request.method == "POST":
        try:
            messages.success(request, _execute_budget_action(request, team))
        except PortalError as error:
            messages.error(request, error.sentence)
    return redirect(f"{reverse('home:team', args=[team.slug])}#budget")


def _execute_budget_action(request: SignedInRequest, team: Team) -> str:
    action, expected = request.POST.get("do"), etags.expected_versions(request)
    if action == "remove":
        budgets.remove_budget(actor=request.user, team=team, expected=expected)
        return _("Budget of %(team)s removed.") % {"team": team.name}
    if action == "set":
        try:
            cents = parse_input(strip_nul(request.POST.get("amount", "")), budgets.CENTS)
        except ValueError as error:
            raise InvalidInput(Reason(LedgerCode.BUDGET_OUT_OF_RANGE)) from error
        budgets.set_budget(
            actor=request.user,
            team=team,
            amount_cents=cents,
            blocks="blocks" in request.POST,
            expected=expected,
        )
        params = {"team": team.name, "money": format_money(cents / budgets.CENTS)}
        return _("Budget of %(team)s set to %(money)s per month.") % params
    raise InvalidInput(Reason(CommonCode.CHOOSE_WHAT_TO_DO))


def _execute(request: SignedInRequest, team: Team) -> str:
    action, expected = request.POST.get("do"), etags.expected_versions(request)
    if action == "close":
        services.close_ledger(actor=request.user, team=team, expected=expected)
        return _("GPU-hour limit of %(team)s removed.") % {"team": team.name}
    text = strip_nul(request.POST.get("hours", "")).strip()
    if action == "set":
        quota = parse_amount(text, resources.GPU_HOURS, "hours")
        period = request.POST.get("period", Period.MONTH)
        services.set_ledger(actor=request.user, team=team, quota=quota, period=period, expected=expected)
        params = {
            "team": team.name,
            "hours": format_gpu_hours(quota),
            "period": Period(period).label.lower(),
        }
        return _("%(team)s now has %(hours)s GPU-hours %(period)s.") % params
    if action == "credit":
        amount = parse_amount(text.removeprefix("-"), resources.GPU_HOURS, "hours")
        amount = -amount if text.startswith("-") else amount
        services.credit(actor=request.user, team=team, amount=amount, note=request.POST.get("note", ""))
        return _("%(hours)s GPU-hours credited.") % {"hours": format_gpu_hours(amount)}
    raise InvalidInput(Reason(CommonCode.CHOOSE_WHAT_TO_DO))
