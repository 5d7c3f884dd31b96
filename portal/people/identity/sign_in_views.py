"""Endpoints for browsers and providers during sign-in and sign-out. Pages are in templates/identity/."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from requests import RequestException

from portal.common.errors import NotFound, PortalError
from portal.common.htmx import local_path, public_url
from portal.common.reasons.reason import Reason
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import sessions
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.policies import require_administrator
from portal.people.identity import flow, lookups, oidc, presenters, registry, selectors, services
from portal.people.identity.codes import IdentityCode
from portal.people.identity.config import Ldap, Oidc, Provider, Saml
from portal.people.identity.forms import LookUpForm
from portal.people.identity.social import NotTrusted

log = logging.getLogger(__name__)


@login_not_required
@require_GET
@never_cache
def begin(request: HttpRequest, idp: str) -> HttpResponse:
    """Redirect the browser to the provider to sign in."""
    provider = _enabled_provider(idp)
    return _redirect_to_provider(request, provider, next_url=local_path(request.GET.get("next", "")))


@require_http_methods(["GET", "POST"])
@never_cache
def test(request: SignedInRequest, idp: str) -> HttpResponse:
    """Test a provider as administrator: by a round trip, or by a lookup in a directory."""
    require_administrator(request.user)
    provider = selectors.provider_for(request.user, idp)
    if isinstance(provider, Ldap):
        return _look_up(request, provider)
    if request.method == "POST":
        return redirect("identity:provider", idp)
    return _redirect_to_provider(request, provider, test=True)


def _look_up(request: SignedInRequest, provider: Ldap) -> HttpResponse:
    """Show the lookup form and its result."""
    form = LookUpForm(request.POST or None)
    context: dict[str, Any] = {
        "provider": presenters.provider_row(provider, selectors.figures()),
        "form": form,
    }
    status = form_status(form)
    if request.method == "POST" and form.is_valid():
        try:
            result = lookups.look_up(actor=request.user, provider=provider, **form.cleaned_data)
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
            status = error.status
        else:
            context["outcome"] = presenters.present_decision(result.decision)
            context["claims"] = presenters.claims_text(result.claims)
    return render(request, "identity/look_up.html", context, status=status)


def _redirect_to_provider(
    request: HttpRequest, provider: Provider, *, next_url: str = "", test: bool = False
) -> HttpResponse:
    try:
        match provider:
            case Oidc():
                return oidc.begin(request, provider, next_url=next_url, test=test)
            case Saml():
                answer: HttpResponse = _protocol().begin(request, provider, next_url=next_url, test=test)
                return answer
            case _:
                raise Http404
    except RequestException as error:
        return _provider_failed(request, provider, error)


def _provider_failed(request: HttpRequest, provider: Provider, error: RequestException) -> HttpResponse:
    """Render the page for a provider that does not answer, or not correctly."""
    log.warning("sign-in through %s failed: %s", provider.id, error)
    params: dict[str, Any] = {"provider": provider.name}
    if isinstance(error, NotTrusted):
        return flow.render_failure(
            request, provider, Reason(IdentityCode.PROVIDER_WRONG, {**params, "detail": str(error)})
        )
    return flow.render_failure(request, provider, Reason(IdentityCode.PROVIDER_DOWN, params))


@login_not_required
@require_GET
@never_cache
def oidc_callback(request: HttpRequest, idp: str) -> HttpResponse:
    """Handle the return from an OpenID Connect provider."""
    provider = _oidc(idp)
    try:
        return oidc.callback(request, provider)
    except RequestException as error:
        return _provider_failed(request, provider, error)


@login_not_required
@csrf_exempt
@require_POST
@never_cache
def oidc_signed_out(request: HttpRequest, idp: str) -> HttpResponse:
    """Handle back-channel logout: the provider reports a sign-out, and the user's sessions end."""
    provider = _oidc(idp)
    try:
        subject = oidc.signed_out_subject(provider, request.POST.get("logout_token", "")[:20_000])
    except NotTrusted as error:
        return JsonResponse({"error": "invalid_request", "error_description": str(error)}, status=400)
    except RequestException:
        return JsonResponse({"error": "temporarily_unavailable"}, status=503)
    services.end_sessions_of_subject(provider=provider, subject=subject)
    return HttpResponse(status=200)


@login_not_required
@require_GET
@never_cache
def offer_provider_sign_out(request: HttpRequest, idp: str) -> HttpResponse:
    """Offer to sign out at the provider after signing out here."""
    provider = _oidc(idp)
    stored = request.session.pop(sessions.LEFT, None)
    if not isinstance(stored, dict):
        return redirect("accounts:sign-in")
    back = public_url() + reverse("accounts:sign-in")
    try:
        url = oidc.end_session_url(provider, stored.get("id_token", ""), back)
    except RequestException as error:
        log.warning("could not notify %s of a sign-out: %s", provider.id, error)
        url = ""
    return render(request, "identity/signed_out.html", {"provider": provider, "url": url})


@require_http_methods(["GET", "HEAD"])
@never_cache
def show_test_result(request: SignedInRequest, idp: str) -> HttpResponse:
    """Show the result of the administrator's last test of the provider."""
    require_administrator(request.user)
    provider = selectors.provider_for(request.user, idp)
    result = flow.test_result(request, provider)
    if result is None:
        return redirect("identity:provider", idp)
    context = {
        "provider": presenters.provider_row(provider, selectors.figures()),
        "outcome": result["outcome"],
        "claims": presenters.claims_text(result["claims"]),
    }
    return render(request, "identity/tested.html", context)


@login_not_required
@csrf_exempt
@require_POST
@never_cache
def saml_acs(request: HttpRequest, idp: str) -> HttpResponse:
    """Accept a response posted by a SAML provider (assertion consumer service)."""
    answer: HttpResponse = _protocol().store_response(request, _saml(idp))
    return answer


@login_not_required
@require_GET
@never_cache
def saml_finish(request: HttpRequest, idp: str) -> HttpResponse:
    """Process the posted response in the browser's session."""
    answer: HttpResponse = _protocol().finish(request, _saml(idp))
    return answer


@login_not_required
@require_GET
def saml_metadata(request: HttpRequest, idp: str) -> HttpResponse:
    """Return the SAML metadata of the portal, which are public."""
    return HttpResponse(
        _protocol().metadata(request, _saml(idp)), content_type="application/samlmetadata+xml"
    )


def _protocol() -> ModuleType:
    # Imported lazily: loads two C libraries that only SAML needs.
    from portal.people.identity import saml

    return saml


def _saml(idp: str) -> Saml:
    try:
        provider = registry.provider_by_id(idp)
    except NotFound as error:
        raise Http404 from error
    if not isinstance(provider, Saml):
        raise Http404
    return provider


def _enabled_provider(idp: str) -> Provider:
    """Return the provider if it is enabled and redirects to its own page. Raises `Http404`."""
    try:
        provider = registry.provider_by_id(idp)
    except NotFound as error:
        raise Http404 from error
    if not provider.enabled or not isinstance(provider, Oidc | Saml):
        raise Http404
    return provider


def _oidc(idp: str) -> Oidc:
    try:
        provider = registry.provider_by_id(idp)
    except NotFound as error:
        raise Http404 from error
    if not isinstance(provider, Oidc):
        raise Http404
    return provider
