"""Links that let somebody set the password of an account: for a guest, or for who has forgotten it.

A link is signed, works once and expires. Nothing of it is stored: it is signed with the account's password
and session salt, so that a new password, another link or the end of the account makes it worthless.
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
    """What a link is for. A link begins with the first letter of its kind."""

    INVITATION = "invitation"
    RESET = "reset"
    FORGOTTEN = "forgotten"

    @property
    def lifetime(self) -> timedelta:
        """How long a link of this kind works."""
        own = self is LinkKind.FORGOTTEN
        return timedelta(hours=settings.BERTH_FORGOTTEN_HOURS if own else settings.BERTH_INVITATION_HOURS)


def make(user: User, kind: LinkKind) -> str:
    """The address of a new link."""
    link = kind[0] + _signer(kind).sign(_state(user))
    return public_url() + reverse("accounts:welcome", args=[user.pk, link])


def expires_at(kind: LinkKind) -> datetime:
    """When a link that is made now ends."""
    return timezone.now() + kind.lifetime


def opened(user_id: UUID, link: str) -> tuple[User, LinkKind] | None:
    """Whose account a link opens, by its last two parts, and what it is for; None where it opens nothing."""
    kind = next((kind for kind in LinkKind if link[:1] == kind[0]), None)
    user = User.objects.existing().filter(pk=user_id, is_active=True).first()
    if kind is None or user is None:
        return None
    # An invitation is for who has no password yet.
    if kind is LinkKind.INVITATION and user.state != AccountState.INVITED:
        return None
    try:
        signed = _signer(kind).unsign(link[1:], max_age=kind.lifetime)
    except signing.BadSignature:
        return None
    return (user, kind) if constant_time_compare(signed, _state(user)) else None


def _signer(kind: LinkKind) -> signing.TimestampSigner:
    # The separator may stand in an address as it is.
    return signing.TimestampSigner(salt=f"portal.people.accounts.links.{kind}", sep="~")


def _state(user: User) -> str:
    """What has to be so still when the link is used."""
    state = f"{user.pk} {user.password} {user.session_salt} {user.email}"
    return salted_hmac("portal.people.accounts.links", state, algorithm="sha256").hexdigest()[:32]
