"""Users who decide requests: approvers, administrators and temporary delegates."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.people.accounts.models import Delegation, User


def approvers() -> QuerySet[User]:
    """Return users who decide in their own right: approvers and administrators."""
    return User.objects.filter(Q(is_approver=True) | Q(is_superuser=True), is_active=True)


def is_approver(actor: User) -> bool:
    """Return whether the actor decides in their own right, without a delegation."""
    return actor.is_active and (actor.is_approver or actor.is_superuser)


def delegations_at(now: datetime) -> QuerySet[Delegation]:
    """Return delegations in effect at `now`, whose approver may still decide."""
    return Delegation.objects.filter(
        Q(approver__is_approver=True) | Q(approver__is_superuser=True),
        starts_at__lte=now,
        ends_at__gt=now,
        approver__is_active=True,
        delegate__is_active=True,
        delegate__is_auditor=False,
    )


def delegator_of(actor: User) -> User | None:
    """Return the approver for whom the actor currently decides, or None."""
    delegation = delegations_at(timezone.now()).filter(delegate=actor).select_related("approver").first()
    return delegation.approver if delegation else None


def only_delegator_of(actor: User) -> User | None:
    """Return the only approver for whom the actor decides, or None if there are several or none."""
    if is_approver(actor):
        return None
    delegations = delegations_at(timezone.now()).filter(delegate=actor).select_related("approver")
    approvers = {delegation.approver_id: delegation.approver for delegation in delegations}
    return next(iter(approvers.values())) if len(approvers) == 1 else None


def is_only_superuser(actor: User) -> bool:
    """Return whether the actor is the only administrator, who may also decide their own requests."""
    if not (actor.is_active and actor.is_superuser):
        return False
    return not User.objects.filter(is_superuser=True, is_active=True).exclude(pk=actor.pk).exists()


def may_decide_all(actor: User) -> bool:
    """Return whether the actor may decide quota and GPU-hour requests of any team."""
    if is_approver(actor):
        return True
    return actor.is_active and delegations_at(timezone.now()).filter(delegate=actor).exists()
