"""Second factors of a user, and verification of codes.

Rows are django-allauth's `Authenticator`. `User.mfa_since` denormalizes whether a user has a factor, so that
pages, lists and the gateway need no query.
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from datetime import datetime

from allauth.core.internal.cryptokit import compare_user_code
from allauth.mfa.adapter import get_adapter
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import format_hotp_value, generate_totp_secret, hotp_value
from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Prefetch
from django.utils import timezone

from portal.people.accounts.models import SecondFactor, User, UserQuerySet

Type = Authenticator.Type
FACTORS = (Type.TOTP, Type.WEBAUTHN)
"""Independent second factors. Recovery codes are only a fallback."""
NO_FACTOR = "none"
"""Filter value for people without a second factor, besides the values of `SecondFactor`."""
_KINDS = {Type.TOTP.value: SecondFactor.TOTP, Type.WEBAUTHN.value: SecondFactor.PASSKEY}
_FACTORS_ATTRIBUTE = "held_factors"

MAX_PASSKEYS = 20
MAX_NAME = 60


@dataclass(frozen=True, slots=True)
class Passkey:
    """A passkey, as shown to its user."""

    id: int
    name: str
    created_at: datetime
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class FactorOverview:
    """Second factors of a user: time of app setup, passkeys oldest first, number of recovery codes left."""

    app_since: datetime | None
    app_used_at: datetime | None
    passkeys: list[Passkey]
    codes_left: int | None

    @property
    def on(self) -> bool:
        """Whether there is a second factor."""
        return self.app_since is not None or bool(self.passkeys)


def overview_of(user: User) -> FactorOverview:
    """Return all factors of the user. Runs one query."""
    app_since = app_used_at = codes_left = None
    passkeys = []
    for row in Authenticator.objects.filter(user=user).order_by("pk"):
        if row.type == Type.TOTP:
            app_since, app_used_at = row.created_at, row.last_used_at
        elif row.type == Type.RECOVERY_CODES:
            codes_left = settings.MFA_RECOVERY_CODE_COUNT - int(row.data["used_mask"]).bit_count()
        else:
            passkeys.append(Passkey(row.pk, row.data["name"], row.created_at, row.last_used_at))
    return FactorOverview(app_since, app_used_at, passkeys, codes_left)


def prefetch_factors(users: UserQuerySet) -> UserQuerySet:
    """Prefetch factors for `kinds_of`, without secrets."""
    rows = Authenticator.objects.filter(type__in=FACTORS).only("user_id", "type")
    prefetched: UserQuerySet = users.prefetch_related(
        Prefetch("authenticator_set", rows, to_attr=_FACTORS_ATTRIBUTE)
    )
    return prefetched


def kinds_of(user: User) -> list[SecondFactor]:
    """Return the kinds of factors a user has, each once. Runs a query unless `prefetch_factors` was used."""
    rows = getattr(user, _FACTORS_ATTRIBUTE, None)
    if rows is None:
        rows = Authenticator.objects.filter(user=user, type__in=FACTORS).only("type")
    kinds = {_KINDS[row.type] for row in rows}
    return [kind for kind in SecondFactor if kind in kinds]


def users_with_factor(users: UserQuerySet, kind: str) -> UserQuerySet:
    """Return users with this `SecondFactor`, or people without any for `NO_FACTOR`.

    Empty for unknown kinds.
    """
    own = Authenticator.objects.filter(user=OuterRef("pk"))
    if kind == NO_FACTOR:
        return users.people().exclude(Exists(own.filter(type__in=FACTORS)))
    types = [type_ for type_, factor in _KINDS.items() if factor == kind]
    return users.filter(Exists(own.filter(type__in=types))) if types else users.none()


def new_secret() -> str:
    """Return a new secret for an authenticator app, in Base32."""
    secret: str = generate_totp_secret()
    return secret


def app_url(user: User, secret: str) -> str:
    """Return the URL for an authenticator app: `otpauth://totp/…`."""
    url: str = get_adapter().build_totp_url(user, secret)
    return url


def qr_image(text: str) -> str:
    """Return a QR code of `text` as a `data:` URL of an SVG, which the CSP's `img-src` allows."""
    image: str = get_adapter().build_totp_svg(text)
    return "data:image/svg+xml;base64," + base64.b64encode(image.encode()).decode()


def matching_counter(secret: str, code: str, *, after: int = -1) -> int | None:
    """Return the time step that `code` belongs to, or None.

    Accepts the current step and `MFA_TOTP_TOLERANCE` steps before and after, for clock drift (RFC 6238).
    Rejects steps up to `after`, whose codes have been used.
    """
    present = int(time.time()) // settings.MFA_TOTP_PERIOD
    tolerance = settings.MFA_TOTP_TOLERANCE
    for counter in range(present - tolerance, present + tolerance + 1):
        if compare_user_code(actual=code, expected=format_hotp_value(hotp_value(secret, counter))):
            return counter if counter > after else None
    return None


@transaction.atomic
def use_up_code(user: User, code: str) -> Authenticator | None:
    """Use up a code. Returns the factor that it belongs to, or None if it is wrong or already used."""
    rows = Authenticator.objects.filter(user=user, type__in=(Type.TOTP, Type.RECOVERY_CODES))
    for row in rows.order_by("pk").select_for_update():
        if row.type == Type.TOTP:
            secret = get_adapter().decrypt(row.data["secret"])
            counter = matching_counter(secret, code, after=row.data.get("used_counter", -1))
            if counter is None:
                continue
            row.data["used_counter"] = counter
        elif not RecoveryCodes(row).validate_code(code):
            continue
        else:
            row.refresh_from_db()
        row.last_used_at = timezone.now()
        row.save(update_fields=["data", "last_used_at"])
        return row
    return None
