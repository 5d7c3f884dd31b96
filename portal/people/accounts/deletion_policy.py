"""Port that decides whether an account may be deleted."""

from __future__ import annotations

from typing import Protocol

from portal.common.ports import Port
from portal.people.accounts.models import User


class AccountDeletionPolicy(Protocol):
    """Prevents deletion of accounts that still have workspaces."""

    def require_deletable(self, user: User, *, delete_workspaces: bool) -> None:
        """Raise `StateConflict` if the locked user has workspaces and `delete_workspaces` is False."""


deletion_policy = Port[AccountDeletionPolicy]("AccountDeletionPolicy")
