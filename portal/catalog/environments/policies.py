"""Permissions to see, use and manage environments."""

from __future__ import annotations

from django.conf import settings

from portal.catalog.environments.models import Environment, Kind
from portal.common.actors import SystemActor
from portal.people.accounts import policies as accounts
from portal.people.accounts.models import Role, Team, User


def may_manage(actor: User | SystemActor, team: Team | None) -> bool:
    """Return whether the actor is an operator or an owner of the team. Without a team: operators only."""
    if isinstance(actor, SystemActor) or actor.operates:
        return True
    return team is not None and accounts.is_owner(actor, team)


def require_manage(actor: User | SystemActor, team: Team | None) -> None:
    """Raise `NotAllowed` unless the actor may manage the team's environments."""
    if team is not None:
        accounts.require_manage_team(actor, team)
    else:
        accounts.require_operator(actor)


def may_use(environment: Environment, team: Team | None) -> bool:
    """Return whether a workspace charged to `team` may run in the environment."""
    return environment.team_id is None or (team is not None and environment.team_id == team.pk)


def built_when_asked(environment: Environment) -> bool:
    """Return whether the portal builds the environment when a workspace requests it.

    True for a curated environment without a ready version, if the site allows it.
    """
    return (
        bool(settings.BERTH_BUILD_WHEN_ASKED)
        and environment.curated
        and environment.enabled
        and environment.kind == Kind.BUILT
        and environment.current_id is None
    )


def may_create_any(actor: User) -> bool:
    """Return whether the actor may create any environment."""
    return actor.operates or actor.memberships.filter(role=Role.OWNER).exists()
