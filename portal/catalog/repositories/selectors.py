"""Queries for dotfiles."""

from __future__ import annotations

from portal.catalog.repositories.models import UserDotfiles
from portal.people.accounts.models import User


def dotfiles_of(user: User) -> UserDotfiles | None:
    """Return a user's dotfiles, or None."""
    return UserDotfiles.objects.filter(owner=user).first()
