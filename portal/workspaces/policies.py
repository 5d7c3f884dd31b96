"""Who may do what with a workspace."""

from __future__ import annotations

from django.db.models import Q

from portal.accounts.models import Role, Team, User
from portal.accounts.policies import is_member, is_owner
from portal.common.actors import SystemActor
from portal.common.errors import NotAllowed, StateConflict
from portal.common.reasons.codes import AccountCode, WorkspaceCode
from portal.common.reasons.reason import Reason
from portal.workspaces.models import Workspace, WorkspaceQuerySet


def visible_to(actor: User, workspaces: WorkspaceQuerySet) -> WorkspaceQuerySet:
    """One's own, those of teams one owns, and all for an operator."""
    if actor.operates:
        return workspaces
    owned = Team.objects.filter(memberships__user=actor, memberships__role=Role.OWNER)
    return workspaces.filter(Q(owner=actor) | Q(team__in=owned))


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


def require_operate(actor: User | SystemActor, workspace: Workspace) -> None:
    if not may_operate(actor, workspace):
        raise NotAllowed(Reason(WorkspaceCode.ONLY_ITS_OPERATORS, {"owner": workspace.owner.username}))


def require_create(actor: User, team: Team) -> None:
    if not is_member(actor, team):
        raise NotAllowed(Reason(AccountCode.NOT_IN_TEAM, {"team": team.name}))


def require_active_owner(owner: User) -> None:
    """Raise `StateConflict` where the account has been deactivated; in the caller's transaction.

    Under a lock on the account: who is being deactivated at this moment has it stopped, or does not get it.
    """
    active = User.objects.select_for_update(no_key=True).filter(pk=owner.pk, is_active=True)
    if not active.values_list("pk", flat=True).first():
        raise StateConflict(
            Reason(AccountCode.USER_DEACTIVATED, {"username": owner.username}), code="user_deactivated"
        )


def require_priority(actor: User, team: Team, priority: int) -> None:
    """To go before others is for a team's owners and operators to say; to wait longer anybody may offer."""
    if priority > 0 and not (actor.operates or is_owner(actor, team)):
        raise NotAllowed(Reason(WorkspaceCode.PRIORITY_NOT_ALLOWED, {"team": team.name}))
