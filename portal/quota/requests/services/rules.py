"""Auto-approve rules and delegations."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common import etags
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.formatting import format_moment, format_resource_amount
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import approvers
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.domain_events import TeamDeletion
from portal.people.accounts.models import Delegation, Team, User
from portal.quota.limits import resources
from portal.quota.limits.codes import QuotaCode
from portal.quota.limits.models import Grant
from portal.quota.requests.codes import RequestCode
from portal.quota.requests.models import AutoApproveRule, RequestState

MAX_HOURS = 24 * 366
MAX_AMOUNT = 2**62
MAX_DELEGATION = timedelta(days=366)


def require_approver(actor: User) -> None:
    """Raise `NotAllowed` unless the actor is an approver or administrator; delegates do not qualify."""
    if not approvers.is_approver(actor):
        raise NotAllowed(Reason(RequestCode.ONLY_APPROVERS_CHANGE_RULES))


# --- Rules ------------------------------------------------------------------------------------------


@transaction.atomic
def create_rule(
    *, actor: User, team: Team | None, resource: str, amount_at_most: int, hours_at_most: int
) -> AutoApproveRule:
    """Create a rule that approves requests within these limits. Without `team`, it applies to every team.

    Raises `NotAllowed`, `InvalidInput`.
    """
    require_approver(actor)
    _check_rule(resource, amount_at_most, hours_at_most)
    rule = AutoApproveRule.objects.create(
        team=team,
        resource=resource,
        amount_at_most=amount_at_most,
        hours_at_most=hours_at_most,
        created_by=actor,
        changed_by=actor,
    )
    _record_rule(actor, rule, "rule_created", f"created the rule: {describe_rule(rule)}")
    return rule


@transaction.atomic
def change_rule(
    *,
    actor: User,
    rule_id: UUID,
    amount_at_most: int | None = None,
    hours_at_most: int | None = None,
    enabled: bool | None = None,
    expected: frozenset[str] = etags.ANY,
) -> AutoApproveRule:
    """Change the given fields; existing grants stay. Also raises `PreconditionFailed`."""
    require_approver(actor)
    rule = _rule(rule_id, expected)
    before = describe_rule(rule)
    values: dict[str, Any] = {
        "amount_at_most": amount_at_most,
        "hours_at_most": hours_at_most,
        "enabled": enabled,
    }
    changes = {
        name: value for name, value in values.items() if value is not None and value != getattr(rule, name)
    }
    if not changes:
        return rule
    for name, value in changes.items():
        setattr(rule, name, value)
    _check_rule(rule.resource, rule.amount_at_most, rule.hours_at_most)
    rule.changed_by = actor
    rule.save(update_fields=[*changes, "changed_by"])
    switched = {True: "enabled the rule: ", False: "disabled the rule: "}
    if set(changes) == {"enabled"}:
        message = switched[rule.enabled] + describe_rule(rule)
    else:
        message = f"changed the rule: {before} → {describe_rule(rule)}"
    _record_rule(actor, rule, "rule_changed", message)
    return rule


@transaction.atomic
def delete_rule(*, actor: User, rule_id: UUID, expected: frozenset[str] = etags.ANY) -> None:
    """Delete a rule; its grants stay until they end. Also raises `PreconditionFailed`."""
    require_approver(actor)
    rule = _rule(rule_id, expected)
    _record_rule(actor, rule, "rule_deleted", f"deleted the rule: {describe_rule(rule)}")
    rule.delete()


def describe_rule(rule: AutoApproveRule) -> str:
    """Return the rule as part of a sentence: amount, duration and team."""
    hours = ngettext("%(count)s hour", "%(count)s hours", rule.hours_at_most) % {"count": rule.hours_at_most}
    params = {
        "amount": format_resource_amount(rule.resource, rule.amount_at_most),
        "hours": hours,
        "team": rule.team.name if rule.team else _("all teams"),
    }
    return _("up to %(amount)s for up to %(hours)s, for %(team)s") % params


def rules_for(team: Team, resource: str, requester: User) -> list[AutoApproveRule]:
    """Return the rules for a request by this member, the team's own first.

    Excludes rules that the requester created or last changed.
    """
    candidates = AutoApproveRule.objects.filter(enabled=True, resource=resource).order_by("created_at")
    if not approvers.is_only_superuser(requester):
        candidates = candidates.exclude(created_by=requester).exclude(changed_by=requester)
    return [rule for rule in candidates if rule.team_id == team.pk] + [
        rule for rule in candidates if rule.team_id is None
    ]


def remaining_allowance(rule: AutoApproveRule, team: Team, now: datetime) -> int:
    """Return the amount that the rule still allows the team, after all its active grants from rules."""
    granted = (
        Grant.objects.active(now)
        # Automatic grants have no decider. The rule itself may have been deleted.
        .filter(team=team, user=None, resource=rule.resource)
        .filter(request__state=RequestState.APPROVED, request__decided_by=None)
        .aggregate(held=Sum("amount"))["held"]
    )
    return max(0, rule.amount_at_most - (granted or 0))


def _rule(rule_id: UUID, expected: frozenset[str]) -> AutoApproveRule:
    # Without a join: the team is optional, and outer joins cannot be locked.
    rule = AutoApproveRule.objects.select_for_update().filter(pk=rule_id).first()
    if rule is None:
        raise NotFound(Reason(RequestCode.NO_SUCH_RULE))
    by = rule.changed_by
    etags.require_expected(expected, rule, name=describe_rule(rule), by=by.username if by else None)
    return rule


def _check_rule(resource: str, amount: int, hours: int) -> None:
    problems: dict[str, list[Reason]] = {}
    if not resources.is_resource(resource):
        problems["resource"] = [Reason(QuotaCode.NO_SUCH_RESOURCE, {"resource": resource})]
    if not 0 < amount <= MAX_AMOUNT:
        problems["amount_at_most"] = [Reason(RequestCode.CHOOSE_MORE_THAN_ZERO)]
    if not 0 < hours <= MAX_HOURS:
        problems["hours_at_most"] = [Reason(RequestCode.HOURS_OUT_OF_RANGE, {"max": MAX_HOURS})]
    if problems:
        first = next(iter(problems.values()))[0]
        raise InvalidInput(Reason(CommonCode.CORRECT_AND_RETRY, {"first": first.as_json()}), errors=problems)


def _record_rule(actor: User, rule: AutoApproveRule, action: str, message: str) -> None:
    events.record(
        actor=actor,
        kind=AuditKind(f"quota.{action}"),
        team=rule.team,
        message=message,
        data={
            "rule": str(rule.pk),
            "resource": rule.resource,
            "amount_at_most": rule.amount_at_most,
            "hours_at_most": rule.hours_at_most,
            "enabled": rule.enabled,
        },
    )


# --- Delegations ------------------------------------------------------------------------------------


@transaction.atomic
def delegate(
    *, actor: User, delegate: str, ends_at: datetime, starts_at: datetime | None = None
) -> Delegation:
    """Delegate the actor's approvals for a period; the actor may still decide too.

    Raises `NotAllowed`, `InvalidInput` (user, times) and `StateConflict` (already delegated).
    """
    require_approver(actor)
    now = timezone.now()
    begins = max(starts_at, now) if starts_at is not None else now
    problems: dict[str, list[Reason]] = {}
    user = User.objects.filter(username=strip_nul(delegate).strip().lower(), is_active=True).first()
    if user is None:
        problems["delegate"] = [Reason(AccountCode.USER_UNKNOWN)]
    elif user.pk == actor.pk:
        problems["delegate"] = [Reason(RequestCode.DELEGATE_IS_SELF)]
    elif user.is_service:
        problems["delegate"] = [Reason(AccountCode.IS_SERVICE_ACCOUNT, {"username": user.username})]
    elif user.is_auditor:
        problems["delegate"] = [Reason(RequestCode.AUDITOR_ONLY_READS, {"username": user.username})]
    if ends_at <= begins:
        problems["ends_at"] = [Reason(RequestCode.DELEGATION_END)]
    elif ends_at - begins > MAX_DELEGATION:
        problems["ends_at"] = [Reason(RequestCode.DELEGATION_TOO_LONG)]
    if problems or user is None:
        first = next(iter(problems.values()))[0]
        raise InvalidInput(Reason(CommonCode.CORRECT_AND_RETRY, {"first": first.as_json()}), errors=problems)
    # Serialise per approver, to detect duplicates.
    User.objects.select_for_update(no_key=True).get(pk=actor.pk)
    same = actor.delegations_given.filter(delegate=user, starts_at__lt=ends_at, ends_at__gt=begins).first()
    if same is not None:
        params = {"username": user.username, "until": same.ends_at.isoformat()}
        raise StateConflict(Reason(RequestCode.DELEGATED_ALREADY, params))
    delegation = Delegation.objects.create(approver=actor, delegate=user, starts_at=begins, ends_at=ends_at)
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_DELEGATED,
        message=f"made {user.username} a delegate until {format_moment(ends_at)}",
        data={
            "delegation": str(delegation.pk),
            "delegate": user.username,
            "starts_at": begins.isoformat(),
            "ends_at": ends_at.isoformat(),
        },
    )
    events.notify(
        [user],
        "quota.delegated",
        _("You are now a delegate of %(username)s") % {"username": actor.username},
        _("From %(start)s to %(end)s.") % {"start": format_moment(begins), "end": format_moment(ends_at)},
        "/quotas/approvals/",
    )
    return delegation


@transaction.atomic
def end_delegation(*, actor: User, delegation_id: UUID) -> None:
    """End a delegation now. For its approver, its delegate and administrators. Idempotent."""
    delegation = (
        Delegation.objects.select_for_update(of=("self",))
        .select_related("approver", "delegate")
        .filter(pk=delegation_id)
        .first()
    )
    if delegation is None:
        raise NotFound(Reason(RequestCode.NO_SUCH_DELEGATION))
    if actor.pk not in {delegation.approver_id, delegation.delegate_id} and not actor.is_superuser:
        delegator = {"username": delegation.approver.username}
        raise NotAllowed(Reason(RequestCode.ONLY_DELEGATOR_TAKES_BACK, delegator))
    now = timezone.now()
    if delegation.ends_at <= now:
        return
    if delegation.starts_at < now:
        delegation.ends_at = now
        delegation.save(update_fields=["ends_at"])
    else:
        delegation.delete()
    username, approver = delegation.delegate.username, delegation.approver.username
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_DELEGATION_ENDED,
        message=f"ended the delegation from {approver} to {username}",
        data={"delegation": str(delegation_id), "delegate": username},
    )
    if actor.pk != delegation.delegate_id:
        events.notify(
            [delegation.delegate],
            "quota.delegation_ended",
            _("You are no longer a delegate of %(username)s") % {"username": delegation.approver.username},
        )


def team_deleted(event: TeamDeletion) -> None:
    """Delete the rules for a deleted team."""
    AutoApproveRule.objects.filter(team=event.team).delete()
