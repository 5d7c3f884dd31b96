"""Queries for requests, grants, rules and delegations visible to the actor."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.common.errors import NotFound
from portal.common.events.models import Event, TargetKind
from portal.common.reasons.reason import Reason
from portal.people.accounts import approvers
from portal.people.accounts.models import Delegation, Team, User
from portal.people.accounts.policies import is_owner
from portal.quota.limits.models import Grant, GrantQuerySet
from portal.quota.requests import policies
from portal.quota.requests.codes import RequestCode
from portal.quota.requests.evidence import Evidence, evidence_for
from portal.quota.requests.models import AutoApproveRule, QuotaRequest, RequestState
from portal.quota.requests.services.rules import remaining_allowance, rules_for

INBOX = 50


@dataclass(frozen=True, slots=True)
class InboxRow:
    """An open request that the actor may decide, with evidence."""

    request: QuotaRequest
    evidence: Evidence


def _base_queryset() -> QuerySet[QuotaRequest]:
    return QuotaRequest.objects.select_related(
        "team", "requester", "decided_by", "workspace", "workspace__template", "workspace__flavor", "grant"
    )


def requests_for(actor: User) -> QuerySet[QuotaRequest]:
    """Return requests that the actor may see, newest first."""
    return _base_queryset().filter(policies.visible_to(actor)).order_by("-created_at", "-id")


def request_by_id(actor: User, request_id: UUID) -> QuotaRequest:
    """Return the request. Raises `NotFound` if it does not exist or the actor may not see it."""
    quota_request = requests_for(actor).filter(pk=request_id).first()
    if quota_request is None:
        raise NotFound(Reason(RequestCode.NO_SUCH_REQUEST))
    return quota_request


def requests_to_decide(actor: User) -> QuerySet[QuotaRequest]:
    """Return open requests that the actor may decide, oldest first."""
    return (
        _base_queryset()
        .filter(policies.decidable_by(actor), state=RequestState.OPEN)
        .order_by("created_at", "id")
    )


def open_count(actor: User) -> int:
    """Return the number of requests for the actor to decide, as shown in the menu."""
    return QuotaRequest.objects.filter(policies.decidable_by(actor), state=RequestState.OPEN).count()


def inbox(actor: User, limit: int = INBOX) -> list[InboxRow]:
    """Return the oldest open requests for the actor to decide, with evidence. Constant number of queries."""
    rows = list(requests_to_decide(actor)[:limit])
    evidence_by_pk = evidence_for(rows)
    return [InboxRow(row, evidence_by_pk[row.pk]) for row in rows]


def latest_decisions(actor: User, limit: int = 10) -> list[QuotaRequest]:
    """Return the latest decisions among the requests that the actor may decide, newest first."""
    decided = [RequestState.APPROVED, RequestState.DENIED]
    decided_requests = _base_queryset().filter(
        policies.decidable_by(actor) | Q(decided_by=actor), state__in=decided
    )
    return list(decided_requests.order_by("-decided_at")[:limit])


def evidence(request: QuotaRequest) -> Evidence:
    """Return the evidence on one request."""
    return evidence_for([request])[request.pk]


def requests_of_team(team: Team, limit: int = 10) -> list[QuotaRequest]:
    """Return the team's latest requests, newest first."""
    return list(_base_queryset().filter(team=team).order_by("-created_at", "-id")[:limit])


def requests_of_user(user: User) -> QuerySet[QuotaRequest]:
    """Return the user's requests, newest first."""
    return _base_queryset().filter(requester=user).order_by("-created_at", "-id")


def history_of(request: QuotaRequest) -> QuerySet[Event]:
    """Return the request's events, newest first."""
    events = Event.objects.filter(targets__kind=TargetKind.QUOTA_REQUEST, targets__key=str(request.pk))
    return events.order_by("-pk")


def grants_for(actor: User) -> QuerySet[Grant]:
    """Return grants that the actor may see, newest first."""
    grants: GrantQuerySet = Grant.objects.select_related("team", "user", "request").order_by(
        "-starts_at", "-id"
    )
    if actor.sees_all or approvers.may_decide_all(actor):
        return grants
    return grants.filter(team__in=Team.objects.filter(memberships__user=actor))


def grant_by_id(actor: User, grant_id: UUID) -> Grant:
    """Return the grant. Raises `NotFound`."""
    grant = grants_for(actor).filter(pk=grant_id).first()
    if grant is None:
        raise NotFound(Reason(RequestCode.NO_SUCH_GRANT))
    return grant


def may_decide(actor: User, request: QuotaRequest) -> bool:
    """Return whether the request is open and the actor may decide it."""
    if request.state != RequestState.OPEN:
        return False
    return QuotaRequest.objects.filter(policies.decidable_by(actor), pk=request.pk).exists()


def may_revoke(actor: User, grant: Grant) -> bool:
    """Return whether the actor may revoke the grant, regardless of whether it has ended."""
    if grant.user_id is None:
        return approvers.may_decide_all(actor)
    return actor.operates or is_owner(actor, grant.team)


@dataclass(frozen=True, slots=True)
class ImmediateApproval:
    """An amount and duration, in hours, that a rule would approve at once."""

    resource: str
    amount: int
    hours: int


def immediate_approval(actor: User, team: Team, resource: str) -> ImmediateApproval | None:
    """Return the most that a rule still approves at once for the actor's team, or None."""
    now = timezone.now()
    best: ImmediateApproval | None = None
    for rule in rules_for(team, resource, actor):
        left = remaining_allowance(rule, team, now)
        if left and (best is None or (left, rule.hours_at_most) > (best.amount, best.hours)):
            best = ImmediateApproval(resource, left, rule.hours_at_most)
    return best


def rules(actor: User) -> QuerySet[AutoApproveRule]:
    """Return all rules for approvers and operators, else general rules and those of the actor's teams."""
    rows = AutoApproveRule.objects.select_related("team", "created_by").order_by(
        "resource", "created_at", "id"
    )
    if actor.sees_all or approvers.may_decide_all(actor):
        return rows
    return rows.filter(Q(team=None) | Q(team__in=Team.objects.filter(memberships__user=actor)))


def rule_by_id(actor: User, rule_id: UUID) -> AutoApproveRule:
    """Return the rule. Raises `NotFound`."""
    rule = rules(actor).filter(pk=rule_id).first()
    if rule is None:
        raise NotFound(Reason(RequestCode.NO_SUCH_RULE))
    return rule


def delegations(actor: User) -> QuerySet[Delegation]:
    """Return the visible delegations: all for approvers and operators, else those by or to the actor."""
    rows = Delegation.objects.select_related("approver", "delegate").order_by("-starts_at", "-id")
    if actor.sees_all or approvers.is_approver(actor):
        return rows
    return rows.filter(Q(approver=actor) | Q(delegate=actor))


def delegation_by_id(actor: User, delegation_id: UUID) -> Delegation:
    """Return the delegation. Raises `NotFound`."""
    delegation = delegations(actor).filter(pk=delegation_id).first()
    if delegation is None:
        raise NotFound(Reason(RequestCode.NO_SUCH_DELEGATION))
    return delegation
