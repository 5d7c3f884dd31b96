"""Writes and queries trust rules, and evaluates them for given claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from portal.common.actors import SystemActor
from portal.common.errors import InvalidInput, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import sessions, tokens
from portal.people.accounts.models import ApiToken, User
from portal.people.accounts.policies import require_manage_team
from portal.people.service_accounts import policies
from portal.people.service_accounts.codes import ExchangeCode
from portal.people.service_accounts.exchange import issuers
from portal.people.service_accounts.exchange.conditions import (
    MAX_CONDITIONS,
    Condition,
    ConditionResult,
    Problem,
    check,
    from_json,
    problem_of,
)
from portal.people.service_accounts.models import TrustRule

MIN_LIFETIME_S, MAX_LIFETIME_S = 60, 3600
MAX_RENEWED_S = 5 * 86_400
"""The longest time-out of a job on GitHub."""
RENEWED_S = 6 * 3600
MAX_RULES = 20
_CODES = {
    Problem.CLAIM: ExchangeCode.CONDITION_CLAIM,
    Problem.CHECKED_ANYWAY: ExchangeCode.CONDITION_CHECKED_ANYWAY,
    Problem.MATCH: ExchangeCode.CONDITION_MATCH,
    Problem.VALUE: ExchangeCode.CONDITION_VALUE,
    Problem.TOO_MANY: ExchangeCode.TOO_MANY_CONDITIONS,
    Problem.NO_IDENTITY: ExchangeCode.NO_IDENTITY,
}


@transaction.atomic
def create(
    *,
    actor: User | SystemActor,
    account: User,
    name: str,
    issuer: str,
    audience: str,
    conditions: Sequence[Condition],
    scopes: Sequence[str],
    lifetime_s: int,
    max_lifetime_s: int = RENEWED_S,
    made_with: ApiToken | None = None,
) -> TrustRule:
    """Create a rule to exchange tokens of an issuer for tokens of the account. For team owners and operators.

    `made_with` is the token of the request. A token cannot create a rule with more permissions than its own.
    Raises `NotAllowed`, `InvalidInput` (by field) and `StateConflict` (too many rules).
    """
    _require_manage(actor, account)
    User.objects.select_for_update(no_key=True).get(pk=account.pk)
    if TrustRule.objects.filter(account=account).count() >= MAX_RULES:
        raise StateConflict(Reason(ExchangeCode.TOO_MANY_RULES, {"most": MAX_RULES}))
    name, audience = strip_nul(name).strip()[:80], strip_nul(audience).strip()
    problems: dict[str, list[Reason]] = {}
    if not name:
        problems["name"] = [Reason(ExchangeCode.RULE_NAMELESS)]
    if issuer not in issuers.allowed():
        problems["issuer"] = [Reason(ExchangeCode.ISSUER_NOT_ALLOWED, {"issuer": issuer[:255]})]
    if not 0 < len(audience) <= 255:
        problems["audience"] = [Reason(ExchangeCode.AUDIENCE_NEEDED)]
    if not MIN_LIFETIME_S <= lifetime_s <= MAX_LIFETIME_S:
        span = {"least": MIN_LIFETIME_S, "most": MAX_LIFETIME_S}
        problems["lifetime_s"] = [Reason(ExchangeCode.LIFETIME_OUT_OF_RANGE, span)]
    if not lifetime_s <= max_lifetime_s <= MAX_RENEWED_S:
        span = {"least": lifetime_s, "most": MAX_RENEWED_S}
        problems["max_lifetime_s"] = [Reason(ExchangeCode.LIFETIME_OUT_OF_RANGE, span)]
    if (wrong := problem_of(conditions)) is not None:
        problem, condition = wrong
        params = {"claim": condition.claim[:64], "value": condition.value[:255]} if condition else {}
        if problem is Problem.TOO_MANY:
            params = {"most": str(MAX_CONDITIONS)}
        problems["conditions"] = [Reason(_CODES[problem], params)]
    if problems:
        raise InvalidInput(next(iter(problems.values()))[0], errors=problems)
    valid_scopes = tokens.validate_scopes(scopes)
    tokens.check_no_wider(made_with, valid_scopes, made_with.expires_at if made_with is not None else None)
    rule = TrustRule.objects.create(
        account=account,
        name=name,
        issuer=issuer,
        audience=audience,
        conditions=[condition.as_json() for condition in conditions],
        scopes=valid_scopes,
        lifetime_s=lifetime_s,
        max_lifetime_s=max_lifetime_s,
        created_by=None if isinstance(actor, SystemActor) else actor,
    )
    _record(actor, rule, AuditKind.TRUST_RULE_CREATED, "created")
    return rule


@transaction.atomic
def delete(*, actor: User | SystemActor, rule: TrustRule) -> None:
    """Delete a rule. Tokens that it issued cannot be renewed, and expire within their lifetime."""
    _require_manage(actor, rule.account)
    # Wait for a concurrent exchange under this rule.
    User.objects.select_for_update(no_key=True).get(pk=rule.account_id)
    _record(actor, rule, AuditKind.TRUST_RULE_DELETED, "deleted")
    rule.delete()


def rules_of(actor: User, account: User) -> QuerySet[TrustRule]:
    """Return the account's rules, oldest first. Raises `NotAllowed` if the actor may not see credentials."""
    assert account.owning_team is not None
    policies.require_see_credentials(actor, account.owning_team)
    return (
        TrustRule.objects.filter(account=account)
        .select_related("created_by", "account__owning_team")
        .order_by("created_at", "pk")
    )


def rule_by_id(actor: User, account: User, rule_id: UUID) -> TrustRule:
    """Return the rule. Raises `NotFound` and `NotAllowed`."""
    rule = rules_of(actor, account).filter(pk=rule_id).first()
    if rule is None:
        raise NotFound(Reason(ExchangeCode.NO_SUCH_RULE))
    return rule


@dataclass(frozen=True, slots=True)
class Preview:
    """Evaluation of a rule for claims of an otherwise valid token."""

    rule: TrustRule
    issuer: bool
    audience: bool
    outcomes: list[ConditionResult]

    @property
    def matches(self) -> bool:
        return self.issuer and self.audience and all(outcome.holds for outcome in self.outcomes)

    @property
    def conditions(self) -> list[dict[str, Any]]:
        return [
            {**outcome.condition.as_json(), "seen": outcome.seen, "holds": outcome.holds}
            for outcome in self.outcomes
        ]


def preview(rules: QuerySet[TrustRule], claims: Mapping[str, Any]) -> list[Preview]:
    """Evaluate each rule. Signature and times are not checked."""
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    return [
        Preview(
            rule,
            issuer=claims.get("iss") == rule.issuer,
            audience=rule.audience in audiences,
            outcomes=check(from_json(rule.conditions), claims),
        )
        for rule in rules
    ]


def _require_manage(actor: User | SystemActor, account: User) -> None:
    assert account.owning_team is not None
    require_manage_team(actor, account.owning_team)


def _record(actor: User | SystemActor, rule: TrustRule, kind: AuditKind, action: str) -> None:
    events.record(
        actor=actor,
        kind=kind,
        team=rule.account.owning_team,
        message=f"{action} the trust rule “{rule.name}” of {rule.account.username}",
        targets=sessions.audit_targets(rule.account),
        data={
            "rule": str(rule.pk),
            "username": rule.account.username,
            "issuer": rule.issuer,
            "audience": rule.audience,
            "conditions": rule.conditions,
            "scopes": rule.scopes,
            "lifetime_s": rule.lifetime_s,
            "max_lifetime_s": rule.max_lifetime_s,
        },
    )
