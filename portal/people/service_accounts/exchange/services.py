"""Exchanges a verified token of another issuer for a short-lived one of a service account (RFC 8693)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.common import request_context
from portal.common.actors import SystemActor
from portal.common.constraints import violates
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.people.accounts import sessions, tokens
from portal.people.accounts.models import ApiToken, User
from portal.people.service_accounts.codes import ExchangeCode
from portal.people.service_accounts.exchange import conditions, limits
from portal.people.service_accounts.exchange.assertions import Assertion, Refused, verify
from portal.people.service_accounts.models import Exchange, TrustRule

SOMEBODY = SystemActor("Somebody")
MAX_RULES_NAMED = 10
AUDITED_CLAIMS = (
    *("sub", "repository", "repository_id", "repository_owner_id", "ref", "environment", "workflow"),
    *("project_path", "project_id", "pipeline_source", "run_id", "pipeline_id", "job_id"),
)
"""Claims stored in the audit entry, to identify the pipeline."""
KEEP_ENDED = timedelta(hours=1)
PURGED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A short-lived token. `secret` is returned once and never stored."""

    token: ApiToken
    secret: str = field(repr=False)
    lifetime_s: int


def exchange(*, subject_token: str, account: str = "", scopes: Sequence[str] = ()) -> Exchanged:
    """Issue a token of the service account whose rule matches `subject_token`.

    `account` selects one of several. `scopes` requests a subset of the rule's scopes. Success and refusal are
    recorded in the audit log. Raises `Refused`.
    """
    try:
        # Outside of a transaction, because it may fetch keys from the issuer.
        assertion = verify(subject_token)
        return _exchange(assertion, account, scopes)
    except Refused as refused:
        _record_refusal(refused)
        raise


@transaction.atomic
def _exchange(assertion: Assertion, account: str, scopes: Sequence[str]) -> Exchanged:
    about = _about(assertion)
    rule = _rule_for(assertion, account, scopes, about)
    about["rule"] = str(rule.pk)
    # A concurrent deactivation waits and then revokes the token, or has already happened.
    active = User.objects.select_for_update(no_key=True).filter(pk=rule.account_id, is_active=True)
    if not active.values_list("pk", flat=True).first():
        named = {"username": rule.account.username}
        raise Refused(Reason(ExchangeCode.ACCOUNT_INACTIVE, named), {**about, "account": rule.account})
    # Rules are deleted under the same lock.
    if not TrustRule.objects.filter(pk=rule.pk).exists():
        raise Refused(Reason(ExchangeCode.NO_RULE_MATCHES, {"rules": 0}), about)
    spent = _spend(assertion, rule, about)
    now = timezone.now()
    made = tokens.mint(
        user=rule.account,
        name=f"{rule.name}: {assertion.subject}",
        scopes=sorted(scopes) or rule.scopes,
        expires_at=now + timedelta(seconds=rule.lifetime_s),
        created_by=None,
    )
    Exchange.objects.filter(pk=spent.pk).update(token=made.token)
    TrustRule.objects.filter(pk=rule.pk).update(last_used_at=now)
    events.record(
        actor=rule.account,
        kind=AuditKind.TOKEN_EXCHANGED,
        team=rule.account.owning_team,
        message=f"got a token by the rule “{rule.name}” for {assertion.subject}"[:500],
        targets=sessions.about(rule.account),
        data={**about, "token": str(made.token.pk), "scopes": made.token.scopes},
    )
    return Exchanged(made.token, made.secret, rule.lifetime_s)


