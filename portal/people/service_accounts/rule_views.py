"""Pages of trust rules. See templates/service_accounts/rules.html for the context."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from portal.common.errors import PortalError
from portal.common.htmx import public_url
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.mfa.proof import require_fresh_proof
from portal.people.accounts.models import User
from portal.people.accounts.policies import may_manage_team, require_manage_team
from portal.people.service_accounts import rules, selectors
from portal.people.service_accounts.exchange import issuers
from portal.people.service_accounts.exchange.conditions import from_json
from portal.people.service_accounts.forms import ClaimsForm, RuleForm

PRESETS = {
    "github": "repository = OWNER/NAME\nrepository_id = 0\nref = refs/heads/main",
    "gitlab": "project_path = GROUP/PROJECT\nref_type = branch\nref = main",
}


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def listing(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """List the rules. Team owners and operators can create one."""
    account = selectors.service_account_by_name(request.user, slug, username)
    if request.method != "POST":
        return _render_rules(request, account)
    _require_manage(request, account)
    form = RuleForm(request.POST)
    if form.is_valid():
        try:
            rule = rules.create(actor=request.user, account=account, **form.service_arguments())
        except PortalError as error:
            problems = error.field_errors
            for name in ("lifetime", "max_lifetime"):
                if f"{name}_s" in problems:
                    problems[name] = problems.pop(f"{name}_s")
            add_problems(form, problems, error.sentence)
        else:
            messages.success(request, _("Trust rule “%(name)s” created.") % {"name": rule.name})
            return redirect("service_accounts:trust-rules", slug, username)
    return _render_rules(request, account, form=form)


@sensitive_post_parameters("claims")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def check(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Show how the rules evaluate given claims. A GET only shows the rules."""
    account = selectors.service_account_by_name(request.user, slug, username)
    if request.method != "POST":
        return redirect("service_accounts:trust-rules", slug, username)
    form = ClaimsForm(request.POST)
    checked = form.is_valid()
    previews = (
        rules.preview(rules.rules_of(request.user, account), form.cleaned_data["claims"]) if checked else None
    )
    return _render_rules(request, account, claims_form=form, previews=previews)


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: SignedInRequest, slug: str, username: str, trust_id: UUID) -> HttpResponse:
    """Delete a rule. A GET only shows the rules."""
    account = selectors.service_account_by_name(request.user, slug, username)
    if request.method == "POST":
        rule = rules.rule_by_id(request.user, account, trust_id)
        rules.delete(actor=request.user, rule=rule)
        messages.success(
            request,
            _("Trust rule “%(name)s” deleted. Tokens already issued stay valid until they expire.")
            % {"name": rule.name},
        )
    return redirect("service_accounts:trust-rules", slug, username)


def _render_rules(request: SignedInRequest, account: User, **context: Any) -> HttpResponse:
    team = account.owning_team
    assert team is not None
    preset = PRESETS.get(request.GET.get("preset", ""), "")
    form = context.pop("form", None) or RuleForm(initial={"audience": public_url(), "conditions": preset})
    claims_form = context.pop("claims_form", None) or ClaimsForm()
    account_rules = rules.rules_of(request.user, account)
    template_context = {
        "account": account,
        "team": team,
        "rules": [(rule, from_json(rule.conditions)) for rule in account_rules],
        "may_manage": may_manage_team(request.user, team),
        "issuers": issuers.allowed(),
        "form": form,
        "claims_form": claims_form,
        "public_url": public_url(),
        **context,
    }
    status = 400 if 400 in (form_status(form), form_status(claims_form)) else 200
    return render(request, "service_accounts/rules.html", template_context, status=status)


def _require_manage(request: SignedInRequest, account: User) -> None:
    assert account.owning_team is not None
    require_manage_team(request.user, account.owning_team)
