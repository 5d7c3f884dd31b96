"""Error codes for service accounts and token exchanges."""

# ruff: noqa: S105  (codes about tokens are not secrets)
from __future__ import annotations

from enum import StrEnum


class ExchangeCode(StrEnum):
    """Errors of token exchanges and of trust rules."""

    ACCOUNT_INACTIVE = "account_inactive"
    ALGORITHM_NOT_ALLOWED = "algorithm_not_allowed"
    AUDIENCE_NEEDED = "audience_needed"
    BAD_SIGNATURE = "bad_signature"
    CLAIMS_NOT_UNDERSTOOD = "claims_not_understood"
    CLAIM_MISSING = "assertion_claim_missing"
    CONDITION_CHECKED_ANYWAY = "condition_checked_anyway"
    CONDITION_CLAIM = "condition_claim"
    CONDITION_LINE = "condition_line"
    CONDITION_MATCH = "condition_match"
    CONDITION_VALUE = "condition_value"
    EXPIRED = "assertion_expired"
    ISSUER_NOT_ALLOWED = "issuer_not_allowed"
    ISSUER_UNREACHABLE = "issuer_unreachable"
    LIFETIME_OUT_OF_RANGE = "lifetime_out_of_range"
    LIVES_TOO_LONG = "lives_too_long"
    NOT_A_JWT = "not_a_jwt"
    NOT_VALID = "assertion_not_valid"
    NOT_YET_VALID = "not_yet_valid"
    NO_IDENTITY = "no_identity"
    NO_RULE_MATCHES = "no_rule_matches"
    NOT_RENEWABLE = "token_not_renewable"
    NO_SUCH_RULE = "no_such_trust_rule"
    REPLAYED = "replayed"
    RULE_DELETED = "trust_rule_deleted"
    RULE_NAMELESS = "rule_nameless"
    SCOPE_NOT_GRANTED = "scope_not_granted"
    SEVERAL_ACCOUNTS = "several_accounts"
    TOKEN_TOO_LONG = "token_too_long"
    TOO_MANY_CONDITIONS = "too_many_conditions"
    TOO_MANY_RULES = "too_many_rules"
    UNKNOWN_KEY = "unknown_key"


class ServiceAccountCode(StrEnum):
    """Errors about service accounts."""

    NO_SUCH_SERVICE_ACCOUNT = "no_such_service_account"
