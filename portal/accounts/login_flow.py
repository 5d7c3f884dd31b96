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

from portal.accounts import sessions
from portal.accounts.models import User

How = Literal["password", "link", "passkey"]
# As allauth's stages read them. A passkey that asked for a PIN or a finger is both factors.
_RECORDS: dict[str, dict[str, Any]] = {
    "password": {"method": "password"},
    "link": {"method": "link"},
    "passkey": {"method": "mfa", "type": "webauthn", "passwordless": True},
}


def begin(request: HttpRequest, user: User, *, how: How, wanted: str = "") -> HttpResponse:
    """Sign in `user`, whose identity has been proven by `how`; lead on to `wanted`.

    The answer is the way to the next stage where one is still to be passed; there is no session before the
    last of them. `wanted` is followed only if it is a path of the portal.
    """
    if isinstance(request.user, User):
        # A link was opened where somebody is signed in; what waits for a second step belongs to nobody.
        sessions.sign_out(request, request.user)
    clear_authentication_records(request)
    record_authentication(request, user, **_RECORDS[how])
    response: HttpResponse = perform_login(request, Login(user=user, redirect_url=wanted))
    return response
