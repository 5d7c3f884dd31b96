"""Who may do what with a workspace."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Q, QuerySet

from portal.common.actors import SystemActor
from portal.common.errors import NotAllowed, StateConflict
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import Membership, Role, Team, User
from portal.people.accounts.policies import is_owner, require_work_in, works_in
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import Workspace, WorkspaceQuerySet


def visible_to(actor: User, workspaces: WorkspaceQuerySet) -> WorkspaceQuerySet:
    """One's own, those of teams that one owns or views, and all for who sees all."""
    if actor.sees_all:
        return workspaces
    return workspaces.filter(Q(owner=actor) | Q(team__in=teams_seen(actor)))


def teams_seen(actor: User) -> QuerySet[Team]:
    """Teams of which the actor sees every workspace, as their owner or viewer."""
    return Team.objects.filter(
        memberships__in=Membership.objects.filter(user=actor, role__in=[Role.OWNER, Role.VIEWER])
    )


def sees_others(actor: User) -> bool:
    """Whether the actor may see workspaces that are not his own."""
    return actor.sees_all or teams_seen(actor).exists()


def operated_teams(actor: User) -> set[UUID] | None:
    """Teams whose workspaces the actor operates whoever's they are, as their owner; None for all."""
    if actor.operates:
        return None
    return set(actor.memberships.filter(role=Role.OWNER).values_list("team_id", flat=True))


def may_operate(actor: User | SystemActor, workspace: Workspace) -> bool:
    """Start, stop and delete."""
    if isinstance(actor, SystemActor) or actor.operates or workspace.owner_id == actor.pk:
        return True
    return is_owner(actor, workspace.team)


def may_open(actor: User, workspace: Workspace) -> bool:
    """Only its own user works in it: whoever opens it acts as that user."""
    return actor.is_active and workspace.owner_id == actor.pk


def require_open(actor: User, workspace: Workspace) -> None:
    if not may_open(actor, workspace):
        raise NotAllowed(Reason(WorkspaceCode.ONLY_ITS_USER, {"owner": workspace.owner.username}))


def uses_home(actor: User, workspace: Workspace) -> bool:
    """Whether the home folder that the workspace uses is the actor's: nobody else's business is in it."""
    return actor.is_active and workspace.owner_id == actor.pk


def require_home(actor: User, workspace: Workspace) -> None:
    """Raise `NotAllowed` for everybody but its user, and `StateConflict` where there is no home."""
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
    """Raise `StateConflict` where the account has been deactivated; in the caller's transaction.

    Under a lock on the account: who is being deactivated at this moment has it stopped, or does not get it.
    """
    active = User.objects.select_for_update(no_key=True).filter(pk=owner.pk, is_active=True)
    if not active.values_list("pk", flat=True).first():
        raise StateConflict(
            Reason(AccountCode.USER_DEACTIVATED, {"username": owner.username}),
            code=ProblemCode.USER_DEACTIVATED,
        )


def require_place(workspace: Workspace) -> None:
    """Raise `StateConflict` where its user works in its team no more: the team pays for nobody else."""
    if not works_in(workspace.owner, workspace.team):
        named = {"username": workspace.owner.username, "team": workspace.team.name}
        raise StateConflict(Reason(AccountCode.NOT_A_MEMBER, named), code=ProblemCode.NOT_A_MEMBER)


def require_priority(actor: User, team: Team, priority: int) -> None:
    """To go before others is for a team's owners and operators to say; to wait longer anybody may offer."""
    if priority > 0 and not (actor.operates or is_owner(actor, team)):
        raise NotAllowed(Reason(WorkspaceCode.PRIORITY_NOT_ALLOWED, {"team": team.name}))
