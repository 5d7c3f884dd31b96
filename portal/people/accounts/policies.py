"""Who may do what with people, teams and tokens."""

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
    """In the team with whichever role."""
    return team.memberships.filter(user=actor).exists()


def is_owner(actor: User, team: Team) -> bool:
    return team.memberships.filter(user=actor, role=Role.OWNER).exists()


def works_in(actor: User, team: Team) -> bool:
    """In the team with a role that starts workspaces and asks for more: not as a viewer."""
    return team.memberships.filter(user=actor).exclude(role=Role.VIEWER).exists()


def require_work_in(actor: User, team: Team) -> None:
    if works_in(actor, team):
        return
    code = AccountCode.VIEWER_ONLY if is_member(actor, team) else AccountCode.NOT_IN_TEAM
    raise NotAllowed(Reason(code, {"team": team.name}))


def may_view_team(actor: User, team: Team) -> bool:
    return actor.sees_all or is_member(actor, team)


def may_manage_team(actor: User | SystemActor, team: Team) -> bool:
    return isinstance(actor, SystemActor) or actor.operates or is_owner(actor, team)


def may_loosen_egress(actor: User | SystemActor) -> bool:
    """Open more of what a team's workspaces reach; its owners only close."""
    return isinstance(actor, SystemActor) or actor.operates


def require_manage_team(actor: User | SystemActor, team: Team) -> None:
    if not may_manage_team(actor, team):
        raise NotAllowed(Reason(AccountCode.ONLY_TEAM_OWNERS, {"team": team.name}))


def require_operator(actor: User | SystemActor) -> None:
    if not isinstance(actor, SystemActor) and not actor.operates:
        raise NotAllowed(Reason(AccountCode.ONLY_OPERATORS))


def require_administrator(actor: User | SystemActor) -> None:
    """People and their accounts are for administrators: whoever sets a password could be anybody."""
    if not isinstance(actor, SystemActor) and not actor.administers:
        raise NotAllowed(Reason(CommonCode.ONLY_ADMINISTRATORS))


def may_manage_account(actor: User | SystemActor, user: User) -> bool:
    """Switch an account off and on, delete it: administrators; a service account, its team's owners too."""
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
    """Whether this portal lets people delete their own accounts; administrators may in any case."""
    return not user.is_service and (settings.BERTH_ACCOUNT_DELETION == "on" or user.administers)


def reasons_to_stay(user: User) -> list[Reason]:
    """What has to be done before `user` can delete their own account, where they may; workspaces apart."""
    found = []
    if is_last_administrator(user):
        found.append(Reason(AccountCode.LAST_ADMINISTRATOR, {"username": user.username}))
    teams = orphaned_by(user)
    if teams:
        found.append(Reason(AccountCode.LAST_OWNER_LEAVES, {"teams": [team.name for team in teams]}))
    return found


def require_delete_account(actor: User | SystemActor, user: User) -> None:
    """Delete an account: whoever manages it, and its user where the portal allows it.

    Raises `NotAllowed`, and for one's own account `StateConflict` where it leaves a team without an owner.
    """
    if isinstance(actor, SystemActor) or actor.pk != user.pk:
        require_manage_account(actor, user)
        return
    if not may_delete_own_account(user):
        raise NotAllowed(Reason(AccountCode.ACCOUNT_DELETION_OFF))
    for reason in reasons_to_stay(user):
        raise StateConflict(reason, code=reason.code)


def orphaned_by(user: User) -> list[Team]:
    """Teams that others are in, people or service accounts, of which `user` is the only active owner.

    Locks the teams of which `user` is an owner when called in a transaction: of two owners who leave at
    once the second sees that the first has left.
    """
    owned = Team.objects.filter(memberships__user=user, memberships__role=Role.OWNER)
    if connection.in_atomic_block:
        owned = owned.select_for_update(of=("self",))
    found = []
    for team in owned.order_by("pk"):
        others = team.memberships.filter(user__is_active=True).exclude(user=user)
        if others.exists() and not others.filter(role=Role.OWNER).exists():
            found.append(team)
    return sorted(found, key=lambda team: team.slug)


def may_manage_tokens_of(actor: User | SystemActor, user: User) -> bool:
    """Make and rotate tokens: one's own, and those of service accounts of the teams that one manages."""
    if isinstance(actor, SystemActor) or actor.pk == user.pk:
        return True
    return user.owning_team is not None and may_manage_team(actor, user.owning_team)


def may_revoke_tokens_of(actor: User | SystemActor, user: User) -> bool:
    """Whoever makes them, and operators whosoever's they are."""
    return may_manage_tokens_of(actor, user) or (not isinstance(actor, SystemActor) and actor.operates)


def require_person(user: User) -> None:
    """Raise `StateConflict` for a service account, which has no password, address, role or other team."""
    if user.is_service:
        raise StateConflict(Reason(AccountCode.IS_SERVICE_ACCOUNT, {"username": user.username}))


def require_see_all(actor: User | SystemActor) -> None:
    if not isinstance(actor, SystemActor) and not actor.sees_all:
        raise NotAllowed(Reason(AccountCode.ONLY_OPERATORS))


def require_see_people(actor: User | SystemActor) -> None:
    """Accounts and the audit log are read by administrators and auditors."""
    if not isinstance(actor, SystemActor) and not actor.sees_people:
        raise NotAllowed(Reason(CommonCode.ONLY_ADMINISTRATORS))


def require_role_for(user: User, role: str) -> None:
    """Raise `StateConflict` where the user may not have this role in a team: an auditor only views."""
    if user.is_auditor and role != Role.VIEWER:
        raise StateConflict(Reason(AccountCode.AUDITOR_ONLY_VIEWS, {"username": user.username}))


def is_last_administrator(user: User) -> bool:
    """Whether nobody else administers who can sign in with a password.

    One who signs in by a provider does not count: a provider can be gone.
    """
    if not user.administers:
        return False
    others = User.objects.with_state(AccountState.ACTIVE).filter(HAS_PASSWORD, is_superuser=True)
    return not others.exclude(pk=user.pk).exists()


def require_another_administrator(user: User) -> None:
    """Raise `StateConflict` where `user` is the last administrator who can sign in with a password."""
    if is_last_administrator(user):
        raise StateConflict(
            Reason(AccountCode.LAST_ADMINISTRATOR, {"username": user.username}),
            code=ProblemCode.LAST_ADMINISTRATOR,
        )
