"""Whether an account may be deleted, asked of those who keep its work."""

from __future__ import annotations

from typing import Protocol

from portal.common.ports import Port
from portal.people.accounts.models import User


class AccountDeletionPolicy(Protocol):
    """Refuses to delete accounts that still have work."""

    def require_deletable(self, user: User, *, delete_workspaces: bool) -> None:
        """Raises `StateConflict` while the user, who is locked, has workspaces that are not to be deleted."""


deletion_policy = Port[AccountDeletionPolicy]("AccountDeletionPolicy")
