"""Permissions for workspaces."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Q, QuerySet

from portal.common.actors import SystemActor
from portal.common.errors import NotAllowed, NotFound, StateConflict
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import Membership, Role, Team, User
from portal.people.accounts.policies import is_owner, may_work_in, require_active_team, require_work_in
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import Workspace, WorkspaceQuerySet


def visible_to(actor: User, workspaces: WorkspaceQuerySet) -> WorkspaceQuerySet:
    """Return the actor's workspaces and those of teams they own or view; all for operators and auditors."""
    if actor.sees_all:
        return workspaces
    return workspaces.filter(Q(owner=actor) | Q(team__in=teams_seen(actor)))


def teams_seen(actor: User) -> QuerySet[Team]:
    """Return the teams in which the actor sees all workspaces, as an owner or viewer."""
    return Team.objects.filter(
        memberships__in=Membership.objects.filter(user=actor, role__in=[Role.OWNER, Role.VIEWER])
    )


def may_see_others(actor: User) -> bool:
    """Return whether the actor may see workspaces of others."""
    return actor.sees_all or not actor.team_roles.isdisjoint({Role.OWNER, Role.VIEWER})


def operated_teams(actor: User) -> set[UUID] | None:
    """Return the teams in which the actor operates all workspaces, as their owner; `None` for all teams."""
    if actor.operates:
        return None
    return set(actor.memberships.filter(role=Role.OWNER).values_list("team_id", flat=True))


def may_operate(actor: User | SystemActor, workspace: Workspace) -> bool:
    """Return whether the actor may start, stop and delete the workspace."""
    if isinstance(actor, SystemActor) or actor.operates or workspace.owner_id == actor.pk:
        return True
    return is_owner(actor, workspace.team)


def may_open(actor: User, workspace: Workspace) -> bool:
    """Return whether the actor may open the workspace: only the owner, because the app acts as the owner."""
    return actor.is_active and workspace.owner_id == actor.pk


def require_open(actor: User, workspace: Workspace) -> None:
    if not may_open(actor, workspace):
        raise NotAllowed(Reason(WorkspaceCode.ONLY_ITS_USER, {"owner": workspace.owner.username}))


def uses_home(actor: User, workspace: Workspace) -> bool:
    """Return whether the workspace's home belongs to the actor. No other user may see the home."""
    return actor.is_active and workspace.owner_id == actor.pk


def require_home(actor: User, workspace: Workspace) -> None:
    """Raise `NotAllowed` unless the actor is the owner, and `StateConflict` if there is no home."""
    if not uses_home(actor, workspace):
        raise NotAllowed(Reason(WorkspaceCode.HOME_IS_PRIVATE, {"owner": workspace.owner.username}))
    if workspace.simulated:
        raise StateConflict(Reason(WorkspaceCode.SIMULATED), code=ProblemCode.WORKSPACE_SIMULATED)


def require_operate(actor: User | SystemActor, workspace: Workspace) -> None:
    if not may_operate(actor, workspace):
        raise NotAllowed(Reason(WorkspaceCode.ONLY_ITS_OPERATORS, {"owner": workspace.owner.username}))


def require_create(actor: User, team: Team) -> None:
    require_work_in(actor, team)


def require_active_owner(owner: User) -> None:
    """Raise `StateConflict` if the account is deactivated, in the caller's transaction.

    Locks the account, so that a concurrent deactivation either stops the workspace or prevents the start.
    """
    active = User.objects.select_for_update(no_key=True).filter(pk=owner.pk, is_active=True)
    if not active.values_list("pk", flat=True).first():
        raise StateConflict(
            Reason(AccountCode.USER_DEACTIVATED, {"username": owner.username}),
            code=ProblemCode.USER_DEACTIVATED,
        )


def require_open_team(team: Team) -> None:
    """Raise `StateConflict` if the team is archived, and `NotFound` if it is deleted.

    Locks the team in the caller's transaction, so that archiving it concurrently either stops the workspace
    or prevents the start.
    """
    present = Team.objects.select_for_update(no_key=True).filter(pk=team.pk).first()
    if present is None:
        raise NotFound(Reason(AccountCode.NO_SUCH_TEAM, {"slug": team.slug}))
    require_active_team(present)


def require_place(workspace: Workspace) -> None:
    """Raise `StateConflict` if the owner no longer works in the team, which pays for the workspace."""
    require_open_team(workspace.team)
    if not may_work_in(workspace.owner, workspace.team):
        params = {"username": workspace.owner.username, "team": workspace.team.name}
        raise StateConflict(Reason(AccountCode.NOT_A_MEMBER, params), code=ProblemCode.NOT_A_MEMBER)


def require_priority(actor: User, team: Team, priority: int) -> None:
    """Raise `NotAllowed` for a priority above 0, except for team owners and operators."""
    if priority > 0 and not (actor.operates or is_owner(actor, team)):
        raise NotAllowed(Reason(WorkspaceCode.PRIORITY_NOT_ALLOWED, {"team": team.name}))
