"""Deactivates and reactivates accounts.

Sessions, links and tokens end with the transaction. Packages above stop and cancel their own objects on
`UserDeactivated` (connected in `portal.wiring`). docs/adr/0017-deactivation.md lists the effects, which are
complete within 5 seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SystemActor
from portal.common.domain_events import emit
from portal.common.errors import StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.people.accounts import policies, sessions
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.domain_events import UserDeactivated, UserReactivated
from portal.people.accounts.models import ApiToken, Delegation, Membership, Role, User


@transaction.atomic
def deactivate(*, actor: User | SystemActor, user: User, reason: str = "") -> User:
    """Deactivate an account. Idempotent. For administrators, and owners of a service account's team.

    Raises `NotAllowed`, and `StateConflict` for the last administrator who can sign in.
    """
    policies.require_manage_account(actor, user)
    return deactivate_account(actor=actor, user=lock_user(user), reason=reason)


def deactivate_account(*, actor: User | SystemActor, user: User, reason: str = "") -> User:
    """Deactivate an account in the caller's transaction. The caller checks permission and locks the account.

    Sessions, links, tokens, tickets, delegations and open connections end, workspaces stop with their files
    kept, waiting requests are cancelled, and ownership of teams passes on (`planned_handovers`). Raises
    `StateConflict` for the last administrator who can sign in.
    """
    if not user.is_active:
        return user
    policies.require_another_administrator(user)
    user.is_active = False
    user.deactivated_at = timezone.now()
    if not user.has_usable_password():
        # Invalidates the invitation, which must not work after a reactivation.
        user.set_unusable_password()
    ended = sessions.end_all(user)
    user.save(update_fields=["is_active", "deactivated_at", "password", "session_salt"])
    tokens = revoke_tokens(user)
    _end_delegations(user)
    passed = _pass_ownership(actor, user)
    events.record(
        actor=actor,
        kind=AuditKind.USER_DEACTIVATED,
        message=f"deactivated {user.username}",
        reason=reason,
        targets=sessions.audit_targets(user),
        data={"username": user.username, "sessions": ended, "tokens": tokens, "teams": passed},
    )
    emit(UserDeactivated(user=user, actor=actor))
    return user


@transaction.atomic
def reactivate(*, actor: User | SystemActor, user: User) -> User:
    """Reactivate an account with its password and memberships. Nothing else is restored. Idempotent.

    Requires the same permission as deactivation. Raises `StateConflict` for a deleted account.
    """
    policies.require_manage_account(actor, user)
    user = lock_user(user)
    if user.deleted_at is not None:
        raise StateConflict(Reason(AccountCode.USER_DELETED, {"username": user.username}))
    if user.is_active:
        return user
    user.is_active = True
    user.deactivated_at = None
    user.save(update_fields=["is_active", "deactivated_at"])
    events.record(
        actor=actor,
        kind=AuditKind.USER_REACTIVATED,
        message=f"reactivated {user.username}",
        targets=sessions.audit_targets(user),
        data={"username": user.username},
    )
    emit(UserReactivated(user=user, actor=actor))
    return user


def lock_user(user: User) -> User:
    """Return the current row, locked together with all administrators, in a fixed order.

    When two administrators demote each other, the second waits and is refused. The lock is `FOR NO KEY
    UPDATE`, so that inserts of rows that reference the user do not wait and cannot deadlock.
    """
    rows = User.objects.filter(Q(pk=user.pk) | Q(is_superuser=True)).order_by("pk")
    rows = rows.select_for_update(no_key=True)
    return next(row for row in rows if row.pk == user.pk)


def revoke_tokens(user: User) -> int:
    """Revoke all tokens of a user in the caller's transaction. Returns how many were not revoked before."""
    return ApiToken.objects.filter(owner=user, revoked_at=None).update(revoked_at=timezone.now())


@dataclass(frozen=True, slots=True)
class OwnershipHandover:
    """The handover of one team. `others`: the team has other owners.

    With neither `new_owner` nor `others`, the user stays the owner.
    """

    membership: Membership
    new_owner: User | None = None
    others: bool = False


def planned_handovers(actor: User | SystemActor, user: User) -> list[OwnershipHandover]:
    """Return the user's ownerships, each with the new owner if there is no other owner.

    The new owner is the longest-standing active member, except viewers and service accounts. Without such a
    member, `actor` becomes the owner, unless that is the user or the portal.
    """
    handovers: list[OwnershipHandover] = []
    owned = user.memberships.filter(role=Role.OWNER).select_related("team")
    for membership in owned.order_by("team__slug"):
        others = Membership.objects.filter(team=membership.team, user__is_active=True).exclude(
            Q(user=user) | Q(role=Role.VIEWER) | Q(user__owning_team__isnull=False)
        )
        if others.filter(role=Role.OWNER).exists():
            handovers.append(OwnershipHandover(membership, others=True))
            continue
        longest = others.select_related("user").order_by("joined_at", "pk").first()
        new_owner = actor if isinstance(actor, User) and actor.pk != user.pk else None
        handovers.append(OwnershipHandover(membership, longest.user if longest else new_owner))
    return handovers


def _pass_ownership(actor: User | SystemActor, user: User) -> list[str]:
    """Remove the user as owner of all teams and appoint new owners. Returns the affected teams.

    The user stays the owner of a team without a successor (`planned_handovers`).
    """
    passed = []
    for handover in planned_handovers(actor, user):
        membership, new_owner = handover.membership, handover.new_owner
        team = membership.team
        if new_owner is None and not handover.others:
            continue
        if new_owner is not None:
            Membership.objects.update_or_create(team=team, user=new_owner, defaults={"role": Role.OWNER})
            events.record(
                actor=actor,
                kind=AuditKind.TEAM_OWNER_PASSED,
                team=team,
                message=f"made {new_owner.username} the owner of {team.name} instead of {user.username}",
                targets=[*sessions.audit_targets(user), *sessions.audit_targets(new_owner)],
                data={"username": new_owner.username, "before": user.username},
            )
            events.notify(
                [new_owner],
                "team.owner_passed",
                _("You are now the owner of %(team)s") % {"team": team.name},
                _("The account of the previous owner, %(username)s, was deactivated.")
                % {"username": user.username},
                reverse("home:team", args=[team.slug]),
            )
        membership.role = Role.MEMBER
        membership.save(update_fields=["role"])
        passed.append(team.slug)
    return passed


def _end_delegations(user: User) -> None:
    now = timezone.now()
    delegations = Delegation.objects.filter(Q(approver=user) | Q(delegate=user), ends_at__gt=now)
    delegations.filter(starts_at__lt=now).update(ends_at=now)
    delegations.filter(starts_at__gte=now).delete()
