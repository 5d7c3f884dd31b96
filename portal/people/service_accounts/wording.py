"""Texts of refusals of token exchanges and trust rules."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text, joined_lists
from portal.people.service_accounts.codes import ExchangeCode, ServiceAccountCode

TEXTS: dict[StrEnum, Text] = {
    ExchangeCode.ACCOUNT_INACTIVE: Text(_("The service account is deactivated.")),
    ExchangeCode.ALGORITHM_NOT_ALLOWED: Text(
        _("Tokens signed with %(algorithm)s are not accepted. Use an asymmetric algorithm.")
    ),
    ExchangeCode.AUDIENCE_NEEDED: Text(
        _("The rule has no audience."), _("Enter the tokens' audience, for example this portal's address.")
    ),
    ExchangeCode.BAD_SIGNATURE: Text(_("The token's signature is not valid for this issuer.")),
    ExchangeCode.CLAIM_MISSING: Text(_("The token has no claim %(claim)s.")),
    ExchangeCode.CLAIMS_NOT_UNDERSTOOD: Text(
        _("The input is neither a JSON object of claims nor a token."),
        _("Paste the claims, as in {“sub”: “…”}."),
    ),
    ExchangeCode.CONDITION_CHECKED_ANYWAY: Text(
        _("The portal always checks %(claim)s."), _("Remove this condition.")
    ),
    ExchangeCode.CONDITION_CLAIM: Text(_("“%(claim)s” is not a valid claim name.")),
    ExchangeCode.CONDITION_LINE: Text(
        _("Line %(line)s is not a condition."), _("Write “claim = value”, or “claim ~ pattern” with * in it.")
    ),
    ExchangeCode.CONDITION_MATCH: Text(_("The match type for %(claim)s must be “exact” or “glob”.")),
    ExchangeCode.CONDITION_VALUE: Text(_("The value for %(claim)s is empty, too long, or not printable.")),
    ExchangeCode.EXPIRED: Text(_("The token has expired."), _("Request a new token in the job.")),
    ExchangeCode.ISSUER_NOT_ALLOWED: Text(
        _("Tokens from %(issuer)s are not accepted."),
        _("Ask an operator to add the issuer to BERTH_TOKEN_EXCHANGE_ISSUERS."),
    ),
    ExchangeCode.ISSUER_UNREACHABLE: Text(
        _("The keys of %(issuer)s cannot be fetched."), _("Try again in a minute.")
    ),
    ExchangeCode.LIFETIME_OUT_OF_RANGE: Text(
        _("Choose a token lifetime from %(least)s to %(most)s seconds.")
    ),
    ExchangeCode.LIVES_TOO_LONG: Text(_("The token's lifetime exceeds %(hours)s hours.")),
    ExchangeCode.NO_IDENTITY: Text(
        _("The rule does not identify a pipeline, so anyone could use it."),
        _("Add a condition such as “repository = owner/name” without * before the first “/”."),
    ),
    ExchangeCode.NO_RULE_MATCHES: Text(
        _("No rule accepts this token."), _("Check the audit log for the rule and condition that failed.")
    ),
    ExchangeCode.NO_SUCH_RULE: Text(_("Rule not found."), _("Check the rules of the service account.")),
    ExchangeCode.NOT_A_JWT: Text(_("The token is not a JWT.")),
    ExchangeCode.NOT_VALID: Text(_("The token is not valid.")),
    ExchangeCode.NOT_YET_VALID: Text(
        _("The token is not valid yet."), _("Check the clocks of the issuer and the portal.")
    ),
    ExchangeCode.NOT_RENEWABLE: Text(
        _("Only the token of a CI job can be renewed."), _("Rotate this token instead.")
    ),
    ExchangeCode.REPLAYED: Text(
        _("This token was already exchanged."),
        _("Reuse the result, or repeat the request with the Idempotency-Key of the first one."),
    ),
    ExchangeCode.RULE_DELETED: Text(
        _("The trust rule of this token was deleted."), _("Ask an owner of the team for a new rule.")
    ),
    ExchangeCode.RULE_NAMELESS: Text(_("Enter a name for the rule.")),
    ExchangeCode.SCOPE_NOT_GRANTED: Text(
        _("The rule does not grant all of these scopes: %(scopes)s."), prepare=joined_lists("scopes")
    ),
    ExchangeCode.SEVERAL_ACCOUNTS: Text(
        _("Rules of several service accounts accept this token."), _("Choose one with service_account.")
    ),
    ExchangeCode.TOKEN_TOO_LONG: Text(_("The token is longer than %(most)s characters.")),
    ExchangeCode.TOO_MANY_CONDITIONS: Text(_("A rule can have up to %(most)s conditions.")),
    ExchangeCode.TOO_MANY_RULES: Text(
        _("Limit of %(most)s rules per service account reached."), _("Delete an unused rule.")
    ),
    ExchangeCode.UNKNOWN_KEY: Text(_("The token is not signed with a current key of %(issuer)s.")),
    ServiceAccountCode.NO_SUCH_SERVICE_ACCOUNT: Text(
        _("%(team)s has no service account “%(username)s”."), _("Check the list on the team's page.")
    ),
}
