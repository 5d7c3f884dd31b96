"""Permissions on users, teams and tokens."""

from __future__ import annotations

from django.conf import settings
from django.db import connection

from portal.common.actors import SystemActor
from portal.common.errors import NotAllowed, StateConflict
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import HAS_PASSWORD, AccountState, Role, Team, User


def is_member(actor: User, team: Team) -> bool:
    """Return whether the actor is in the team, with any role."""
    return team.memberships.filter(user=actor).exists()


def is_owner(actor: User, team: Team) -> bool:
    return team.memberships.filter(user=actor, role=Role.OWNER).exists()


def may_work_in(actor: User, team: Team) -> bool:
    """Return whether the actor may start workspaces and request quota in the team. Viewers may not."""
    working = team.memberships.filter(user=actor).exclude(role=Role.VIEWER)
    return team.archived_at is None and working.exists()


def require_active_team(team: Team) -> None:
    """Raise `StateConflict` for an archived team."""
    if team.archived_at is not None:
        raise StateConflict(Reason(AccountCode.TEAM_ARCHIVED, {"team": team.name}))


def require_not_being_deleted(team: Team) -> None:
    """Raise `StateConflict` once the deletion of the team has started."""
    if team.deletion_started_at is not None:
        reason = Reason(AccountCode.TEAM_BEING_DELETED, {"team": team.name})
        raise StateConflict(reason, code=reason.code)


def require_work_in(actor: User, team: Team) -> None:
    require_active_team(team)
    if may_work_in(actor, team):
        return
    code = AccountCode.VIEWER_ONLY if is_member(actor, team) else AccountCode.NOT_IN_TEAM
    raise NotAllowed(Reason(code, {"team": team.name}))


def may_view_team(actor: User, team: Team) -> bool:
    return actor.sees_all or is_member(actor, team)


def may_manage_team(actor: User | SystemActor, team: Team) -> bool:
    return isinstance(actor, SystemActor) or actor.operates or is_owner(actor, team)


def may_loosen_egress(actor: User | SystemActor) -> bool:
    """Return whether the actor may relax the egress policy of a team. Owners may only tighten it."""
    return isinstance(actor, SystemActor) or actor.operates


def require_manage_team(actor: User | SystemActor, team: Team) -> None:
    if not may_manage_team(actor, team):
        raise NotAllowed(Reason(AccountCode.ONLY_TEAM_OWNERS, {"team": team.name}))


def require_operator(actor: User | SystemActor) -> None:
    if not isinstance(actor, SystemActor) and not actor.operates:
        raise NotAllowed(Reason(AccountCode.ONLY_OPERATORS))


def require_administrator(actor: User | SystemActor) -> None:
    """Raise `NotAllowed` unless the actor is an administrator. Setting passwords allows impersonation."""
    if not isinstance(actor, SystemActor) and not actor.administers:
        raise NotAllowed(Reason(CommonCode.ONLY_ADMINISTRATORS))


def may_manage_account(actor: User | SystemActor, user: User) -> bool:
    """Return whether the actor may deactivate, reactivate and delete the account.

    Administrators may, and owners of a service account's team.
    """
    if isinstance(actor, SystemActor) or actor.administers:
        return True
    return user.owning_team is not None and may_manage_team(actor, user.owning_team)


def require_manage_account(actor: User | SystemActor, user: User) -> None:
    if may_manage_account(actor, user):
        return
    if user.owning_team is not None:
        raise NotAllowed(Reason(AccountCode.ONLY_TEAM_OWNERS, {"team": user.owning_team.name}))
    raise NotAllowed(Reason(CommonCode.ONLY_ADMINISTRATORS))


def may_delete_own_account(user: User) -> bool:
    """Return whether the site lets this user delete their own account. Administrators always may."""
    return not user.is_service and (settings.BERTH_ACCOUNT_DELETION == "on" or user.administers)


