"""Queries for dotfiles."""

from __future__ import annotations

from typing import cast

from portal.catalog.repositories.models import UserDotfiles
from portal.people.accounts.models import User


def dotfiles_of(user: User) -> UserDotfiles | None:
    """Return a user's dotfiles, or None; without a query if they were read with the user."""
    relation = User._meta.get_field("dotfiles")
    if relation.is_cached(user):
        return cast("UserDotfiles | None", relation.get_cached_value(user))
    return UserDotfiles.objects.filter(owner=user).first()
