"""Reads of dotfiles."""

from __future__ import annotations

from portal.accounts.models import User
from portal.repositories.models import UserDotfiles


def dotfiles_of(user: User) -> UserDotfiles | None:
    """A user's own, None where there are none."""
    return UserDotfiles.objects.filter(user=user).first()
