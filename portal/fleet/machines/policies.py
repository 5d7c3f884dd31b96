"""Permissions on machines."""

from __future__ import annotations

from portal.common.errors import NotAllowed
from portal.common.reasons.reason import Reason
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import User


def may_see(actor: User) -> bool:
    """Return whether the actor may see machines, addresses and pending tokens: operators and auditors.

    Secrets are never shown.
    """
    return actor.sees_all


def require_see(actor: User) -> None:
    if not may_see(actor):
        raise NotAllowed(Reason(AccountCode.ONLY_OPERATORS))
