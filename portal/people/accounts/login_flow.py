"""From the proof of who somebody is to their session, through allauth's login stages."""

from __future__ import annotations

from typing import Any, Literal

from allauth.account.internal.flows.login import (
    clear_authentication_records,
    perform_login,
    record_authentication,
)
from allauth.account.models import Login
from django.http import HttpRequest, HttpResponse

from portal.people.accounts import sessions
from portal.people.accounts.mfa.stages import ELSEWHERE
from portal.people.accounts.models import User

How = Literal["password", "link", "passkey"]
# As allauth's stages read them. A passkey that asked for a PIN or a finger is both factors.
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
    wanted: str = "",
    provider: str = "",
    second_factor: bool = False,
) -> HttpResponse:
    """Sign in `user`, whose identity has been proven by `how`, or by the sign-in `provider` of this id.

    The answer is the way to the next stage where one is still to be passed; there is no session before the
    last of them. `wanted` leads on, if it is a path of the portal. With `second_factor`, one has been shown
    to the provider, and none is asked for here.
    """
    if isinstance(request.user, User):
        # A link was opened where somebody is signed in; what waits for a second step belongs to nobody.
        sessions.sign_out(request, request.user)
    clear_authentication_records(request)
    record = {"method": "socialaccount", "provider": provider} if provider else _RECORDS[how]
    record_authentication(request, user, **record)
    if second_factor:
        record_authentication(request, user, method="mfa", type=ELSEWHERE)
    response: HttpResponse = perform_login(request, Login(user=user, redirect_url=wanted))
    return response
