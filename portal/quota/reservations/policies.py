"""Permissions to decide reservations, and to book without approval.

As with quota requests, users cannot approve a reservation that they requested or last changed, whatever their
roles. Booking without approval requires a permission from another user.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Q
from django.utils import timezone

from portal.common.errors import NotAllowed
from portal.common.reasons.reason import Reason
from portal.people.accounts import approvers
from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import is_member
from portal.quota.limits import policies as quotas
from portal.quota.reservations.codes import ReservationCode
from portal.quota.reservations.models import BookingPermission, Reservation, ReservationState


def permission_for(actor: User, team: Team) -> BookingPermission | None:
    """Return the permission that lets the actor book for the team without approval, or None.

    A permission for every team excludes the actor's own teams, which have to be named.
    """
    scope = Q(team=team) if is_member(actor, team) else Q(team=team) | Q(team=None)
    rows = BookingPermission.objects.filter(scope, user=actor).select_related("granted_by")
    return rows.order_by("created_at").first()


def may_book_at_once(actor: User, team: Team) -> bool:
    """Return whether the actor can book without approval. The only administrator needs no permission."""
    return permission_for(actor, team) is not None or approvers.is_only_superuser(actor)


def _decided_elsewhere(actor: User) -> Q:
    """Return the filter for reservations that another user must decide.

    These are the actor's own reservations, and those of an approver for whom the actor is only a delegate.
    """
    lenders = [actor] if not approvers.is_only_superuser(actor) else []
    if not actor.operates and (lender := approvers.only_delegator_of(actor)) is not None:
        lenders.append(lender)
    return Q(created_by__in=lenders) | Q(changed_by__in=lenders)


def filter_decidable(actor: User) -> Q:
    """Return the filter for reservations for the actor to decide."""
    if not quotas.may_book(actor):
        return Q(pk__in=[])
    wait = Q(state=ReservationState.REQUESTED, ends_at__gt=timezone.now())
    elsewhere = Reservation.objects.filter(_decided_elsewhere(actor)).values("pk")
    return wait & ~Q(pk__in=elsewhere)


def may_decide(actor: User, row: Reservation) -> bool:
    """Return whether the reservation is pending and the actor may decide it."""
    return Reservation.objects.filter(filter_decidable(actor), pk=row.pk).exists()


def require_decide(actor: User, row: Reservation) -> None:
    """Raise `NotAllowed` unless the actor may decide this reservation."""
    quotas.require_book(actor)
    author_ids = {row.created_by_id, row.changed_by_id}
    if actor.pk in author_ids and not approvers.is_only_superuser(actor):
        raise NotAllowed(Reason(ReservationCode.NOBODY_DECIDES_OWN))
    lender = None if actor.operates else approvers.only_delegator_of(actor)
    if lender is not None and lender.pk in author_ids:
        raise NotAllowed(Reason(ReservationCode.DELEGATE_OF_REQUESTER, {"username": lender.username}))


def deciders_of(row: Reservation) -> Iterable[User]:
    """Return the users who may decide the reservation and are notified of it."""
    author_ids = {row.created_by_id, row.changed_by_id}
    operators = User.objects.filter(Q(is_operator=True) | Q(is_superuser=True), is_active=True)
    users = {user.pk: user for user in [*approvers.approvers(), *operators]}
    lent = approvers.delegations_at(timezone.now()).exclude(approver__in=[key for key in author_ids if key])
    for delegation in lent.select_related("delegate"):
        users.setdefault(delegation.delegate_id, delegation.delegate)
    return [user for key, user in users.items() if key not in author_ids]
