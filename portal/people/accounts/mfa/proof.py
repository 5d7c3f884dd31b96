"""Step-up authentication: sensitive operations require a recent proof of identity.

A session starts with a proof. Pages use `require_fresh_proof`, REST uses `require_fresh`. API tokens are
exempt, because scopes limit them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django_htmx.http import HttpResponseClientRedirect

from portal.common.errors import InvalidInput, PortalError
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.people.accounts.mfa import attempts, factors
from portal.people.accounts.mfa.codes import MfaCode
from portal.people.accounts.mfa.passkeys import ChallengePurpose
from portal.people.accounts.models import ApiToken, User
from portal.people.accounts.session_store import PROVEN_AT

FIELDS = ("confirm_password", "confirm_code", "confirm_credential")

View = Callable[..., HttpResponse]


class ProofTooOld(PortalError):
    """The operation requires a fresh proof of identity, at `accounts:confirm`."""

    code = ProblemCode.REAUTHENTICATION_REQUIRED
    status = 403
    title = "Confirm that it is you"


def record_proof(request: HttpRequest) -> None:
    """Record that the user of this session has just proven their identity."""
    request.session[PROVEN_AT] = time.time()


def is_fresh(request: HttpRequest) -> bool:
    """Return whether the last proof is recent enough for sensitive operations."""
    minutes = settings.BERTH_STEP_UP_MINUTES
    return not minutes or time.time() - request.session.get(PROVEN_AT, 0) < minutes * 60


def require_fresh(request: Any) -> None:
    """Raise `ProofTooOld` for a REST request of a session without a recent proof."""
    if not isinstance(getattr(request, "auth", None), ApiToken) and not is_fresh(request):
        raise ProofTooOld(Reason(MfaCode.CONFIRM_FIRST))


def require_fresh_proof(
    view: View | None = None,
    *,
    when: Callable[..., bool] = lambda _request, **_named: True,
    reading: bool = False,
) -> Any:
    """Decorate a view: a POST requires a fresh proof, which it may include.

    Otherwise the response is a page that asks for a proof and repeats the POST with it, so that no input is
    lost and nothing is stored. `when` gets the request and the URL parameters and returns whether a proof is
    required. With `reading`, GET requires a proof as well, at `accounts:confirm`.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if is_fresh(request) or not when(request, **kwargs):
                return view(request, *args, **kwargs)
            htmx: Any = getattr(request, "htmx", None)
            if request.method != "POST":
                return (
                    redirect(_confirm(request.get_full_path())) if reading else view(request, *args, **kwargs)
                )
            if htmx:
                # A partial has no room for the confirmation page.
                return HttpResponseClientRedirect(_confirm(htmx.current_url_abs_path or "/"))
            problem = ""
            if any(field in request.POST for field in FIELDS):
                try:
                    confirm(request)
                except InvalidInput as error:
                    problem = error.sentence
                else:
                    return view(request, *args, **kwargs)
            return confirmation_page(request, problem=problem, action=request.get_full_path())

        return sensitive_post_parameters(*FIELDS)(checked)

    return decorate(view) if view is not None else decorate


def confirm(request: HttpRequest) -> None:
    """Verify the proof in the form: password, code or passkey. Raises `InvalidInput`."""
    user = request.user
    assert isinstance(user, User), "pages are private"
    data = request.POST
    if data.get("confirm_credential"):
        attempts.passkey(request, ChallengePurpose.CONFIRM, data["confirm_credential"], user=user)
    elif data.get("confirm_code"):
        attempts.code(request, user, data["confirm_code"])
    else:
        attempts.password(request, user, data.get("confirm_password", ""))
    record_proof(request)


def confirmation_page(request: HttpRequest, *, problem: str, action: str) -> HttpResponse:
    """Render the page that asks for a proof and repeats the POST to `action`."""
    user = request.user
    assert isinstance(user, User), "pages are private"
    skipped = {*FIELDS, "confirm_name", "csrfmiddlewaretoken"}
    repeated_fields = [
        (name, value) for name, values in request.POST.lists() if name not in skipped for value in values
    ]
    overview = factors.overview_of(user)
    context = {
        "problem": problem,
        "action": action,
        "carried": repeated_fields,
        "has_password": user.has_usable_password(),
        "has_passkeys": bool(overview.passkeys),
        "has_codes": overview.app_since is not None or bool(overview.codes_left),
        "minutes": settings.BERTH_STEP_UP_MINUTES,
    }
    status = 403 if request.method == "POST" else 200
    return render(request, "accounts/confirm_identity.html", context, status=status)


def _confirm(next_url: str) -> str:
    return f"{reverse('accounts:confirm')}?{urlencode({'next': next_url})}"
