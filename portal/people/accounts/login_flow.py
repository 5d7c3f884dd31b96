"""Starts a login after authentication, through allauth's login stages."""

from __future__ import annotations

from typing import Any, Literal

from allauth.account.internal.flows.login import (
    clear_authentication_records,
    perform_login,
    record_authentication,
)
from allauth.account.models import Login
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from portal.people.accounts import sessions
from portal.people.accounts.mfa.stages import ELSEWHERE
from portal.people.accounts.models import User

How = Literal["password", "link", "passkey"]
# Records read by allauth's stages. A passkey with PIN or biometrics counts as both factors.
_RECORDS: dict[str, dict[str, Any]] = {
    "password": {"method": "password"},
    "link": {"method": "link"},
    "passkey": {"method": "mfa", "type": "webauthn", "passwordless": True},
}


def begin(
    request: HttpRequest,
    user: User,
    *,
    how: How = "password",
    next_url: str = "",
    provider: str = "",
    second_factor: bool = False,
) -> HttpResponse:
    """Sign in `user`, authenticated by the method `how`, or by the sign-in `provider` with this id.

    Returns a redirect to the next stage, or to `next_url` if it is a path of the portal; for operators, the
    overview of the site instead of the home page. The session starts after the last stage. With
    `second_factor`, the provider has checked a second factor, so the portal requests none.
    """
    if isinstance(request.user, User):
        # A link was opened in the session of another sign-in, which must not be mixed with this one.
        sessions.sign_out(request, request.user)
    clear_authentication_records(request)
    record = {"method": "socialaccount", "provider": provider} if provider else _RECORDS[how]
    record_authentication(request, user, **record)
    if second_factor:
        record_authentication(request, user, method="mfa", type=ELSEWHERE)
    if next_url in ("", "/") and user.operates:
        next_url = reverse("home:overview")
    response: HttpResponse = perform_login(request, Login(user=user, redirect_url=next_url))
    return response
