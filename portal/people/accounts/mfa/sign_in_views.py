"""Sign-in pages for the second factor and for passkeys."""

from __future__ import annotations

from allauth.account.internal.flows.login import record_authentication
from allauth.account.internal.stagekit import clear_login
from allauth.account.stages import LoginStageController
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from portal.common import request_context
from portal.common.errors import InvalidInput
from portal.common.htmx import local_path
from portal.common.texts import strip_nul
from portal.people.accounts import devices, limits, lockout, login_flow, sessions
from portal.people.accounts.mfa import attempts, factors, passkeys
from portal.people.accounts.mfa.passkeys import ChallengePurpose
from portal.people.accounts.mfa.stages import SecondFactor
from portal.people.accounts.models import User


@login_not_required
@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def second_factor(request: HttpRequest) -> HttpResponse:
    """Ask for a code or passkey after the password. Redirects to sign-in if no password was given."""
    if request.user.is_authenticated:
        return redirect("home:home")
    stage = pending(request)
    if stage is None:
        return redirect("accounts:sign-in")
    user: User = stage.login.user
    problem = ""
    if request.method == "POST":
        try:
            used = _check_factor(request, user)
        except InvalidInput as error:
            problem = error.sentence
        else:
            record_authentication(request, user, method="mfa", type=used)
            response = stage.exit()
            devices.remember_browser(request, response, user, trust=bool(request.POST.get("trust")))
            return response
    overview = factors.overview_of(user)
    context = {
        "problem": problem,
        "has_app": overview.app_since is not None,
        "has_passkeys": bool(overview.passkeys),
        "has_codes": bool(overview.codes_left),
        "trusted_days": settings.BERTH_TRUSTED_DEVICE_DAYS,
        "username": user.username,
    }
    return render(request, "accounts/second_factor.html", context, status=400 if problem else 200)


@login_not_required
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def passkey(request: HttpRequest) -> HttpResponse:
    """GET: return the options for a passkey, as second factor or for sign-in. POST: sign in."""
    if request.method != "POST":
        stage = pending(request)
        if stage is not None and request.GET.get("for") == "second-factor":
            options = passkeys.options_to_use(request, ChallengePurpose.SECOND_FACTOR, user=stage.login.user)
        else:
            name = strip_nul(request.GET.get("username", "")).strip().lower()[:150]
            options = passkeys.options_to_use(request, ChallengePurpose.SIGN_IN, name=name)
        return JsonResponse(options)
    next_url = local_path(request.POST.get("next", ""))
    if request.user.is_authenticated:
        return redirect(next_url)
    key = f"passkey:{limits.network_of(request_context.current().address)}"
    if limits.current_count(key, window=attempts.WINDOW) >= settings.BERTH_SIGN_IN_FAILURES_PER_ADDRESS:
        return lockout.refused_sign_in_page(request)
    try:
        user = attempts.passkey(request, ChallengePurpose.SIGN_IN, request.POST.get("credential", ""))
    except InvalidInput as error:
        limits.count(key, window=attempts.WINDOW)
        sessions.sign_in_failed(username="", locked_out=False)
        messages.error(request, error.sentence)
        return redirect("accounts:sign-in")
    return login_flow.begin(request, user, how="passkey", next_url=next_url)


def pending(request: HttpRequest) -> SecondFactor | None:
    """Return the second-factor stage waiting in this session, or None if it is no longer valid."""
    stage = LoginStageController.enter(request, SecondFactor.key)
    if not isinstance(stage, SecondFactor):
        return None
    if not stage.is_current():
        clear_login(request)
        messages.error(request, _("The account was changed. Sign in again."))
        return None
    return stage


def _check_factor(request: HttpRequest, user: User) -> str:
    if request.POST.get("credential"):
        attempts.passkey(request, ChallengePurpose.SECOND_FACTOR, request.POST["credential"], user=user)
        return str(factors.Type.WEBAUTHN)
    return str(attempts.code(request, user, request.POST.get("code", "")))
