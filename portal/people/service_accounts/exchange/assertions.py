"""Verification of tokens from other issuers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import jwt
from django.utils import timezone

from portal.common.reasons.reason import Reason
from portal.people.service_accounts.codes import ExchangeCode
from portal.people.service_accounts.exchange import issuers

MAX_TOKEN = 16 * 1024
LEEWAY_S = 30
MAX_LIFE_S = 24 * 3600
REQUIRED = ["iss", "aud", "exp", "iat", "sub", "jti"]


class ExchangeRefused(Exception):
    """The exchange is refused. `reason` and details in `about` are for the audit log.

    `retry_after_s` is above 0 after too many refusals.
    """

    def __init__(self, reason: Reason, about: dict[str, Any] | None = None) -> None:
        super().__init__(reason.code)
        self.reason = reason
        self.about = about or {}
        self.retry_after_s = 0


@dataclass(frozen=True, slots=True)
class Assertion:
    """Contents of a verified token."""

    issuer: str
    audiences: tuple[str, ...]
    subject: str
    claims: dict[str, Any]
    expires_at: datetime

    @property
    def digest(self) -> str:
        """Unique digest of the token: SHA-256 of issuer and `jti`."""
        return hashlib.sha256(f"{self.issuer}\n{self.claims['jti']}".encode()).hexdigest()


def verify(token: str) -> Assertion:
    """Verify a token and return its assertion. Raises `ExchangeRefused`.

    If the signature was not verified, `about` is marked as `unverified`.
    """
    if len(token) > MAX_TOKEN:
        raise ExchangeRefused(Reason(ExchangeCode.TOKEN_TOO_LONG, {"most": MAX_TOKEN}))
    try:
        header = jwt.get_unverified_header(token)
        unverified = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise ExchangeRefused(Reason(ExchangeCode.NOT_A_JWT)) from error
    about = {
        "unverified": True,
        "issuer": str(unverified.get("iss"))[:255],
        "subject": str(unverified.get("sub"))[:255],
    }
    issuer = unverified.get("iss")
    if not isinstance(issuer, str) or issuer not in issuers.allowed():
        raise ExchangeRefused(Reason(ExchangeCode.ISSUER_NOT_ALLOWED, {"issuer": about["issuer"]}), about)
    algorithm, key_id = header.get("alg"), header.get("kid")
    if algorithm not in issuers.ALGORITHMS or "crit" in header:
        raise ExchangeRefused(
            Reason(ExchangeCode.ALGORITHM_NOT_ALLOWED, {"algorithm": str(algorithm)[:40]}), about
        )
    if not isinstance(key_id, str):
        raise ExchangeRefused(Reason(ExchangeCode.UNKNOWN_KEY, {"issuer": issuer}), about)
    try:
        key = issuers.key_for(issuer, key_id, algorithm)
    except issuers.UnknownKey as error:
        raise ExchangeRefused(Reason(ExchangeCode.UNKNOWN_KEY, {"issuer": issuer}), about) from error
    except issuers.IssuerUnreachable as error:
        raise ExchangeRefused(Reason(ExchangeCode.ISSUER_UNREACHABLE, {"issuer": issuer}), about) from error
    claims = _decode(token, key, algorithm, issuer, about)
    del about["unverified"]
    expires_at = datetime.fromtimestamp(int(claims["exp"]), UTC)
    if (expires_at - timezone.now()).total_seconds() > MAX_LIFE_S:
        raise ExchangeRefused(Reason(ExchangeCode.LIVES_TOO_LONG, {"hours": MAX_LIFE_S // 3600}), about)
    audience = claims["aud"]
    audiences = (audience,) if isinstance(audience, str) else tuple(audience)
    return Assertion(issuer, audiences, claims["sub"], claims, expires_at)


def _decode(token: str, key: Any, algorithm: str, issuer: str, about: dict[str, Any]) -> dict[str, Any]:
    try:
        # The audience is checked against each rule.
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            issuer=issuer,
            leeway=LEEWAY_S,
            options={"require": REQUIRED, "verify_aud": False},
        )
    except jwt.ExpiredSignatureError as error:
        raise ExchangeRefused(Reason(ExchangeCode.EXPIRED), about) from error
    except jwt.ImmatureSignatureError as error:
        raise ExchangeRefused(Reason(ExchangeCode.NOT_YET_VALID), about) from error
    except jwt.MissingRequiredClaimError as error:
        raise ExchangeRefused(Reason(ExchangeCode.CLAIM_MISSING, {"claim": error.claim}), about) from error
    except jwt.InvalidSignatureError as error:
        raise ExchangeRefused(Reason(ExchangeCode.BAD_SIGNATURE), about) from error
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
        raise ExchangeRefused(Reason(ExchangeCode.NOT_VALID), about) from error
    audience = claims["aud"]
    audiences = [audience] if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or not all(isinstance(item, str) for item in audiences):
        raise ExchangeRefused(Reason(ExchangeCode.NOT_VALID), about)
    if not isinstance(claims["jti"], str) or not claims["jti"] or not isinstance(claims["sub"], str):
        raise ExchangeRefused(Reason(ExchangeCode.NOT_VALID), about)
    return claims