def deletion_obstacles(user: User) -> list[Reason]:
    """Return what prevents `user` from deleting their own account, except workspaces."""
    reasons = []
    if is_last_administrator(user):
        reasons.append(Reason(AccountCode.LAST_ADMINISTRATOR, {"username": user.username}))
    teams = teams_orphaned_by(user)
    if teams:
        reasons.append(Reason(AccountCode.LAST_OWNER_LEAVES, {"teams": [team.name for team in teams]}))
    return reasons


def require_delete_account(actor: User | SystemActor, user: User) -> None:
    """Require permission to delete an account: as its manager, or one's own where the site allows it.

    Raises `NotAllowed` and, for one's own account, `StateConflict` if it would leave a team without an owner.
    """
    if isinstance(actor, SystemActor) or actor.pk != user.pk:
        require_manage_account(actor, user)
        return
    if not may_delete_own_account(user):
        raise NotAllowed(Reason(AccountCode.ACCOUNT_DELETION_OFF))
    for reason in deletion_obstacles(user):
        raise StateConflict(reason, code=reason.code)


def teams_orphaned_by(user: User) -> list[Team]:
    """Return teams with other members, including service accounts, of which `user` is the only active owner.

    In a transaction, locks the teams owned by `user`, so that of two owners who leave concurrently the second
    sees that the first has left.
    """
    owned = Team.objects.filter(memberships__user=user, memberships__role=Role.OWNER)
    if connection.in_atomic_block:
        owned = owned.select_for_update(of=("self",))
    teams = []
    for team in owned.order_by("pk"):
        others = team.memberships.filter(user__is_active=True).exclude(user=user)
        if others.exists() and not others.filter(role=Role.OWNER).exists():
            teams.append(team)
    return sorted(teams, key=lambda team: team.slug)


def may_manage_tokens_of(actor: User | SystemActor, user: User) -> bool:
    """Return whether the actor may create and rotate tokens of `user`.

    Users may for themselves, and team managers for the team's service accounts.
    """
    if isinstance(actor, SystemActor) or actor.pk == user.pk:
        return True
    return user.owning_team is not None and may_manage_team(actor, user.owning_team)


def may_revoke_tokens_of(actor: User | SystemActor, user: User) -> bool:
    """Return whether the actor may revoke tokens of `user`: operators, and users who may create them."""
    return may_manage_tokens_of(actor, user) or (not isinstance(actor, SystemActor) and actor.operates)


def require_person(user: User) -> None:
    """Raise `StateConflict` for a service account, which has no password, address, role or other team."""
    if user.is_service:
        raise StateConflict(Reason(AccountCode.IS_SERVICE_ACCOUNT, {"username": user.username}))


def require_see_all(actor: User | SystemActor) -> None:
    if not isinstance(actor, SystemActor) and not actor.sees_all:
        raise NotAllowed(Reason(AccountCode.ONLY_OPERATORS))


def require_see_people(actor: User | SystemActor) -> None:
    """Raise `NotAllowed` unless the actor is an administrator or auditor."""
    if not isinstance(actor, SystemActor) and not actor.sees_people:
        raise NotAllowed(Reason(CommonCode.ONLY_ADMINISTRATORS))


def require_role_for(user: User, role: str) -> None:
    """Raise `StateConflict` if the user may not have this role in a team. Auditors can only be viewers."""
    if user.is_auditor and role != Role.VIEWER:
        raise StateConflict(Reason(AccountCode.AUDITOR_ONLY_VIEWS, {"username": user.username}))


def is_last_administrator(user: User) -> bool:
    """Return whether `user` is the only administrator who can sign in with a password.

    Administrators who sign in through a provider do not count, because a provider can become unavailable.
    """
    if not user.administers:
        return False
    others = User.objects.with_state(AccountState.ACTIVE).filter(HAS_PASSWORD, is_superuser=True)
    return not others.exclude(pk=user.pk).exists()


def require_another_administrator(user: User) -> None:
    """Raise `StateConflict` if `user` is the last administrator who can sign in with a password."""
    if is_last_administrator(user):
        raise StateConflict(
            Reason(AccountCode.LAST_ADMINISTRATOR, {"username": user.username}),
            code=ProblemCode.LAST_ADMINISTRATOR,
        )
