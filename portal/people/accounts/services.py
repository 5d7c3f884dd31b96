"""Writes teams and members. Each writes an audit entry in the same transaction."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import transaction
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.common import etags
from portal.common.actors import SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import policies, selectors, sessions
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.domain_events import MemberSet, MembershipRevoked, TeamsChanged
from portal.people.accounts.models import Membership, Role, Team, User


@transaction.atomic
def set_mail_notices(*, actor: User, enabled: bool) -> None:
    """Enable or disable notices by e-mail. Idempotent."""
    if User.objects.filter(pk=actor.pk).exclude(mail_notices=enabled).update(mail_notices=enabled):
        actor.mail_notices = enabled
        events.record(
            actor=actor,
            kind=AuditKind.ACCOUNT_MAIL_NOTICES,
            message="enabled notices by e-mail" if enabled else "disabled notices by e-mail",
        )


@transaction.atomic
def create_team(*, actor: User | SystemActor, slug: str, name: str, owner: User | None = None) -> Team:
    """Create a team. Raises `NotAllowed` unless the actor is an operator, and `InvalidInput`."""
    policies.require_operator(actor)
    team = Team(slug=slug, name=name.strip() or slug)
    try:
        team.full_clean()
    except ValidationError as error:
        raise InvalidInput(Reason(AccountCode.TEAM_NOT_VALID), errors=error.message_dict) from error
    if owner is not None:
        policies.require_person(owner)
        policies.require_role_for(owner, Role.OWNER)
    team.save()
    if owner is not None:
        Membership.objects.create(team=team, user=owner, role=Role.OWNER)
    emit(TeamsChanged())
    events.record(
        actor=actor, kind=AuditKind.TEAM_CREATED, team=team, message=f"created the team {team.name}"
    )
    return team


@transaction.atomic
def set_member(
    *,
    actor: User | SystemActor,
    team: Team,
    username: str,
    role: str,
    expected: frozenset[str] = etags.ANY,
) -> Membership:
    """Add a user to a team or change the role. A team keeps at least one owner.

    Raises `NotAllowed`, `InvalidInput`, `PreconditionFailed`, and `StateConflict` (the only owner; an auditor
    in another role than viewer; a new viewer who has workspaces in the team; a team that is being deleted).
    """
    policies.require_manage_team(actor, team)
    if role not in Role.values:
        raise InvalidInput(
            Reason(AccountCode.NO_SUCH_ROLE, {"role": role}),
            errors={"role": [Reason(AccountCode.CHOOSE_A_ROLE)]},
        )
    user = User.objects.filter(username=strip_nul(username).strip().lower(), is_active=True).first()
    if user is None:
        raise InvalidInput(
            Reason(AccountCode.NO_SUCH_USER, {"username": username}),
            errors={"username": [Reason(AccountCode.USER_UNKNOWN)]},
        )
    policies.require_person(user)
    policies.require_role_for(user, role)
    policies.require_not_being_deleted(Team.objects.select_for_update().get(pk=team.pk))
    # Owners may also change their own role.
    owned = isinstance(actor, User) and policies.is_owner(actor, team)
    membership = Membership.objects.filter(team=team, user=user).first()
    etags.require_expected(expected, membership, name=user.username)
    if membership is None:
        membership = Membership.objects.create(team=team, user=user, role=role)
        message = f"added {user.username} to {team.name} as {role}"
    elif membership.role == role:
        return membership
    else:
        if membership.role == Role.OWNER:
            _require_another_owner(team, owner=user)
        if role == Role.VIEWER:
            _require_no_workspaces(team, user)
        membership.role = role
        membership.save(update_fields=["role"])
        message = f"set the role of {user.username} in {team.name} to {role}"
    alone = isinstance(actor, User) and actor.pk == user.pk and not owned
    if alone:
        message += ", without approval of an owner"
    events.record(
        actor=actor,
        kind=AuditKind.TEAM_MEMBER_SET,
        team=team,
        message=message,
        targets=sessions.audit_targets(user),
        data={"username": user.username, "role": role, "without_owners": alone},
    )
    if alone:
        _notify_owners(team, user, role)
    emit(MemberSet(team=team, user=user, role=role, actor=actor))
    return membership


def _notify_owners(team: Team, user: User, role: str) -> None:
    """Notify the team's owners that an operator has joined without asking them."""
    owners = User.objects.filter(memberships__team=team, memberships__role=Role.OWNER).exclude(pk=user.pk)
    events.notify(
        owners,
        "team.joined_without_owners",
        _("%(username)s was added to %(team)s") % {"username": user.username, "team": team.name},
        _("%(username)s is an operator and is now %(role)s of the team. You can remove them.")
        % {"username": user.username, "role": Role(role).label.lower()},
        reverse("home:team", args=[team.slug]),
    )


@transaction.atomic
def remove_member(
    *, actor: User | SystemActor, team: Team, username: str, expected: frozenset[str] = etags.ANY
) -> None:
    """Remove a user from a team.

    Members may leave themselves. Raises `StateConflict` if they have workspaces.
    """
    removes_self = not isinstance(actor, SystemActor) and actor.username == username
    if not removes_self:
        policies.require_manage_team(actor, team)
    Team.objects.select_for_update().get(pk=team.pk)
    membership = selectors.membership_of(team, username)
    etags.require_expected(expected, membership, name=membership.user.username)
    policies.require_person(membership.user)
    if membership.role == Role.OWNER:
        _require_another_owner(team, owner=membership.user)
    _require_no_workspaces(team, membership.user)
    membership.delete()
    events.record(
        actor=actor,
        kind=AuditKind.TEAM_MEMBER_REMOVED,
        team=team,
        message=f"removed {username} from {team.name}",
        targets=sessions.audit_targets(membership.user),
        data={"username": username},
    )


def _require_no_workspaces(team: Team, user: User) -> None:
    """Raise `StateConflict` if the user has workspaces in the team."""
    live = user.workspaces.live().filter(team=team).count()
    if live:
        params = {"username": user.username, "count": live, "team": team.name}
        raise StateConflict(Reason(AccountCode.MEMBER_HAS_WORKSPACES, params))


@transaction.atomic
def withdraw_member(*, actor: SystemActor, team: Team, user: User) -> bool:
    """Remove a user from a team immediately, for the source that added them.

    Their workspaces there stop and cannot start again. If the user is the only owner, the longest-standing
    active member becomes one; without such a member, the user stays, and the result is False.
    """
    Team.objects.select_for_update().get(pk=team.pk)
    membership = Membership.objects.filter(team=team, user=user).first()
    if membership is None:
        return True
    others = Membership.objects.filter(team=team, user__is_active=True).exclude(user=user)
    if membership.role == Role.OWNER and not others.filter(role=Role.OWNER).exists():
        longest = others.select_related("user").order_by("joined_at", "pk").first()
        if longest is None:
            return False
        set_member(actor=actor, team=team, username=longest.user.username, role=Role.OWNER)
    emit(MembershipRevoked(user=user, team=team, actor=actor))
    membership.delete()
    events.record(
        actor=actor,
        kind=AuditKind.TEAM_MEMBER_REMOVED,
        team=team,
        message=f"removed {user.username} from {team.name}",
        targets=sessions.audit_targets(user),
        data={"username": user.username},
    )
    return True


def _require_another_owner(team: Team, *, owner: User) -> None:
    if not team.memberships.filter(role=Role.OWNER).exclude(user=owner).exists():
        raise StateConflict(Reason(AccountCode.LAST_OWNER, {"username": owner.username, "team": team.name}))
