"""Limits failed sign-ins.

django-axes counts failures per name and address. This module counts two more: failures per address across
names (password spraying), and failures per name across addresses. Above a higher limit, the address or name
is refused for a while. Because addresses can be shared and names guessed, known users are exempt: in a
browser that the user has signed in with before and, up to 4 times the limit, from an address that the user
has signed in from.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from portal.common import request_context
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.common.texts import strip_nul
from portal.people.accounts import devices, limits, sessions
from portal.people.accounts.models import User

WINDOW = timedelta(minutes=15)
KNOWN_FOR = timedelta(days=30)
HARD_LIMIT_FACTOR = 4


def locked_out_page(request: HttpRequest, *_args: Any) -> HttpResponse:
    """Render the page after too many wrong passwords. Called by django-axes with unused arguments."""
    minutes = _minutes(timedelta(hours=settings.AXES_COOLOFF_TIME))
    text = _(
        "%(count)d wrong passwords for this name. Wait %(minutes)d minutes, then try again. "
        "Ask an administrator if you need a new password."
    )
    return _page(request, text % {"count": settings.AXES_FAILURE_LIMIT, "minutes": minutes}, minutes)


def refuses(request: HttpRequest, username: str) -> bool:
    """Return whether the sign-in is refused, because of failures from this address or for this name."""
    from_here = limits.current_count(_key(), window=WINDOW) / settings.BERTH_SIGN_IN_FAILURES_PER_ADDRESS
    for_name = (
        limits.current_count(_key_of(username), window=WINDOW) / settings.BERTH_SIGN_IN_FAILURES_PER_NAME
    )
    failed = max(from_here, for_name)
    if failed < 1:
        return False
    user = User.objects.not_deleted().filter(username=strip_nul(username)[:150].strip().lower()).first()
    if user is None:
        return True
    if devices.is_known(request, user):
        return False
    return failed >= HARD_LIMIT_FACTOR or not _has_signed_in_from_here(user)


def count_failure(username: str) -> None:
    """Count a failed sign-in. Writes an audit entry when it reaches a limit."""
    if limits.count(_key_of(username), window=WINDOW) == settings.BERTH_SIGN_IN_FAILURES_PER_NAME:
        sessions.sign_in_failed(username=username, locked_out=True)
    if limits.count(_key(), window=WINDOW) == settings.BERTH_SIGN_IN_FAILURES_PER_ADDRESS:
        sessions.address_refused(
            minutes=_minutes(WINDOW), failures=settings.BERTH_SIGN_IN_FAILURES_PER_ADDRESS
        )


def refused_sign_in_page(request: HttpRequest) -> HttpResponse:
    """Render the page for refused sign-ins."""
    minutes = _minutes(WINDOW)
    text = _(
        "Too many failed sign-ins from this address or for this name. Wait %(minutes)d "
        "minutes, or use a browser in which you have signed in before."
    )
    return _page(request, text % {"minutes": minutes}, minutes)


def _key() -> str:
    return f"sign-in:{limits.network_of(request_context.current().address)}"


def _key_of(username: str) -> str:
    """Return the counter key of a name, also for unknown names. Hashed, in case it is a mistyped password."""
    name = strip_nul(username)[:150].strip().lower()
    return f"name:{salted_hmac('berth.lockout', name).hexdigest()}"


def _has_signed_in_from_here(user: User) -> bool:
    since = timezone.now() - KNOWN_FOR
    address = request_context.current().address or None
    sign_ins = Event.objects.filter(kind=AuditKind.SESSION_SIGNED_IN, actor=user, at__gt=since)
    return address is not None and sign_ins.filter(address=address).exists()


def _minutes(span: timedelta) -> int:
    return max(1, round(span.total_seconds() / 60))


def _page(request: HttpRequest, message: str, minutes: int) -> HttpResponse:
    context = {
        "message": message,
        "retry_url": reverse("accounts:sign-in"),
        "request_id": getattr(request, "request_id", ""),
    }
    response = render(request, "429.html", context, status=429)
    response["Retry-After"] = str(minutes * 60)
    return response