def _rule_for(assertion: Assertion, account: str, scopes: Sequence[str], about: dict[str, Any]) -> TrustRule:
    """Return the oldest matching rule that allows the scopes.

    Raises `Refused` with the mismatches of each rule.
    """
    rules = TrustRule.objects.filter(issuer=assertion.issuer).select_related("account__owning_team")
    if account:
        rules = rules.filter(account__username=account)
    met, failed = [], []
    for rule in rules.order_by("created_at", "pk"):
        lacking = failing(rule, assertion.issuer, assertion.audiences, assertion.claims)
        if lacking:
            failed.append({"rule": str(rule.pk), "account": rule.account.username, "failed": lacking})
        else:
            met.append(rule)
    about["rules"] = failed[:MAX_RULES_NAMED]
    if not met:
        raise Refused(Reason(ExchangeCode.NO_RULE_MATCHES, {"rules": len(failed)}), about)
    names = sorted({rule.account.username for rule in met})
    if len(names) > 1:
        raise Refused(Reason(ExchangeCode.SEVERAL_ACCOUNTS, {"accounts": names}), about)
    for rule in met:
        if Scope.ALL in rule.scopes or set(scopes) <= set(rule.scopes):
            return rule
    raise Refused(Reason(ExchangeCode.SCOPE_NOT_GRANTED, {"scopes": sorted(scopes)}), about)


def failing(rule: TrustRule, issuer: str, audiences: Sequence[str], claims: dict[str, Any]) -> list[str]:
    """Return the names of claims that do not meet the rule. Empty if the token matches."""
    lacking = []
    if rule.issuer != issuer:
        lacking.append("iss")
    if rule.audience not in audiences:
        lacking.append("aud")
    checked = conditions.check(conditions.from_json(rule.conditions), claims)
    return [*lacking, *(outcome.condition.claim for outcome in checked if not outcome.holds)]


def _spend(assertion: Assertion, rule: TrustRule, about: dict[str, Any]) -> Exchange:
    """Record the use of the token. Raises `Refused` if it has been used, also concurrently."""
    try:
        with transaction.atomic():
            return Exchange.objects.create(
                digest=assertion.digest, rule=rule, expires_at=assertion.expires_at + timedelta(minutes=5)
            )
    except IntegrityError as error:
        if not violates(error, Exchange, "digest"):
            raise
        raise Refused(Reason(ExchangeCode.REPLAYED), {**about, "account": rule.account}) from error


def _about(assertion: Assertion) -> dict[str, Any]:
    claims = {name: conditions.text_of(assertion.claims.get(name)) for name in AUDITED_CLAIMS}
    return {
        "issuer": assertion.issuer,
        "subject": assertion.subject[:255],
        "claims": {name: text[:255] for name, text in claims.items() if text is not None},
    }


def _record_refusal(refused: Refused) -> None:
    """Count a refusal and record it. Above the limit, set `retry_after_s` instead."""
    about = refused.about
    if "issuer" in about and "unverified" not in about:
        key = limits.of_identity(about.get("rule", ""), about["issuer"], about["subject"])
    else:
        key = limits.of_address(request_context.current().address)
    refusals = limits.count(key)
    refused.retry_after_s = refusals.retry_after_s
    if refused.retry_after_s:
        return
    account: User | None = about.pop("account", None)
    events.record(
        actor=SOMEBODY,
        kind=AuditKind.TOKEN_EXCHANGE_REFUSED,
        team=account.owning_team if account is not None else None,
        message="was refused a token exchange"
        + (", and further ones are not recorded for a while" if refusals.last_recorded else ""),
        cause=refused.reason.as_json(),
        targets=sessions.about(account) if account is not None else (),
        data=about,
    )


def purge() -> int:
    """Delete expired exchanges, and tokens expired for `KEEP_ENDED`. Returns the number of tokens."""
    now = timezone.now()
    over = ApiToken.objects.filter(exchange__isnull=False, expires_at__lt=now - KEEP_ENDED)
    ids = list(over.order_by("expires_at").values_list("pk", flat=True)[:PURGED_AT_ONCE])
    ApiToken.objects.filter(pk__in=ids).delete()
    Exchange.objects.filter(expires_at__lt=now, token=None).delete()
    return len(ids)
