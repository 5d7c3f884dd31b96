"""Sessions of users: recorded at sign-in, listed, and ended individually or all at once."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from importlib import import_module
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth import login, logout
from django.contrib.auth.signals import user_logged_in
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common import request_context
from portal.common.actors import SystemActor
from portal.common.domain_events import emit
from portal.common.errors import NotAllowed, NotFound
from portal.common.events import live
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event, TargetKind
from portal.common.events.selectors import unread_of
from portal.common.events.services import Target
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import changes
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.domain_events import SignedOut
from portal.people.accounts.models import User, UserSession
from portal.people.accounts.session_store import BEGAN_AT, PROVEN_AT

LOCKED_OUT = "account.locked_out"
LEAVE = "leave"
"""Session key set by a sign-in provider: where signing out leads (`path`), with its parameters."""
LEFT = "left"
"""Session key with the value of `LEAVE` after signing out, until the user has visited the path."""
BACKEND = "django.contrib.auth.backends.ModelBackend"


def audit_targets(user: User) -> list[Target]:
    """Return the audit targets of an entry about a user."""
    return [Target(TargetKind.USER, str(user.pk))]


@transaction.atomic
def sign_in(request: HttpRequest, user: User, *, how: str) -> None:
    """Start a session for `user`, who is authenticated. `how` names the methods, for the audit log.

    Raises `NotAllowed` for a service account or an account deactivated meanwhile.
    """
    if user.is_service:
        raise NotAllowed(Reason(AccountCode.SERVICE_ACCOUNT_SIGNS_IN, {"username": user.username}))
    # A concurrent deactivation waits and then ends this session, or has already happened.
    active = User.objects.select_for_update(no_key=True).filter(pk=user.pk, is_active=True)
    if not active.values_list("pk", flat=True).first():
        raise NotAllowed(Reason(AccountCode.USER_DEACTIVATED, {"username": user.username}))
    login(request, user, backend=BACKEND)
    request.session[BEGAN_AT] = request.session[PROVEN_AT] = time.time()
    _note(request, user)
    events.record(
        actor=user,
        kind=AuditKind.SESSION_SIGNED_IN,
        message=f"signed in with {how}",
        targets=audit_targets(user),
        data={"how": how},
    )


@transaction.atomic
def sign_in_failed(*, username: str, locked_out: bool) -> None:
    """Record a refused sign-in. Unknown names are not stored, as they may be mistyped passwords.

    When an account is locked for an address, its user is notified once until they read it. Further attempts
    during the lock write no entries.
    """
    user = User.objects.filter(username=strip_nul(username)[:150].strip().lower()).first()
    name = user.username if user is not None else ""
    address = request_context.current().address
    kind = AuditKind.SESSION_LOCKED_OUT if locked_out else AuditKind.SESSION_SIGN_IN_FAILED
    if locked_out:
        since = timezone.now() - timedelta(hours=settings.AXES_COOLOFF_TIME)
        recent = Event.objects.filter(kind=kind, at__gt=since, address=address or None)
        if recent.filter(data__username=name).exists():
            return
    events.record(
        actor=SystemActor("Somebody"),
        kind=kind,
        message=f"could not sign in as {name}" if name else "could not sign in: unknown user name",
        targets=audit_targets(user) if user is not None else (),
        data={"username": name},
    )
    if locked_out and user is not None and not unread_of(user, LOCKED_OUT).exists():
        events.notify(
            [user],
            LOCKED_OUT,
            _("Failed sign-ins to your account"),
            _(
                "%(count)d wrong passwords were entered for your account from %(address)s. Sign-in "
                "from there is locked for some time."
            )
            % {"count": settings.AXES_FAILURE_LIMIT, "address": address or _("an unknown address")},
            reverse("accounts:account"),
        )


def address_refused(*, minutes: int, failures: int) -> None:
    """Record that sign-ins from the current address are refused for a while."""
    address = request_context.current().address or "an unknown address"
    events.record(
        actor=SystemActor("Somebody"),
        kind=AuditKind.SESSION_ADDRESS_REFUSED,
        message=f"failed to sign in {failures} times from {address}: blocked for {minutes} minutes",
        data={"failures": failures, "minutes": minutes},
    )


def tokens_refused(*, minutes: int, failures: int) -> None:
    """Record that many invalid API tokens came from the current address."""
    address = request_context.current().address or "an unknown address"
    events.record(
        actor=SystemActor("Somebody"),
        kind=AuditKind.SESSION_ADDRESS_REFUSED,
        message=f"used {failures} invalid API tokens from {address} within {minutes} minutes",
        data={"failures": failures, "minutes": minutes, "of": "tokens"},
    )


@transaction.atomic
def sign_out(request: HttpRequest, user: User) -> None:
    """End the session of this request, and with it the user's access to all workspaces."""
    UserSession.objects.filter(user=user, key=request.session.session_key or "").delete()
    emit(SignedOut(user.pk))
    events.record(
        actor=user, kind=AuditKind.SESSION_SIGNED_OUT, message="signed out", targets=audit_targets(user)
    )
    logout(request)


