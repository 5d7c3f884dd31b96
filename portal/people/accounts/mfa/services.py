"""Writes second factors: setup, renaming, removal. Each writes an audit entry and notifies the user.

`actor` is the user, except in `reset`. Setting up the first factor signs out other browsers, because their
sessions started without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from allauth.mfa.adapter import get_adapter
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from django.db import transaction
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SystemActor
from portal.common.errors import InvalidInput, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import deactivation, policies, sessions
from portal.people.accounts.mfa import factors, passkeys
from portal.people.accounts.mfa.codes import MfaCode
from portal.people.accounts.mfa.factors import FACTORS, Type
from portal.people.accounts.models import User

CHANGED = "account.mfa_changed"


@dataclass(frozen=True, slots=True)
class FactorSetup:
    """A factor was set up. `codes` are new recovery codes, shown only once; empty if some existed."""

    codes: list[str] = field(repr=False)


@transaction.atomic
def set_up_app(request: HttpRequest, *, actor: User, secret: str, code: str) -> FactorSetup:
    """Set up an authenticator app with `secret`, proven by `code`.

    Raises `InvalidInput` (`code`), and `StateConflict` if an app exists.
    """
    user = deactivation.lock_user(actor)
    if Authenticator.objects.filter(user=user, type=Type.TOTP).exists():
        raise StateConflict(Reason(MfaCode.APP_THERE))
    counter = factors.matching_counter(secret, code)
    if counter is None:
        reason = Reason(MfaCode.WRONG_CODE)
        raise InvalidInput(reason, errors={"code": [reason]})
    data = {"secret": get_adapter().encrypt(secret), "used_counter": counter}
    Authenticator.objects.create(user=user, type=Type.TOTP, data=data)
    return _finish_adding(request, user, "app", _("Authenticator app set up"))


@transaction.atomic
def add_passkey(request: HttpRequest, *, actor: User, name: str, answer: str) -> FactorSetup:
    """Add the passkey that answered `passkeys.options_to_add`. Raises `InvalidInput` and `StateConflict`."""
    user = deactivation.lock_user(actor)
    name = _name(name)
    if Authenticator.objects.filter(user=user, type=Type.WEBAUTHN).count() >= factors.MAX_PASSKEYS:
        raise StateConflict(Reason(MfaCode.TOO_MANY_PASSKEYS, {"count": factors.MAX_PASSKEYS}))
    registration = passkeys.new_credential(request, answer)
    key = passkeys.credential_key(registration["credential"])
    if Authenticator.objects.filter(type=Type.WEBAUTHN, data__key=key).exists():
        raise InvalidInput(Reason(MfaCode.PASSKEY_REFUSED))
    data = {"name": name, "key": key, **registration}
    Authenticator.objects.create(user=user, type=Type.WEBAUTHN, data=data)
    return _finish_adding(request, user, "passkey", _("Passkey “%(name)s” added") % {"name": name})


@transaction.atomic
def rename_passkey(*, actor: User, passkey_id: int, name: str) -> None:
    """Rename a passkey. Raises `NotFound` and `InvalidInput`."""
    row = _passkey(actor, passkey_id)
    row.data["name"] = _name(name)
    row.save(update_fields=["data"])


@transaction.atomic
def remove_passkey(*, actor: User, passkey_id: int) -> None:
    """Remove a passkey. Raises `NotFound`, and `StateConflict` for the last factor if a role requires one."""
    user = deactivation.lock_user(actor)
    row = _passkey(user, passkey_id)
    name = row.data["name"]
    row.delete()
    _finish_removing(user, "passkey", _("Passkey “%(name)s” removed") % {"name": name})


@transaction.atomic
def remove_app(*, actor: User) -> None:
    """Remove the authenticator app. Raises like `remove_passkey`."""
    user = deactivation.lock_user(actor)
    deleted, _by_model = Authenticator.objects.filter(user=user, type=Type.TOTP).delete()
    if not deleted:
        raise NotFound(Reason(MfaCode.NO_APP))
    _finish_removing(user, "app", _("Authenticator app removed"))


@transaction.atomic
def new_codes(*, actor: User) -> list[str]:
    """Replace the recovery codes and return new ones. Raises `StateConflict` without a second factor."""
    user = deactivation.lock_user(actor)
    if not _has_factor(user):
        raise StateConflict(Reason(MfaCode.NO_FACTOR))
    Authenticator.objects.filter(user=user, type=Type.RECOVERY_CODES).delete()
    _record(user, user, AuditKind.USER_MFA_CODES_CREATED, "created new recovery codes", {})
    _notify(user, _("New recovery codes created"))
    return _codes(user)


@transaction.atomic
def reset(*, actor: User | SystemActor, user: User) -> None:
    """Remove all second factors of a user who has lost them, and end all sessions. Idempotent.

    Raises `NotAllowed` unless the actor is an administrator.
    """
    policies.require_administrator(actor)
    user = deactivation.lock_user(user)
    if not remove_all(user):
        return
    ended = sessions.end_all(user)
    user.save(update_fields=["mfa_since", "session_salt"])
    _record(actor, user, AuditKind.USER_MFA_RESET, f"removed the second factors of {user.username}",
            {"username": user.username, "sessions": ended})  # fmt: skip
    _notify(user, _("An administrator reset your second factors"))


def remove_all(user: User) -> int:
    """Delete all factors in the caller's transaction.

    The caller saves the user. Returns the number deleted.
    """
    count = Authenticator.objects.filter(user=user).count()
    Authenticator.objects.filter(user=user).delete()
    user.mfa_since = None
    return int(count)


def _finish_adding(request: HttpRequest, user: User, factor: str, message: str) -> FactorSetup:
    first = user.mfa_since is None
    codes = []
    if not Authenticator.objects.filter(user=user, type=Type.RECOVERY_CODES).exists():
        codes = _codes(user)
    ended = 0
    if first:
        user.mfa_since = timezone.now()
        user.save(update_fields=["mfa_since"])
        ended = sessions.end_all_except_current(request, user)
    _record(user, user, AuditKind.USER_MFA_ADDED, f"set up a second factor: {factor}",
            {"factor": factor, "sessions": ended})  # fmt: skip
    _notify(user, message)
    return FactorSetup(codes)


def _finish_removing(user: User, factor: str, message: str) -> None:
    if not _has_factor(user):
        remove_all(user)
        if user.must_set_up_mfa:
            raise StateConflict(Reason(MfaCode.LAST_FACTOR))
        user.save(update_fields=["mfa_since"])
    _record(user, user, AuditKind.USER_MFA_REMOVED, f"removed a second factor: {factor}", {"factor": factor})
    _notify(user, message)


def _codes(user: User) -> list[str]:
    codes: list[str] = RecoveryCodes.activate(user).generate_codes()
    return codes


def _has_factor(user: User) -> bool:
    return bool(Authenticator.objects.filter(user=user, type__in=FACTORS).exists())


def _passkey(user: User, passkey_id: int) -> Authenticator:
    rows = Authenticator.objects.select_for_update().filter(user=user, type=Type.WEBAUTHN)
    row = rows.filter(pk=passkey_id).first()
    if row is None:
        raise NotFound(Reason(MfaCode.NO_SUCH_PASSKEY))
    return row


def _name(name: str) -> str:
    name = " ".join(strip_nul(name).split())
    if not 0 < len(name) <= factors.MAX_NAME:
        reason = Reason(MfaCode.PASSKEY_NAME, {"count": factors.MAX_NAME})
        raise InvalidInput(reason, errors={"name": [reason]})
    return name


def _record(
    actor: User | SystemActor, user: User, kind: AuditKind, message: str, data: dict[str, Any]
) -> None:
    events.record(actor=actor, kind=kind, message=message, targets=sessions.audit_targets(user), data=data)


def _notify(user: User, message: str) -> None:
    events.notify(
        [user],
        CHANGED,
        message,
        _("If this was not you, change your password and contact an administrator."),
        reverse("accounts:two-step"),
    )
