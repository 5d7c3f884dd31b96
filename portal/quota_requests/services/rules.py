"""What needs nobody, and who decides in somebody's place: auto-approve rules and delegations."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from portal.accounts import approvers
from portal.accounts.models import Delegation, Team, User
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.formatting import format_resource_amount
from portal.common.texts import storable
from portal.events import services as events
from portal.quota_requests.models import AutoApproveRule, RequestStatus
from portal.quotas import resources
from portal.quotas.models import Grant

HOURS_AT_MOST = 24 * 366
AMOUNT_AT_MOST = 2**62
DELEGATION_AT_MOST = timedelta(days=366)


def require_approver(actor: User) -> None:
    """Raises `NotAllowed` for all but approvers and administrators; a delegate is none."""
    if not approvers.is_approver(actor):
        raise NotAllowed(
            "Only an approver may change rules and delegations.", next_action="Ask an approver to do it."
        )


# --- Rules ------------------------------------------------------------------------------------------


@transaction.atomic
def create_rule(
    *, actor: User, team: Team | None, resource: str, amount_at_most: int, hours_at_most: int
) -> AutoApproveRule:
    """Approve at once what asks for so much for so long; `team` None is every team. Raises `InvalidInput`."""
    require_approver(actor)
    _check_rule(resource, amount_at_most, hours_at_most)
    rule = AutoApproveRule.objects.create(
        team=team,
        resource=resource,
        amount_at_most=amount_at_most,
        hours_at_most=hours_at_most,
        created_by=actor,
    )
    _record_rule(actor, rule, "rule_created", f"made the rule: {rule_words(rule)}")
    return rule


@transaction.atomic
def change_rule(
    *,
    actor: User,
    rule_id: UUID,
    amount_at_most: int | None = None,
    hours_at_most: int | None = None,
    enabled: bool | None = None,
) -> AutoApproveRule:
    """Change what is given; grants that the rule has made stay."""
    require_approver(actor)
    rule = _rule(rule_id)
    before = rule_words(rule)
    given: dict[str, Any] = {
        "amount_at_most": amount_at_most,
        "hours_at_most": hours_at_most,
        "enabled": enabled,
    }
    changes = {
        name: value for name, value in given.items() if value is not None and value != getattr(rule, name)
    }
    if not changes:
        return rule
    for name, value in changes.items():
        setattr(rule, name, value)
    _check_rule(rule.resource, rule.amount_at_most, rule.hours_at_most)
    rule.save(update_fields=list(changes))
    switched = {True: "switched on the rule: ", False: "switched off the rule: "}
    if set(changes) == {"enabled"}:
        message = switched[rule.enabled] + rule_words(rule)
    else:
        message = f"changed the rule: {before} → {rule_words(rule)}"
    _record_rule(actor, rule, "rule_changed", message)
    return rule


@transaction.atomic
def delete_rule(*, actor: User, rule_id: UUID) -> None:
    """Remove a rule; grants that it has made stay until they end."""
    require_approver(actor)
    rule = _rule(rule_id)
    _record_rule(actor, rule, "rule_deleted", f"removed the rule: {rule_words(rule)}")
    rule.delete()


def rule_words(rule: AutoApproveRule) -> str:
    """The rule as a sentence."""
    whom = rule.team.name if rule.team else "every team"
    hours = f"{rule.hours_at_most} hour{'' if rule.hours_at_most == 1 else 's'}"
    return f"up to {format_resource_amount(rule.resource, rule.amount_at_most)} for up to {hours}, for {whom}"


def rules_for(team: Team, resource: str) -> list[AutoApproveRule]:
    """Rules that count for the team, its own first."""
    found = AutoApproveRule.objects.filter(enabled=True, resource=resource).order_by("created_at")
    return [rule for rule in found if rule.team_id == team.pk] + [
        rule for rule in found if rule.team_id is None
    ]


def left_of(rule: AutoApproveRule, team: Team, now: datetime) -> int:
    """How much the rule still allows the team, beside all its active grants that rules made."""
    held = (
        Grant.objects.active(now)
        # Nobody decided these. The rule itself may have been removed meanwhile.
        .filter(team=team, user=None, resource=rule.resource)
        .filter(request__status=RequestStatus.APPROVED, request__decided_by=None)
        .aggregate(held=Sum("amount"))["held"]
    )
    return max(0, rule.amount_at_most - (held or 0))


def _rule(rule_id: UUID) -> AutoApproveRule:
    # The row alone: its team may be none, and an outer join cannot be locked.
    found = AutoApproveRule.objects.select_for_update().filter(pk=rule_id).first()
    if found is None:
        raise NotFound("There is no such rule.", next_action="Reload the list of rules.")
    return found


def _check_rule(resource: str, amount: int, hours: int) -> None:
    problems: dict[str, list[str]] = {}
    try:
        resources.validate_resource(resource)
    except ValidationError as error:
        problems["resource"] = list(error.messages)
    if not 0 < amount <= AMOUNT_AT_MOST:
        problems["amount_at_most"] = ["Choose more than zero."]
    if not 0 < hours <= HOURS_AT_MOST:
        problems["hours_at_most"] = [f"Choose from 1 to {HOURS_AT_MOST} hours."]
    if problems:
        first = next(iter(problems.values()))[0]
        raise InvalidInput(first, next_action="Correct it and try again.", errors=problems)


def _record_rule(actor: User, rule: AutoApproveRule, word: str, message: str) -> None:
    events.record(
        actor=actor,
        kind=f"quota.{word}",
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
    """Let somebody decide in the actor's place while it lasts; the actor may still decide too.

    Raises `NotAllowed`, `InvalidInput` (who, times) and `StateConflict` (it is so already).
    """
    require_approver(actor)
    now = timezone.now()
    begins = max(starts_at, now) if starts_at is not None else now
    problems: dict[str, list[str]] = {}
    user = User.objects.filter(username=storable(delegate).strip().lower(), is_active=True).first()
    if user is None:
        problems["delegate"] = ["No user has this name."]
    elif user.pk == actor.pk:
        problems["delegate"] = ["Choose somebody else: you may decide anyway."]
    if ends_at <= begins:
        problems["ends_at"] = ["Choose an end after the beginning, in the future."]
    elif ends_at - begins > DELEGATION_AT_MOST:
        problems["ends_at"] = ["A year at most."]
    if problems or user is None:
        first = next(iter(problems.values()))[0]
        raise InvalidInput(first, next_action="Correct it and try again.", errors=problems)
    # One at a time for each approver, so that the same is not given twice.
    User.objects.select_for_update(no_key=True).get(pk=actor.pk)
    same = actor.delegations_given.filter(delegate=user, starts_at__lt=ends_at, ends_at__gt=begins).first()
    if same is not None:
        raise StateConflict(
            f"{user.username} decides in your place already until {same.ends_at:%d %b %Y, %H:%M} UTC.",
            next_action="Take that back first, or choose other days.",
        )
    made = Delegation.objects.create(approver=actor, delegate=user, starts_at=begins, ends_at=ends_at)
    events.record(
        actor=actor,
        kind="quota.delegated",
        message=f"lets {user.username} decide until {ends_at:%d %b %Y, %H:%M} UTC",
        data={
            "delegation": str(made.pk),
            "delegate": user.username,
            "starts_at": begins.isoformat(),
            "ends_at": ends_at.isoformat(),
        },
    )
    events.notify(
        [user],
        "quota.delegated",
        f"You decide requests for more in place of {actor.username}",
        f"From {begins:%d %b %Y, %H:%M} to {ends_at:%d %b %Y, %H:%M} UTC.",
        "/quotas/approvals/",
    )
    return made


@transaction.atomic
def take_back(*, actor: User, delegation_id: UUID) -> None:
    """End a delegation now: who gave it, who holds it, or an administrator. One that is over stays over."""
    found = (
        Delegation.objects.select_for_update(of=("self",))
        .select_related("approver", "delegate")
        .filter(pk=delegation_id)
        .first()
    )
    if found is None:
        raise NotFound("There is no such delegation.", next_action="Reload the list.")
    if actor.pk not in {found.approver_id, found.delegate_id} and not actor.is_superuser:
        raise NotAllowed(
            f"Only {found.approver.username} may take this back.", next_action="Ask them to do it."
        )
    now = timezone.now()
    if found.ends_at <= now:
        return
    if found.starts_at < now:
        found.ends_at = now
        found.save(update_fields=["ends_at"])
    else:
        found.delete()
    events.record(
        actor=actor,
        kind="quota.delegation_ended",
        message=f"ended that {found.delegate.username} decides in place of {found.approver.username}",
        data={"delegation": str(delegation_id), "delegate": found.delegate.username},
    )
    if actor.pk != found.delegate_id:
        events.notify(
            [found.delegate],
            "quota.delegation_ended",
            f"You no longer decide in place of {found.approver.username}",
        )
