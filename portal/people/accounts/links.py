"""Signed links to set the password of an account, for invitations and resets.

A link works once and expires. It is not stored: it is signed with the account's password and session salt, so
a new password, a newer link or deletion of the account invalidates it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from django.conf import settings
from django.core import signing
from django.urls import reverse
from django.utils import timezone
from django.utils.crypto import constant_time_compare, salted_hmac

from portal.common.htmx import public_url
from portal.people.accounts.models import AccountState, User


class LinkKind(StrEnum):
    """Purpose of a link. Links begin with the first letter of their kind."""

    INVITATION = "invitation"
    RESET = "reset"
    FORGOTTEN = "forgotten"

    @property
    def lifetime(self) -> timedelta:
        """How long a link of this kind is valid."""
        own = self is LinkKind.FORGOTTEN
        return timedelta(hours=settings.BERTH_FORGOTTEN_HOURS if own else settings.BERTH_INVITATION_HOURS)


def make(user: User, kind: LinkKind) -> str:
    """Return the URL of a new link."""
    link = kind[0] + _signer(kind).sign(_state(user))
    return public_url() + reverse("accounts:welcome", args=[user.pk, link])


def expires_at(kind: LinkKind) -> datetime:
    """Return the expiry of a link created now."""
    return timezone.now() + kind.lifetime


def resolve(user_id: UUID, link: str) -> tuple[User, LinkKind] | None:
    """Return the user and kind of a link, from the last two parts of its URL, or None if it is invalid."""
    kind = next((kind for kind in LinkKind if link[:1] == kind[0]), None)
    user = User.objects.not_deleted().filter(pk=user_id, is_active=True).first()
    if kind is None or user is None:
        return None
    # Invitations are only for accounts without a password.
    if kind is LinkKind.INVITATION and user.state != AccountState.INVITED:
        return None
    try:
        signed = _signer(kind).unsign(link[1:], max_age=kind.lifetime)
    except signing.BadSignature:
        return None
    return (user, kind) if constant_time_compare(signed, _state(user)) else None


def _signer(kind: LinkKind) -> signing.TimestampSigner:
    # This separator needs no escaping in URLs.
    return signing.TimestampSigner(salt=f"portal.people.accounts.links.{kind}", sep="~")


def _state(user: User) -> str:
    """Return a digest of the state that invalidates the link when it changes."""
    state = f"{user.pk} {user.password} {user.session_salt} {user.email}"
    return salted_hmac("portal.people.accounts.links", state, algorithm="sha256").hexdigest()[:32]
