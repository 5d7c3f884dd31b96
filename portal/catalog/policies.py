"""Permissions to use, see and manage entries of the catalog."""

from __future__ import annotations

from typing import Any, TypeVar

from django.db.models import Exists, OuterRef, Q, QuerySet

from portal.catalog.codes import CatalogCode
from portal.catalog.models import Flavor, Template
from portal.common.actors import SystemActor
from portal.common.errors import NotAllowed
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import Membership, Role, Team, User
from portal.people.accounts.policies import require_manage_team, require_operator

E = TypeVar("E", Template, Flavor)


def _names_team(rows: QuerySet[E], teams: Any) -> Exists:
    """Return the condition that an entry lists one of the teams."""
    through: Any = rows.model.teams.through
    own = f"{rows.model._meta.model_name}_id"
    return Exists(through.objects.filter(**{own: OuterRef("pk")}, team__in=teams))


def _allowed(rows: QuerySet[E], teams: Any) -> Q:
    """Return the filter for rows that one of the teams may use."""
    allowed = Q(restricted=False) | Q(_names_team(rows, teams))
    if rows.model is Template:
        return (Q(team=None) & allowed) | Q(team__in=teams)
    return allowed


def entries_offered_to(team: Team, rows: QuerySet[E]) -> QuerySet[E]:
    """Return the entries that the team may use."""
    return rows.filter(_allowed(rows, [team.pk]), enabled=True, deleted_at=None)


def visible_to(actor: User, rows: QuerySet[E]) -> QuerySet[E]:
    """Return the entries that one of the actor's teams may use; all for users who see all.

    Disabled entries are visible to users who manage them or see all.
    """
    rows = rows.filter(deleted_at=None)
    if actor.sees_all:
        return rows
    memberships = Membership.objects.filter(user=actor)
    condition = _allowed(rows, memberships.values("team")) & Q(enabled=True)
    if rows.model is Template:
        condition |= Q(team__in=memberships.filter(role=Role.OWNER).values("team"))
    return rows.filter(condition)


def may_manage(actor: User | SystemActor, entry: Template | Flavor) -> bool:
    """Return whether the actor may change and delete the entry: operators, and owners of its team."""
    if isinstance(actor, SystemActor) or actor.operates:
        return True
    return (
        isinstance(entry, Template)
        and entry.team_id is not None
        and actor.memberships.filter(team=entry.team_id, role=Role.OWNER).exists()
    )


def require_manage(actor: User | SystemActor, entry: Template | Flavor) -> None:
    """Raise `NotAllowed` unless the actor may change the entry."""
    if isinstance(entry, Template) and entry.team is not None:
        require_manage_team(actor, entry.team)
    else:
        require_operator(actor)


def may_see_command(actor: User, entry: Template) -> bool:
    """Return whether the actor may read command, environment and startup script."""
    return actor.sees_all or may_manage(actor, entry)


def templates_with_visible_command(actor: User, rows: QuerySet[Template]) -> QuerySet[Template]:
    """Return the templates whose command the actor may see, consistent with `may_see_command`."""
    if actor.sees_all:
        return rows
    return rows.filter(team__in=Membership.objects.filter(user=actor, role=Role.OWNER).values("team"))


def require_use(team: Team, template: Template, flavor: Flavor) -> None:
    """Raise `NotAllowed` unless the team may use both."""
    if not template.offered_to(team.pk):
        params = {"template": template.name, "team": team.name}
        raise NotAllowed(Reason(CatalogCode.TEMPLATE_NOT_FOR_TEAM, params))
    if not flavor.offered_to(team.pk):
        raise NotAllowed(Reason(CatalogCode.FLAVOR_NOT_FOR_TEAM, {"flavor": flavor.name, "team": team.name}))
