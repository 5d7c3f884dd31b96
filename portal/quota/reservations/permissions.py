"""Permissions to book without approval. Approvers grant them to other users."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.common.actors import SystemActor
from portal.common.errors import InvalidInput, NotAllowed, NotFound
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import approvers
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.domain_events import TeamDeletion
from portal.people.accounts.models import Team, User
from portal.quota.reservations.codes import ReservationCode
from portal.quota.reservations.models import BookingPermission


def require_grant(actor: User) -> None:
    """Raise `NotAllowed` unless the actor is an approver or administrator; delegates do not qualify."""
    if not approvers.is_approver(actor):
        raise NotAllowed(Reason(ReservationCode.ONLY_APPROVERS_PERMIT))


def permissions_for(actor: User) -> QuerySet[BookingPermission]:
    """Return permissions that the actor may see: all for approvers and operators, else the actor's own."""
    rows = BookingPermission.objects.select_related("user", "team", "granted_by").order_by("created_at", "id")
    if actor.sees_all or approvers.may_decide_all(actor):
        return rows
    return rows.filter(user=actor)


@transaction.atomic
def permit_booking(*, actor: User, username: str, team: Team | None = None) -> BookingPermission:
    """Permit a user to book for `team`, or for every team that they are not in. Idempotent.

    For approvers, never for themselves. Raises `NotAllowed` and `InvalidInput`.
    """
    require_grant(actor)
    user = User.objects.filter(username=strip_nul(username).strip().lower(), is_active=True).first()
    if user is None:
        params = {"username": username}
        unknown = Reason(AccountCode.USER_UNKNOWN)
        raise InvalidInput(Reason(AccountCode.NO_SUCH_USER, params), errors={"username": [unknown]})
    if user.pk == actor.pk:
        raise NotAllowed(Reason(ReservationCode.NOBODY_PERMITS_THEMSELF))
    # Serialise per user, so that a concurrent duplicate is detected.
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    present = BookingPermission.objects.filter(user=user, team=team).first()
    if present is not None:
        return present
    permission = BookingPermission.objects.create(user=user, team=team, granted_by=actor)
    _record(
        actor,
        permission,
        AuditKind.RESERVATION_PERMITTED,
        f"allowed {user.username} to book without approval",
    )
    events.notify(
        [user],
        "reservation.permitted",
        _("%(username)s allowed you to book without approval") % {"username": actor.username},
        _("For %(teams)s.") % {"teams": teams_of(permission)},
        reverse("reservations:calendar"),
    )
    return permission


@transaction.atomic
def end(*, actor: User, permission_id: UUID) -> None:
    """Revoke a permission; existing bookings stay. For approvers and the holder.

    Raises `NotFound` and `NotAllowed`.
    """
    permission = permissions_for(actor).filter(pk=permission_id).select_for_update(of=("self",)).first()
    if permission is None:
        raise NotFound(Reason(ReservationCode.NO_SUCH_PERMISSION))
    if permission.user_id != actor.pk:
        require_grant(actor)
    _end(actor, permission)


def end_all_of(user: User, actor: User | SystemActor) -> None:
    """Revoke the permissions of a deactivated user, in the caller's transaction."""
    for permission in BookingPermission.objects.filter(user=user).select_related("user", "team"):
        _end(actor, permission)


def team_deleted(event: TeamDeletion) -> None:
    """Delete the permissions for a deleted team."""
    BookingPermission.objects.filter(team=event.team).delete()


def teams_of(permission: BookingPermission) -> str:
    """Return the teams of the permission as text."""
    return permission.team.name if permission.team else _("all teams of which they are not a member")


def _end(actor: User | SystemActor, permission: BookingPermission) -> None:
    message = f"no longer allows {permission.user.username} to book without approval"
    _record(actor, permission, AuditKind.RESERVATION_PERMISSION_ENDED, message)
    permission.delete()


def _record(actor: User | SystemActor, row: BookingPermission, kind: AuditKind, message: str) -> None:
    teams = row.team.name if row.team else "all teams of which they are not a member"
    events.record(
        actor=actor,
        kind=kind,
        team=row.team,
        message=f"{message} for {teams}",
        targets=[Target(TargetKind.USER, str(row.user_id))],
        data={
            "permission": str(row.pk),
            "username": row.user.username,
            "team": row.team.slug if row.team else None,
        },
    )
