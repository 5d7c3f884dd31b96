"""Known and trusted browsers of a user.

Both are stored per user in one signed cookie. A known browser is exempt from limits exhausted by other
clients. A trusted browser skips the second factor for some days. Trust ends when the password, the sessions
or the factors change, because the fingerprint is derived from them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone
from django.utils.crypto import constant_time_compare, salted_hmac

from portal.people.accounts.models import User

LIFETIME = timedelta(days=180)
MAX_USERS = 8
_SALT = "portal.people.accounts.devices"


def is_known(request: HttpRequest, user: User) -> bool:
    """Return whether the user has signed in with this browser before."""
    return str(user.pk) in _entries(request)


def is_trusted(request: HttpRequest, user: User) -> bool:
    """Return whether the browser may skip the user's second factor."""
    entry = _entries(request).get(str(user.pk))
    if not settings.BERTH_TRUSTED_DEVICE_DAYS or entry is None or not entry.get("trusted_at"):
        return False
    lasts = timedelta(days=settings.BERTH_TRUSTED_DEVICE_DAYS).total_seconds()
    if timezone.now().timestamp() - entry["trusted_at"] >= lasts:
        return False
    return constant_time_compare(entry.get("fingerprint", ""), _fingerprint(user))


def remember_browser(
    request: HttpRequest, response: HttpResponseBase, user: User, *, trust: bool = False
) -> None:
    """Mark the browser as known to `user`. With `trust`, let it skip the second factor for a while."""
    entries = _entries(request)
    entry = entries.pop(str(user.pk), {})
    if trust and settings.BERTH_TRUSTED_DEVICE_DAYS:
        entry = {"trusted_at": int(timezone.now().timestamp()), "fingerprint": _fingerprint(user)}
    entries[str(user.pk)] = entry
    newest = dict(list(entries.items())[-MAX_USERS:])
    response.set_cookie(
        settings.BERTH_DEVICE_COOKIE,
        signing.dumps(newest, salt=_SALT, compress=True),
        max_age=LIFETIME,
        secure=settings.HTTPS,
        httponly=True,
        samesite="Lax",
    )


def _entries(request: HttpRequest) -> dict[str, dict[str, Any]]:
    try:
        entries = signing.loads(
            request.COOKIES.get(settings.BERTH_DEVICE_COOKIE, ""), salt=_SALT, max_age=LIFETIME
        )
    except signing.BadSignature:
        return {}
    return entries if isinstance(entries, dict) else {}


def _fingerprint(user: User) -> str:
    rows = Authenticator.objects.filter(user=user).exclude(type=Authenticator.Type.RECOVERY_CODES)
    factors = " ".join(str(pk) for pk in rows.order_by("pk").values_list("pk", flat=True))
    state = f"{user.pk} {user.password} {user.session_salt} {factors}"
    return salted_hmac(_SALT, state, algorithm="sha256").hexdigest()[:32]
