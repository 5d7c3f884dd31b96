"""Pages of auto-approve rules and delegations (templates/quota_requests/rules.html)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common.errors import NotAllowed, PortalError
from portal.common.formatting import format_date
from portal.common.reasons.reason import Reason
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import approvers
from portal.people.accounts.forms import add_problems
from portal.people.accounts.models import Team
from portal.quota.requests import presenters
from portal.quota.requests import selectors as selectors
from portal.quota.requests.codes import RequestCode
from portal.quota.requests.forms import DelegationForm, RuleForm, base_units, end_after
from portal.quota.requests.services import rules as services

MAX_TEAMS = 500


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def rules(request: SignedInRequest) -> HttpResponse:
    """Show rules and delegations to delegates and operators too; approvers create rules."""
    _require_view(request)
    if request.method != "POST":
        return _page(request)
    services.require_approver(request.user)
    form = _rule_form(request)
    if form.is_valid():
        cleaned = form.cleaned_data
        try:
            rule = services.create_rule(
                actor=request.user,
                team=Team.objects.filter(slug=cleaned["team"]).first() if cleaned["team"] else None,
                resource=cleaned["resource"],
                amount_at_most=base_units(cleaned["resource"], cleaned["amount"]),
                hours_at_most=cleaned["hours"],
            )
        except PortalError as error:
            add_problems(form, _form_errors(error), error.message)
        else:
            messages.success(
                request,
                _("Rule created. Approved automatically: %(rule)s.") % {"rule": services.describe_rule(rule)},
            )
            return redirect("quota_requests:rules")
    return _page(request, rule_form=form)


def _require_view(request: SignedInRequest) -> None:
    if not (approvers.may_decide_all(request.user) or request.user.sees_all):
        raise NotAllowed(Reason(RequestCode.ONLY_DECIDERS_SEE_RULES))


def _form_errors(error: PortalError) -> dict[str, list[str]]:
    names = {"amount_at_most": "amount", "hours_at_most": "hours", "ends_at": "lasts"}
    return {names.get(name, name): texts for name, texts in error.field_errors.items()}


def _rule_form(request: SignedInRequest) -> RuleForm:
    teams = list(Team.objects.order_by("name")[:MAX_TEAMS])
    return RuleForm(
        request.POST if request.method == "POST" and "resource" in request.POST else None,
        teams=teams,
        resource_names=presenters.known_resources(teams),
    )


def _page(request: SignedInRequest, **forms: Any) -> HttpResponse:
    now = timezone.now()
    context = {
        "may_change": approvers.is_approver(request.user),
        "rules": [(rule, services.describe_rule(rule)) for rule in selectors.rules(request.user)],
        "delegations": [
            (item, item.starts_at <= now)
            for item in selectors.delegations(request.user).filter(ends_at__gt=now)
        ],
        "rule_form": forms.get("rule_form") or _rule_form(request),
        "delegation_form": forms.get("delegation_form") or DelegationForm(),
    }
    bound = [form for form in forms.values() if form.errors]
    return render(request, "quota_requests/rules.html", context, status=400 if bound else 200)


@require_http_methods(["GET", "HEAD", "POST"])
def change_rule(request: SignedInRequest, rule_id: UUID) -> HttpResponse:
    """Enable, disable or delete a rule. A GET, as after signing in again, only shows the list."""
    if request.method != "POST":
        return redirect("quota_requests:rules")
    _require_view(request)
    if "remove" in request.POST:
        services.delete_rule(actor=request.user, rule_id=rule_id)
        messages.success(request, _("Rule deleted. Its grants stay until they expire."))
    else:
        rule = services.change_rule(
            actor=request.user, rule_id=rule_id, enabled=request.POST.get("enabled") == "1"
        )
        messages.success(request, _("Rule enabled.") if rule.enabled else _("Rule disabled."))
    return redirect("quota_requests:rules")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delegate(request: SignedInRequest) -> HttpResponse:
    """Create a delegation. A GET, as after signing in again, only shows the list."""
    if request.method != "POST":
        return redirect("quota_requests:rules")
    services.require_approver(request.user)
    form = DelegationForm(request.POST)
    if form.is_valid():
        ends_at = end_after(form.cleaned_data["lasts"])
        try:
            delegation = services.delegate(
                actor=request.user,
                delegate=form.cleaned_data["delegate"],
                ends_at=ends_at or timezone.now(),
            )
        except PortalError as error:
            add_problems(form, _form_errors(error), error.sentence)
        else:
            done = {"username": delegation.delegate.username, "date": format_date(delegation.ends_at)}
            messages.success(request, _("%(username)s is your delegate until %(date)s.") % done)
            return redirect("quota_requests:rules")
    return _page(request, delegation_form=form)


@require_http_methods(["GET", "HEAD", "POST"])
def end_delegation(request: SignedInRequest, delegation_id: UUID) -> HttpResponse:
    """End a delegation now. A GET, as after signing in again, only shows the list."""
    if request.method == "POST":
        services.end_delegation(actor=request.user, delegation_id=delegation_id)
        messages.success(request, _("Delegation ended."))
    return redirect("quota_requests:rules")