def _note(request: HttpRequest, user: User) -> None:
    if not request.session.session_key:
        request.session.create()
    context = request_context.current()
    UserSession.objects.update_or_create(
        key=request.session.session_key,
        defaults={"user": user, "address": context.address or None, "user_agent": context.user_agent},
    )
    # Remove sessions that have expired.
    UserSession.objects.filter(user=user).exclude(pk__in=sessions_of(user).values("pk")).delete()


def sessions_of(user: User) -> QuerySet[UserSession]:
    """Return the user's active sessions, newest first."""
    stored: Any = _store().get_model_class()
    lasting = stored.objects.filter(expire_date__gt=timezone.now()).values("session_key")
    return UserSession.objects.filter(user=user, key__in=lasting).order_by("-created_at", "-id")


@transaction.atomic
def end_own_session(*, actor: User, session_id: UUID) -> None:
    """End one of the actor's own sessions. Workspaces open there have to authenticate again.

    Raises `NotFound`.
    """
    session = UserSession.objects.filter(pk=session_id, user=actor).first()
    if session is None:
        raise NotFound(Reason(AccountCode.NO_SUCH_SESSION))
    _store()().delete(session.key)
    session.delete()
    announce_sign_out(actor)
    events.record(
        actor=actor,
        kind=AuditKind.SESSION_ENDED,
        message="ended one of their sessions",
        targets=audit_targets(actor),
        data={"began": session.created_at.isoformat(), "of": session.address or ""},
    )


@transaction.atomic
def end_other_sessions(request: HttpRequest, user: User) -> int:
    """End all sessions of the user except that of this request. Returns how many were listed."""
    locked = User.objects.select_for_update().get(pk=user.pk)
    ended = end_all_except_current(request, locked)
    events.record(
        actor=locked,
        kind=AuditKind.SESSION_ENDED,
        message="ended their other sessions",
        targets=audit_targets(locked),
        data={"username": locked.username, "sessions": ended},
    )
    return ended


def end_all(user: User) -> int:
    """End all sessions of the user, including unlisted ones. Returns how many were listed.

    Runs in the caller's transaction; the caller saves the user. The new `session_salt` invalidates everything
    signed with the old one.
    """
    keys = list(sessions_of(user).values_list("key", flat=True))
    for key in keys:
        _store()().delete(key)
    UserSession.objects.filter(user=user).delete()
    user.session_salt = secrets.token_hex(16)
    announce_sign_out(user)
    return len(keys)


def end_all_except_current(request: HttpRequest, user: User) -> int:
    """End all sessions of the user except that of this request. Saves the user. Returns how many ended."""
    ended = end_all(user)
    user.save(update_fields=["password", "session_salt"])
    # The current session continues under a new key, with its original age.
    values = {name: request.session[name] for name in (BEGAN_AT, PROVEN_AT)}
    login(request, user, backend=BACKEND)
    request.session.update(values)
    _note(request, user)
    return max(0, ended - 1)


def announce_sign_out(user: User) -> None:
    """End streams, workspace sessions and cached tokens of the user, on commit."""
    emit(SignedOut(user.pk))
    changes.announce()
    transaction.on_commit(lambda: live.publish_account(user.pk))


def connect() -> None:
    """Record the start of every session, however it begins. Called once when Django is ready."""
    user_logged_in.connect(_record_begin, dispatch_uid="accounts.sessions")


def _record_begin(*, request: HttpRequest, **_: Any) -> None:
    now = time.time()
    request.session.setdefault(BEGAN_AT, now)
    request.session.setdefault(PROVEN_AT, now)


def _store() -> Any:
    return import_module(settings.SESSION_ENGINE).SessionStore
