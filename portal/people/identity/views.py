"""Pages of sign-in providers, for administrators. See templates/identity/ for the contexts."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common.errors import PortalError
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.policies import require_administrator
from portal.people.accounts.selectors import user_by_name
from portal.people.identity import presenters, selectors, services
from portal.people.identity.config import Provider
from portal.people.identity.decisions import decide
from portal.people.identity.forms import ClaimsForm, LinkForm

ROWS_PER_PAGE = 50


@require_http_methods(["GET", "HEAD"])
@never_cache
def providers(request: SignedInRequest) -> HttpResponse:
    """List the configured providers with their state."""
    providers = selectors.providers_for(request.user)
    figures = selectors.figures()
    rows = [presenters.provider_row(provider, figures) for provider in providers]
    return render(request, "identity/providers.html", {"rows": rows})


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def provider(request: SignedInRequest, idp: str) -> HttpResponse:
    """Show a provider with its settings and rules, and preview claims. Changes nothing."""
    provider = selectors.provider_for(request.user, idp)
    if request.method == "POST":
        require_administrator(request.user)
    form = ClaimsForm(request.POST or None)
    outcome = None
    if request.method == "POST" and form.is_valid():
        outcome = presenters.present_decision(decide(provider, form.cleaned_data["claims"]))
    return _provider(request, provider, form=form, outcome=outcome)


def _provider(request: SignedInRequest, provider: Provider, **more: Any) -> HttpResponse:
    links = Paginator(selectors.links_of(request.user, provider), ROWS_PER_PAGE).get_page(
        request.GET.get("page")
    )
    context = {
        "provider": presenters.provider_row(provider, selectors.figures()),
        "settings": presenters.settings_of(provider),
        "rules": presenters.rule_rows(provider),
        "page": links,
        "form": ClaimsForm(),
        "link_form": LinkForm(),
        **more,
    }
    status = max(form_status(context["form"]), form_status(context["link_form"]))
    return render(request, "identity/provider.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def link(request: SignedInRequest, idp: str) -> HttpResponse:
    """Link an account. A GET, as after a new sign-in, only shows the provider."""
    provider = selectors.provider_for(request.user, idp)
    if request.method != "POST":
        return redirect("identity:provider", idp)
    require_administrator(request.user)
    form = LinkForm(request.POST)
    if form.is_valid():
        data = form.cleaned_data
        try:
            user = user_by_name(request.user, data["username"])
            services.link(
                actor=request.user,
                provider=provider,
                user=user,
                subject=data["subject"],
                expected=data["expected"],
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(request, _("%(username)s linked.") % {"username": user.username})
            return redirect("identity:provider", idp)
    return _provider(request, provider, link_form=form)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def unlink(request: SignedInRequest, idp: str, username: str) -> HttpResponse:
    """Ask for confirmation, then remove a link."""
    provider = selectors.provider_for(request.user, idp)
    require_administrator(request.user)
    back = reverse("identity:provider", args=[idp])
    if request.method == "POST":
        try:
            services.unlink(actor=request.user, provider_id=provider.id, username=username)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("%(username)s unlinked.") % {"username": username})
        return redirect(back)
    question = presenters.unlink_question(provider, username)
    return render(request, "confirm.html", {**question, "action": request.path, "back": back})
