"""Permissions for secrets. Values cannot be read."""

from __future__ import annotations

from portal.catalog import policies as catalog
from portal.common.actors import SystemActor
from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.people.accounts import policies as accounts
from portal.people.accounts.models import Team, User
from portal.workspaces.secrets.codes import SecretCode
from portal.workspaces.secrets.models import Holder


def may_manage(actor: User | SystemActor, holder: Holder) -> bool:
    """Return whether the actor may write and delete the holder's secrets.

    Users may write their own, team owners and operators a team's, and maintainers of a template its secrets.
    """
    match holder:
        case User():
            return not isinstance(actor, SystemActor) and actor.pk == holder.pk
        case Team():
            return accounts.may_manage_team(actor, holder)
        case _:
            return catalog.may_manage(actor, holder)


def require_manage(actor: User | SystemActor, holder: Holder) -> None:
    """Raise `NotAllowed` if the actor may not write the secrets, or `NotFound` for another user's secrets."""
    match holder:
        case User():
            if not may_manage(actor, holder):
                raise NotFound(Reason(SecretCode.NO_SUCH_SECRET))
        case Team():
            accounts.require_manage_team(actor, holder)
        case _:
            catalog.require_manage(actor, holder)
