"""A user's own security events: audit log entries about the account, including actions of others."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import QuerySet

from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.people.accounts.models import User
from portal.people.accounts.selectors import entries_with_target

ATTEMPTS = frozenset(
    {
        AuditKind.SESSION_SIGN_IN_FAILED,
        AuditKind.SESSION_PROVIDER_REFUSED,
        AuditKind.SESSION_LOCKED_OUT,
        AuditKind.SESSION_PROOF_FAILED,
    }
)
"""Failed attempts to sign in as the user, by unknown clients."""
KINDS = ATTEMPTS | {
    AuditKind.SESSION_SIGNED_IN,
    AuditKind.SESSION_SIGNED_OUT,
    AuditKind.SESSION_ENDED,
    AuditKind.USER_INVITED,
    AuditKind.USER_JOINED,
    AuditKind.USER_CHANGED,
    AuditKind.USER_DEACTIVATED,
    AuditKind.USER_REACTIVATED,
    AuditKind.USER_PASSWORD_CHANGED,
    AuditKind.USER_PASSWORD_RESET,
    AuditKind.USER_PASSWORD_FORGOTTEN,
    AuditKind.USER_EMAIL_CHANGED,
    AuditKind.USER_MFA_ADDED,
    AuditKind.USER_MFA_REMOVED,
    AuditKind.USER_MFA_RESET,
    AuditKind.USER_MFA_CODES_CREATED,
    AuditKind.USER_ADOPTED,
    AuditKind.USER_RELEASED,
    AuditKind.USER_LINKED,
    AuditKind.USER_UNLINKED,
    AuditKind.TEAM_MEMBER_SET,
    AuditKind.TEAM_MEMBER_REMOVED,
    AuditKind.TOKEN_CREATED,
    AuditKind.TOKEN_REVOKED,
    AuditKind.TOKEN_ROTATED,
    AuditKind.TOKEN_NEW_NETWORK,
}
"""Kinds of audit entries that users see about their own accounts."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an event came from. All fields are empty for actions of other users."""

    address: str | None = None
    user_agent: str = ""
    token: str = ""


def security_events_of(user: User) -> QuerySet[Event]:
    """Return the events about the user's account that concern its security, newest first."""
    return entries_with_target(user).filter(kind__in=KINDS).order_by("-id")


def origin_of(event: Event, user: User) -> Origin:
    """Return the origin of an action by the user, or of a failed attempt.

    Users do not see the address or program of an administrator or provider.
    """
    if event.actor_id == user.pk or (event.actor_id is None and event.kind in ATTEMPTS):
        return Origin(event.address, event.user_agent, event.token)
    return Origin()
