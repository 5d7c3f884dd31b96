"""From the proof of who somebody is to their session, through allauth's login stages."""

from __future__ import annotations

from allauth.account.internal.flows.login import (
    clear_authentication_records,
    perform_login,
    record_authentication,
)
from allauth.account.models import Login
from django.http import HttpRequest, HttpResponse

from portal.accounts.models import User


def begin(request: HttpRequest, user: User, *, how: str, wanted: str = "") -> HttpResponse:
    """Sign in `user`, whose identity has been proven by `how` (“password”, “link”); lead on to `wanted`.

    The answer is the way to the next stage where one is still to be passed; there is no session before the
    last of them. `wanted` is followed only if it is a path of the portal.
    """
    clear_authentication_records(request)
    record_authentication(request, user, method=how)
    response: HttpResponse = perform_login(request, Login(user=user, redirect_url=wanted))
    return response
