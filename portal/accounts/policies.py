"""Who may do what with teams and tokens."""

from __future__ import annotations

from portal.accounts.models import Role, Team, User
from portal.common.actors import SystemActor
from portal.common.errors import NotAllowed


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
        raise NotAllowed(
            f"Only an owner of {team.name} may change it.", next_action="Ask an owner of the team."
        )


def require_operator(actor: User | SystemActor) -> None:
    if not isinstance(actor, SystemActor) and not actor.operates:
        raise NotAllowed(
            "Only an operator may do this.", next_action="Ask the operator of this installation."
        )
