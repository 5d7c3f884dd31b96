"""Permission to see credentials of service accounts. See `accounts.policies` for managing them."""

from __future__ import annotations

from portal.common.errors import NotAllowed
from portal.common.reasons.reason import Reason
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import may_manage_team


def may_see_credentials(actor: User, team: Team) -> bool:
    """Return whether the actor may see tokens and rules: owners of the team, operators, auditors.

    Secrets are never shown.
    """
    return actor.sees_all or may_manage_team(actor, team)


def require_see_credentials(actor: User, team: Team) -> None:
    if not may_see_credentials(actor, team):
        raise NotAllowed(Reason(AccountCode.ONLY_TEAM_OWNERS, {"team": team.name}))
