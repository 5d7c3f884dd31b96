"""Reads of dotfiles."""

from __future__ import annotations

from portal.catalog.repositories.models import UserDotfiles
from portal.people.accounts.models import User


def dotfiles_of(user: User) -> UserDotfiles | None:
    """A user's own, None where there are none."""
    return UserDotfiles.objects.filter(owner=user).first()
