"""Who may do what with teams and tokens."""

from __future__ import annotations

from portal.accounts.models import Role, Team, User
from portal.common.actors import SystemActor
from portal.common.errors import NotAllowed
from portal.common.reasons.codes import AccountCode
from portal.common.reasons.reason import Reason


def is_member(actor: User, team: Team) -> bool:
    return team.memberships.filter(user=actor).exists()


def is_owner(actor: User, team: Team) -> bool:
    return team.memberships.filter(user=actor, role=Role.OWNER).exists()


def may_view_team(actor: User, team: Team) -> bool:
    return actor.operates or is_member(actor, team)


def may_manage_team(actor: User | SystemActor, team: Team) -> bool:
    return isinstance(actor, SystemActor) or actor.operates or is_owner(actor, team)


def require_manage_team(actor: User | SystemActor, team: Team) -> None:
    if not may_manage_team(actor, team):
        raise NotAllowed(Reason(AccountCode.ONLY_TEAM_OWNERS, {"team": team.name}))


def require_operator(actor: User | SystemActor) -> None:
    if not isinstance(actor, SystemActor) and not actor.operates:
        raise NotAllowed(Reason(AccountCode.ONLY_OPERATORS))
