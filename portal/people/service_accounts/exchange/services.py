"""Exchanges a verified token of another issuer for one of a service account (RFC 8693), and renews it.

The issued job token is short-lived. While its job runs, the job renews it in place, so that the secret stays
the same and a lost response does no harm (docs/adr/0122-job-tokens.md).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.common import request_context
from portal.common.actors import SystemActor
from portal.common.constraints import violates
from portal.common.errors import StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.people.accounts import sessions, tokens
from portal.people.accounts.models import ApiToken, User
from portal.people.service_accounts.codes import ExchangeCode
from portal.people.service_accounts.exchange import conditions, issuers, limits
from portal.people.service_accounts.exchange.assertions import Assertion, ExchangeRefused, verify
from portal.people.service_accounts.models import Exchange, TrustRule

UNKNOWN_ACTOR = SystemActor("Somebody")
MAX_RULES_NAMED = 10
AUDITED_CLAIMS = (
    *("sub", "repository", "repository_id", "repository_owner_id", "ref", "environment", "workflow"),
    *("project_path", "project_id", "pipeline_source", "run_id", "pipeline_id", "job_id"),
)
"""Claims that the audit entry stores, to identify the pipeline."""
KEEP_ENDED = timedelta(hours=1)
PURGED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class IssuedJobToken:
    """A job token. `secret` is returned once and never stored."""

    token: ApiToken
    secret: str = field(repr=False)
    lifetime_s: int


def exchange(
    *, subject_token: str, account: str = "", scopes: Sequence[str] = (), idempotency_key: str = ""
) -> IssuedJobToken:
    """Issue a token of the service account whose rule matches `subject_token`.

    `account` selects one of several. `scopes` requests a subset of the rule's scopes. A repeated request with
    the same secret `idempotency_key` gets a new secret for the same token, in case the response was lost.
    Success and refusal are recorded in the audit log. Raises `ExchangeRefused`.
    """
    try:
        # Outside of a transaction, because it may fetch keys from the issuer.
        assertion = verify(subject_token)
        return _exchange(assertion, account, scopes, idempotency_key)
    except ExchangeRefused as refused:
        _record_refusal(refused)
        raise


@transaction.atomic
def _exchange(
    assertion: Assertion, account: str, scopes: Sequence[str], idempotency_key: str
) -> IssuedJobToken:
    about = _assertion_data(assertion)
    rule = _rule_for(assertion, account, scopes, about)
    about["rule"] = str(rule.pk)
    # A concurrent deactivation waits and then revokes the token, or has already happened.
    active = User.objects.select_for_update(no_key=True).filter(pk=rule.account_id, is_active=True)
    if not active.values_list("pk", flat=True).first():
        params = {"username": rule.account.username}
        raise ExchangeRefused(
            Reason(ExchangeCode.ACCOUNT_INACTIVE, params), {**about, "account": rule.account}
        )
    # Rules are deleted under the same lock.
    if not TrustRule.objects.filter(pk=rule.pk).exists():
        raise ExchangeRefused(Reason(ExchangeCode.NO_RULE_MATCHES, {"rules": 0}), about)
    token_scopes = sorted(scopes) or rule.scopes
    key_digest = hashlib.sha256(idempotency_key.encode()).hexdigest() if idempotency_key else ""
    now = timezone.now()
    spent = _record_use(assertion, rule, key_digest)
    if spent is None:
        issued = _reissue(assertion, rule, key_digest, token_scopes, about)
    else:
        issued = tokens.mint(
            user=rule.account,
            name=f"{rule.name}: {assertion.subject}",
            scopes=token_scopes,
            expires_at=now + timedelta(seconds=rule.lifetime_s),
            renewable_until=now + timedelta(seconds=rule.max_lifetime_s),
            created_by=None,
        )
        Exchange.objects.filter(pk=spent.pk).update(token=issued.token)
    TrustRule.objects.filter(pk=rule.pk).update(last_used_at=now)
    events.record(
        actor=rule.account,
        kind=AuditKind.TOKEN_EXCHANGED,
        team=rule.account.owning_team,
        message=f"received a token {'again ' if spent is None else ''}through the rule “{rule.name}” for "
        f"{assertion.subject}"[:500],
        targets=sessions.audit_targets(rule.account),
        data={**about, "token": str(issued.token.pk), "scopes": issued.token.scopes},
    )
    assert issued.token.expires_at is not None
    return IssuedJobToken(issued.token, issued.secret, round((issued.token.expires_at - now).total_seconds()))


def _reissue(
    assertion: Assertion, rule: TrustRule, key_digest: str, scopes: list[str], about: dict[str, Any]
) -> tokens.NewToken:
    """Give the token of an earlier exchange a new secret. Raises `ExchangeRefused` if the request differs.

    The key proves that this is the same job: another holder of the subject token does not have it.
    """
    earlier = Exchange.objects.select_related("token__owner").get(digest=assertion.digest)
    token, now = earlier.token, timezone.now()
    same = key_digest and hmac.compare_digest(earlier.key_digest, key_digest) and earlier.rule_id == rule.pk
    if (
        not same
        or token is None
        or token.revoked_at is not None
        or token.renewable_until is None
        or token.renewable_until <= now
        or token.scopes != scopes
    ):
        raise ExchangeRefused(Reason(ExchangeCode.REPLAYED), {**about, "account": rule.account})
    return tokens.replace_secret(token, expires_at=_renewed(token, rule, now))


def renew(*, token: ApiToken) -> ApiToken:
    """Extend a valid job token by the lifetime of its rule, within the rule's total lifetime. Idempotent.

    Raises `StateConflict` if it is no job token, or its rule was deleted.
    """
    rule = TrustRule.objects.filter(exchanges__token=token).first()
    if rule is None:
        code = ExchangeCode.RULE_DELETED if token.is_job_token else ExchangeCode.NOT_RENEWABLE
        raise StateConflict(Reason(code))
    now = timezone.now()
    token.expires_at = _renewed(token, rule, now)
    # Only if still valid: the token may have been revoked meanwhile.
    ApiToken.objects.valid_at(now).filter(pk=token.pk).update(expires_at=token.expires_at)
    return token


def _renewed(token: ApiToken, rule: TrustRule, now: datetime) -> datetime:
    assert token.renewable_until is not None
    return min(now + timedelta(seconds=rule.lifetime_s), token.renewable_until)


def _rule_for(assertion: Assertion, account: str, scopes: Sequence[str], about: dict[str, Any]) -> TrustRule:
    """Return the oldest matching rule that allows the scopes.

    Raises `ExchangeRefused` with the mismatches of each rule.
    """
    rules = TrustRule.objects.filter(issuer=assertion.issuer).select_related("account__owning_team")
    if account:
        rules = rules.filter(account__username=account)
    met, failed = [], []
    for rule in rules.order_by("created_at", "pk"):
        lacking = unmet_claims(rule, assertion.issuer, assertion.audiences, assertion.claims)
        if lacking:
            failed.append({"rule": str(rule.pk), "account": rule.account.username, "failed": lacking})
        else:
            met.append(rule)
    about["rules"] = failed[:MAX_RULES_NAMED]
    if not met:
        raise ExchangeRefused(Reason(ExchangeCode.NO_RULE_MATCHES, {"rules": len(failed)}), about)
    names = sorted({rule.account.username for rule in met})
    if len(names) > 1:
        raise ExchangeRefused(Reason(ExchangeCode.SEVERAL_ACCOUNTS, {"accounts": names}), about)
    for rule in met:
        if Scope.ALL in rule.scopes or set(scopes) <= set(rule.scopes):
            return rule
    raise ExchangeRefused(Reason(ExchangeCode.SCOPE_NOT_GRANTED, {"scopes": sorted(scopes)}), about)


def unmet_claims(rule: TrustRule, issuer: str, audiences: Sequence[str], claims: dict[str, Any]) -> list[str]:
    """Return the names of claims that do not meet the rule. Empty if the token matches."""
    lacking = []
    if rule.issuer != issuer:
        lacking.append("iss")
    if rule.audience not in audiences:
        lacking.append("aud")
    checked = conditions.check(conditions.from_json(rule.conditions), claims)
    return [*lacking, *(outcome.condition.claim for outcome in checked if not outcome.holds)]


def _record_use(assertion: Assertion, rule: TrustRule, key_digest: str) -> Exchange | None:
    """Record the use of the token. Returns None if it has been used, also concurrently."""
    try:
        with transaction.atomic():
            return Exchange.objects.create(
                digest=assertion.digest,
                key_digest=key_digest,
                rule=rule,
                expires_at=assertion.expires_at + timedelta(minutes=5),
            )
    except IntegrityError as error:
        if not violates(error, Exchange, "digest"):
            raise
        return None


def _assertion_data(assertion: Assertion) -> dict[str, Any]:
    claims = {name: conditions.text_of(assertion.claims.get(name)) for name in AUDITED_CLAIMS}
    return {
        "issuer": assertion.issuer,
        "subject": assertion.subject[:255],
        "claims": {name: text[:255] for name, text in claims.items() if text is not None},
    }


def _record_refusal(refused: ExchangeRefused) -> None:
    """Count a refusal and record it. Above the limit, set `retry_after_s` instead.

    An issuer that does not answer is not the fault of the client, which can soon try again.
    """
    about = refused.about
    outage = refused.reason.code == ExchangeCode.ISSUER_UNREACHABLE
    if outage:
        key = limits.outage_key(about["issuer"])
    elif "issuer" in about and "unverified" not in about:
        key = limits.identity_key(about.get("rule", ""), about["issuer"], about["subject"])
    else:
        key = limits.address_key(request_context.current().address)
    refusals = limits.count(key)
    refused.retry_after_s = round(issuers.RETRY_S) if outage else refusals.retry_after_s
    if refusals.retry_after_s:
        return
    account: User | None = about.pop("account", None)
    events.record(
        actor=UNKNOWN_ACTOR,
        kind=AuditKind.TOKEN_EXCHANGE_REFUSED,
        team=account.owning_team if account is not None else None,
        message="was refused a token exchange"
        + ("; further rejections are not recorded for a while" if refusals.last_recorded else ""),
        cause=refused.reason.as_json(),
        targets=sessions.audit_targets(account) if account is not None else (),
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
