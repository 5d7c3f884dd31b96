"""The one way in which an account is switched off, and how it is given back.

What is signed with the account (sessions, links) and its tokens end with the transaction; the rooms above
stop, cancel and close what is theirs when they hear of it (`UserDeactivated`, wired in `portal.wiring`).
docs/adr/0017-deactivation.md says what ends how, and why within five seconds.
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
    """Switch an account off: administrators, and of a service account its team's owners. Twice is success.

    Raises `StateConflict` for the last administrator who can sign in.
    """
    policies.require_manage_account(actor, user)
    return switch_off(actor=actor, user=locked(user), reason=reason)


def switch_off(*, actor: User | SystemActor, user: User, reason: str = "") -> User:
    """Part of the caller's transaction, who has decided that `actor` may do it and has locked the account.

    Sessions, links, tokens, tickets, delegations and open connections end, workspaces stop with their files
    kept, waiting requests are cancelled, and ownership of teams passes on (`heirs_of`). Raises
    `StateConflict` for the last administrator who can sign in.
    """
    if not user.is_active:
        return user
    policies.require_another_administrator(user)
    user.is_active = False
    user.deactivated_at = timezone.now()
    if not user.has_usable_password():
        # Its invitation shall not open it when it is given back.
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
        targets=sessions.about(user),
        data={"username": user.username, "sessions": ended, "tokens": tokens, "teams": passed},
    )
    emit(UserDeactivated(user=user, actor=actor))
    return user


@transaction.atomic
def reactivate(*, actor: User | SystemActor, user: User) -> User:
    """Give an account back, with its password and its places in teams; nothing else of what ended.

    For who may deactivate it; twice is success. Raises `StateConflict` for one that has been deleted.
    """
    policies.require_manage_account(actor, user)
    user = locked(user)
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
        targets=sessions.about(user),
        data={"username": user.username},
    )
    emit(UserReactivated(user=user, actor=actor))
    return user


def locked(user: User) -> User:
    """The row as it is now, locked with those of all administrators, in one order for everybody.

    Of two administrators who take the right away from each other, the second waits and is refused. The lock
    is not one on keys: rows that only point to the user are written meanwhile, and nobody waits in a circle.
    """
    rows = User.objects.filter(Q(pk=user.pk) | Q(is_superuser=True)).order_by("pk")
    rows = rows.select_for_update(no_key=True)
    return next(row for row in rows if row.pk == user.pk)


def revoke_tokens(user: User) -> int:
    """End all tokens of a user with the caller's transaction; returns how many worked until now."""
    return ApiToken.objects.filter(owner=user, revoked_at=None).update(revoked_at=timezone.now())


@dataclass(frozen=True, slots=True)
class Handover:
    """What becomes of an ownership: `heir` takes it over, or there are other owners, or nobody is left."""

    membership: Membership
    heir: User | None = None
    others: bool = False


def heirs_of(actor: User | SystemActor, user: User) -> list[Handover]:
    """The user's ownerships, each with who becomes owner in their place where there is no other owner.

    It is the member who has been in the team for longest, but for viewers and service accounts,
    else whoever deactivates, unless that is the user.
    """
    found: list[Handover] = []
    owned = user.memberships.filter(role=Role.OWNER).select_related("team")
    for membership in owned.order_by("team__slug"):
        others = Membership.objects.filter(team=membership.team, user__is_active=True).exclude(
            Q(user=user) | Q(role=Role.VIEWER) | Q(user__owning_team__isnull=False)
        )
        if others.filter(role=Role.OWNER).exists():
            found.append(Handover(membership, others=True))
            continue
        longest = others.select_related("user").order_by("joined_at", "pk").first()
        heir = actor if isinstance(actor, User) and actor.pk != user.pk else None
        found.append(Handover(membership, longest.user if longest else heir))
    return found


def _pass_ownership(actor: User | SystemActor, user: User) -> list[str]:
    """The user is an owner nowhere any more, and every team has one; returns the teams that it was of.

    Where nobody is left to take it over, as when the user or the portal acts, the user stays the owner.
    """
    passed = []
    for handover in heirs_of(actor, user):
        membership, heir = handover.membership, handover.heir
        team = membership.team
        if heir is None and not handover.others:
            continue
        if heir is not None:
            Membership.objects.update_or_create(team=team, user=heir, defaults={"role": Role.OWNER})
            events.record(
                actor=actor,
                kind=AuditKind.TEAM_OWNER_PASSED,
                team=team,
                message=f"made {heir.username} owner of {team.name} in place of {user.username}",
                targets=[*sessions.about(user), *sessions.about(heir)],
                data={"username": heir.username, "before": user.username},
            )
            events.notify(
                [heir],
                "team.owner_passed",
                _("You own the team %(team)s now") % {"team": team.name},
                _("The account of %(username)s, who owned it, has been deactivated.")
                % {"username": user.username},
                reverse("home:team", args=[team.slug]),
            )
        membership.role = Role.MEMBER
        membership.save(update_fields=["role"])
        passed.append(team.slug)
    return passed


def _end_delegations(user: User) -> None:
    now = timezone.now()
    held = Delegation.objects.filter(Q(approver=user) | Q(delegate=user), ends_at__gt=now)
    held.filter(starts_at__lt=now).update(ends_at=now)
    held.filter(starts_at__gte=now).delete()
