"""Who holds the site role of an approver: by right, or as the delegate of one for a time."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.people.accounts.models import Delegation, User


def approvers() -> QuerySet[User]:
    """Whoever decides in their own right: approvers and administrators."""
    return User.objects.filter(Q(is_approver=True) | Q(is_superuser=True), is_active=True)


def is_approver(actor: User) -> bool:
    """Whether the actor decides in their own right, so that no delegation is needed."""
    return actor.is_active and (actor.is_approver or actor.is_superuser)


def delegations_at(now: datetime) -> QuerySet[Delegation]:
    """Those that count: they last, and who gave them may still decide."""
    return Delegation.objects.filter(
        Q(approver__is_approver=True) | Q(approver__is_superuser=True),
        starts_at__lte=now,
        ends_at__gt=now,
        approver__is_active=True,
        delegate__is_active=True,
        delegate__is_auditor=False,
    )


def delegator_of(actor: User) -> User | None:
    """In whose place the actor decides at this moment, or None."""
    held = delegations_at(timezone.now()).filter(delegate=actor).select_related("approver").first()
    return held.approver if held else None


def decides_only_for(actor: User) -> User | None:
    """The one approver by whose delegation alone the actor decides; None where there are others or none."""
    if is_approver(actor):
        return None
    held = delegations_at(timezone.now()).filter(delegate=actor).select_related("approver")
    found = {delegation.approver_id: delegation.approver for delegation in held}
    return next(iter(found.values())) if len(found) == 1 else None


def is_only_superuser(actor: User) -> bool:
    """The one administrator there is decides even what he asked for himself: there may be nobody else."""
    if not (actor.is_active and actor.is_superuser):
        return False
    return not User.objects.filter(is_superuser=True, is_active=True).exclude(pk=actor.pk).exists()


def may_decide_all(actor: User) -> bool:
    """Requests for quota and GPU-hours, of whichever team: approvers, administrators, delegates."""
    if is_approver(actor):
        return True
    return actor.is_active and delegations_at(timezone.now()).filter(delegate=actor).exists()
