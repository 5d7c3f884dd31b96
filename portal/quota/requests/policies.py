"""Permissions on requests, and who is notified."""

from __future__ import annotations

from collections.abc import Iterable

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from portal.common.errors import NotAllowed
from portal.common.formatting import units_per_whole
from portal.common.reasons.reason import Reason
from portal.people.accounts.approvers import (
    approvers,
    delegations_at,
    is_only_superuser,
    may_decide_all,
    only_delegator_of,
)
from portal.people.accounts.models import Role, Team, User
from portal.people.accounts.policies import is_owner
from portal.quota.limits.models import Grant
from portal.quota.limits.resources import GPU, is_accelerator
from portal.quota.requests.codes import RequestCode
from portal.quota.requests.models import QuotaRequest, RequestKind
from portal.quota.reservations.codes import ReservationCode


def visible_to(actor: User) -> Q:
    """Return the filter for visible requests: all for approvers and operators, else own and own teams'."""
    if actor.sees_all or may_decide_all(actor):
        return Q()
    return Q(requester=actor) | Q(team__in=Team.objects.filter(memberships__user=actor))


def decidable_by(actor: User) -> Q:
    """Return the filter for requests that the actor may decide, except their own."""
    kinds = Q(pk__in=[])
    if may_decide_all(actor):
        # A delegate may not decide requests of the delegating approver.
        kinds |= ~Q(kind=RequestKind.MEMBER_CAP) & ~Q(requester=only_delegator_of(actor))
    if actor.operates:
        kinds |= Q(kind=RequestKind.MEMBER_CAP)
    else:
        owned = Team.objects.filter(memberships__user=actor, memberships__role=Role.OWNER)
        kinds |= Q(kind=RequestKind.MEMBER_CAP, team__in=owned)
    return kinds if is_only_superuser(actor) else kinds & ~Q(requester=actor)


def may_decide_any(actor: User) -> bool:
    """Return whether the actor may decide any requests at all."""
    if actor.operates or may_decide_all(actor):
        return True
    return actor.memberships.filter(role=Role.OWNER).exists()


def is_large(request: QuotaRequest, amount: int | None) -> bool:
    """Return whether approving `amount` (base units; None: all) requires recent authentication.

    `BERTH_STEP_UP_APPROVALS` sets the thresholds, in whole units by resource. Its value for all GPUs also
    applies to models without their own value.
    """
    limits = settings.BERTH_STEP_UP_APPROVALS
    limit = limits.get(request.resource)
    if limit is None and is_accelerator(request.resource):
        limit = limits.get(GPU)
    if limit is None:
        return False
    granted = request.amount if amount is None else amount
    return granted > limit * units_per_whole(request.resource)


def require_decide(actor: User, request: QuotaRequest) -> None:
    """Raise `NotAllowed` unless the actor may decide this request."""
    if request.kind == RequestKind.MEMBER_CAP:
        if not (actor.operates or is_owner(actor, request.team)):
            raise NotAllowed(Reason(RequestCode.ONLY_OWNERS_DECIDE_CAPS, {"team": request.team.name}))
    elif not may_decide_all(actor):
        raise NotAllowed(Reason(RequestCode.ONLY_APPROVERS_DECIDE_REQUEST))
    elif only_delegator_of(actor) == request.requester:
        raise NotAllowed(
            Reason(ReservationCode.DELEGATE_OF_REQUESTER, {"username": request.requester.username})
        )
    if request.requester_id == actor.pk and not is_only_superuser(actor):
        raise NotAllowed(Reason(ReservationCode.NOBODY_DECIDES_OWN))


def require_revoke(actor: User, grant: Grant) -> None:
    """Raise `NotAllowed` unless the actor may revoke the grant, as those who decide such requests."""
    if grant.user_id is None:
        allowed = may_decide_all(actor)
    else:
        allowed = actor.operates or is_owner(actor, grant.team)
    if not allowed:
        raise NotAllowed(
            Reason(
                RequestCode.ONLY_APPROVERS_REVOKE if grant.user_id is None else RequestCode.ONLY_OWNERS_REVOKE
            )
        )


def deciders_of(request: QuotaRequest) -> Iterable[User]:
    """Return all users who may decide a request: those notified and, for caps, operators."""
    users = {user.pk: user for user in approvers_of(request)}
    if request.kind == RequestKind.MEMBER_CAP:
        operators = User.objects.filter(Q(is_operator=True) | Q(is_superuser=True), is_active=True)
        users |= {user.pk: user for user in operators.exclude(pk=request.requester_id)}
    return users.values()


def approvers_of(request: QuotaRequest) -> Iterable[User]:
    """Return the users who are notified of a request, without the requester."""
    if request.kind == RequestKind.MEMBER_CAP:
        owners = User.objects.filter(memberships__team=request.team, memberships__role=Role.OWNER)
        users = {user.pk: user for user in owners if user.pk != request.requester_id}
        if not users:
            # The only owner is the requester.
            operators = User.objects.filter(Q(is_operator=True) | Q(is_superuser=True), is_active=True)
            users = {user.pk: user for user in operators}
    else:
        users = {user.pk: user for user in approvers()}
        lent = delegations_at(timezone.now()).exclude(approver=request.requester)
        for delegation in lent.select_related("delegate"):
            users[delegation.delegate_id] = delegation.delegate
    users.pop(request.requester_id, None)
    return users.values()
