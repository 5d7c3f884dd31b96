"""Permissions on reclaim policies."""

from __future__ import annotations

from django.db.models import QuerySet

from portal.common.actors import SystemActor
from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import may_manage_team, require_manage_team, require_operator
from portal.people.accounts.selectors import own_teams
from portal.reclaim.models import ReclaimPolicy


def require_change(actor: User | SystemActor, team: Team | None) -> None:
    """Raise `NotAllowed` unless the actor is an operator or, for a team's policy, an owner of the team."""
    if team is not None:
        require_manage_team(actor, team)
    else:
        require_operator(actor)


def may_change(actor: User, row: ReclaimPolicy) -> bool:
    """Return whether the actor may change the policy."""
    return may_manage_team(actor, row.team) if row.team is not None else actor.operates


def with_existing_target(rows: QuerySet[ReclaimPolicy]) -> QuerySet[ReclaimPolicy]:
    """Return the policies whose pool, template or flavor has not been deleted."""
    return rows.filter(pool__deleted_at=None, template__deleted_at=None, flavor__deleted_at=None)


def visible_to(actor: User, rows: QuerySet[ReclaimPolicy]) -> QuerySet[ReclaimPolicy]:
    """Return the policies visible to the actor: all, or all except those of other teams."""
    rows = with_existing_target(rows)
    if actor.sees_all:
        return rows
    return rows.filter(team=None) | rows.filter(team__in=own_teams(actor))
