"""A user's second factors, and whether a code is one of theirs.

The rows are django-allauth's `Authenticator`. Whether a user has a factor also stands in `User.mfa_since`,
which pages, lists and the gateway read without another query.
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
"""What is a second factor by itself; recovery codes only stand in for one."""
NO_FACTOR = "none"
"""In filters, beside the values of `SecondFactor`: people who have none."""
_KINDS = {Type.TOTP.value: SecondFactor.TOTP, Type.WEBAUTHN.value: SecondFactor.PASSKEY}
_HELD = "held_factors"

MAX_PASSKEYS = 20
MAX_NAME = 60


@dataclass(frozen=True, slots=True)
class Passkey:
    """A passkey as its user is shown it."""

    id: int
    name: str
    created_at: datetime
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class Overview:
    """What a user has: the app since when, passkeys oldest first, and how many recovery codes are left."""

    app_since: datetime | None
    app_used_at: datetime | None
    passkeys: list[Passkey]
    codes_left: int | None

    @property
    def on(self) -> bool:
        """Whether there is a second factor."""
        return self.app_since is not None or bool(self.passkeys)


def overview_of(user: User) -> Overview:
    """All that a user has set up, in one query."""
    app_since = app_used_at = codes_left = None
    passkeys = []
    for row in Authenticator.objects.filter(user=user).order_by("pk"):
        if row.type == Type.TOTP:
            app_since, app_used_at = row.created_at, row.last_used_at
        elif row.type == Type.RECOVERY_CODES:
            codes_left = settings.MFA_RECOVERY_CODE_COUNT - int(row.data["used_mask"]).bit_count()
        else:
            passkeys.append(Passkey(row.pk, row.data["name"], row.created_at, row.last_used_at))
    return Overview(app_since, app_used_at, passkeys, codes_left)


def with_factors(users: UserQuerySet) -> UserQuerySet:
    """The same users, of whom `kinds_of` knows the factors without a query for each; no secret is read."""
    rows = Authenticator.objects.filter(type__in=FACTORS).only("user_id", "type")
    found: UserQuerySet = users.prefetch_related(Prefetch("authenticator_set", rows, to_attr=_HELD))
    return found


def kinds_of(user: User) -> list[SecondFactor]:
    """Which factors a user has set up, each once; asked of the database unless `with_factors` has done so."""
    rows = getattr(user, _HELD, None)
    if rows is None:
        rows = Authenticator.objects.filter(user=user, type__in=FACTORS).only("type")
    held = {_KINDS[row.type] for row in rows}
    return [kind for kind in SecondFactor if kind in held]


def having(users: UserQuerySet, kind: str) -> UserQuerySet:
    """Those who have this `SecondFactor`, or, for `NO_FACTOR`, people without any; nobody for another."""
    own = Authenticator.objects.filter(user=OuterRef("pk"))
    if kind == NO_FACTOR:
        return users.people().exclude(Exists(own.filter(type__in=FACTORS)))
    types = [type_ for type_, factor in _KINDS.items() if factor == kind]
    return users.filter(Exists(own.filter(type__in=types))) if types else users.none()


def new_secret() -> str:
    """A secret for an authenticator app, in Base32."""
    secret: str = generate_totp_secret()
    return secret


def app_url(user: User, secret: str) -> str:
    """What an authenticator app reads: `otpauth://totp/…`."""
    url: str = get_adapter().build_totp_url(user, secret)
    return url


def qr_image(text: str) -> str:
    """The QR code of `text` as a `data:` address of an SVG, which `img-src` allows."""
    image: str = get_adapter().build_totp_svg(text)
    return "data:image/svg+xml;base64," + base64.b64encode(image.encode()).decode()


def matching_counter(secret: str, code: str, *, after: int = -1) -> int | None:
    """The time step of which `code` is the code, or None.

    Steps of half a minute count from one before to one after the present, so that clocks may differ; not
    those up to `after`, of which a code has been used.
    """
    present = int(time.time()) // settings.MFA_TOTP_PERIOD
    tolerance = settings.MFA_TOTP_TOLERANCE
    for counter in range(present - tolerance, present + tolerance + 1):
        if compare_user_code(actual=code, expected=format_hotp_value(hotp_value(secret, counter))):
            return counter if counter > after else None
    return None


@transaction.atomic
def used_code(user: User, code: str) -> Authenticator | None:
    """The factor of which `code` is a code that was not used yet, and is used up by this; else None."""
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
