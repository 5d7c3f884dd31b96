"""Checks codes, passkeys and repeated passwords of known users, with limits on failures.

The limit is per user, because codes are short and can be tried from anywhere. Known browsers have their own
counter, so that attackers who know the password cannot lock the user out.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.common import request_context
from portal.common.actors import SystemActor
from portal.common.errors import InvalidInput
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.selectors import unread_of
from portal.common.reasons.reason import Reason
from portal.people.accounts import devices, limits, sessions
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.mfa import factors, passkeys
from portal.people.accounts.mfa.codes import MfaCode
from portal.people.accounts.mfa.factors import Type
from portal.people.accounts.mfa.passkeys import ChallengePurpose
from portal.people.accounts.models import User

WINDOW = timedelta(minutes=15)
CODES_LOCKED = "account.codes_locked"


def code(request: HttpRequest, user: User, entered: str) -> Type:
    """Check an app code or a recovery code. Returns which one it was. Raises `InvalidInput`."""
    factor_types: list[Type] = []

    def right() -> bool:
        row = factors.use_up_code(user, entered[:40])
        if row is not None:
            factor_types.append(Type(row.type))
        return row is not None

    _limited(request, user, "code", right, Reason(MfaCode.WRONG_CODE))
    return factor_types[0]


def password(request: HttpRequest, user: User, entered: str, *, field: str = "") -> None:
    """Check the password again. Raises `InvalidInput`, with the error at `field` if given."""
    reason = Reason(AccountCode.WRONG_PASSWORD)
    try:
        _limited(request, user, "password", lambda: user.check_password(entered), reason)
    except InvalidInput as error:
        raise InvalidInput(error.reason, errors={field: [error.reason]} if field else {}) from None


def passkey(
    request: HttpRequest, purpose: ChallengePurpose, answer: str, *, user: User | None = None
) -> User:
    """Check the response of a passkey. Returns its user. Not limited, because it cannot be guessed."""
    row = passkeys.verify_response(request, purpose, answer, user=user)
    owner: User = row.user
    return owner


def _limited(request: HttpRequest, user: User, factor: str, right: Callable[[], bool], wrong: Reason) -> None:
    device_kind = "known" if devices.is_known(request, user) else "strange"
    key = f"{factor}:{device_kind}:{user.pk}"
    # Count before checking, so that concurrent attempts cannot exceed the limit.
    tried = limits.count(key, window=WINDOW)
    if tried > settings.BERTH_CODE_FAILURES:
        if tried == settings.BERTH_CODE_FAILURES + 1:
            _note(user, factor, locked=True)
        minutes = int(WINDOW.total_seconds() // 60)
        raise InvalidInput(Reason(MfaCode.TOO_MANY_TRIES, {"count": minutes}))
    if not right():
        _note(user, factor, locked=False)
        raise InvalidInput(wrong)
    limits.clear(key)


def _note(user: User, factor: str, *, locked: bool) -> None:
    kind = AuditKind.SESSION_LOCKED_OUT if locked else AuditKind.SESSION_PROOF_FAILED
    events.record(
        actor=SystemActor("Somebody"),
        kind=kind,
        message=f"failed too often to confirm the identity of {user.username}: {factor}"
        if locked
        else f"failed to confirm the identity of {user.username}: {factor}",
        targets=sessions.audit_targets(user),
        data={"username": user.username, "factor": factor},
    )
    if locked and factor == "code" and not unread_of(user, CODES_LOCKED).exists():
        events.notify(
            [user],
            CODES_LOCKED,
            _("Your password may be compromised"),
            _(
                "The correct password was entered from %(address)s, followed by %(count)d wrong "
                "codes. If this was not you, change your password."
            )
            % {
                "address": request_context.current().address or _("an unknown address"),
                "count": settings.BERTH_CODE_FAILURES,
            },
            reverse("accounts:account"),
        )
