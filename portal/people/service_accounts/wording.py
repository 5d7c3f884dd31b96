"""Texts of refusals of token exchanges and trust rules."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text, listed
from portal.people.service_accounts.codes import ExchangeCode, ServiceAccountCode

TEXTS: dict[StrEnum, Text] = {
    ExchangeCode.ACCOUNT_INACTIVE: Text(_("The service account is deactivated.")),
    ExchangeCode.ALGORITHM_NOT_ALLOWED: Text(
        _("Tokens signed by %(algorithm)s are not taken: only those signed with a private key.")
    ),
    ExchangeCode.AUDIENCE_NEEDED: Text(
        _("Say for which audience the tokens are made."), _("This portal's address is a good one.")
    ),
    ExchangeCode.BAD_SIGNATURE: Text(_("The signature is not the issuer's.")),
    ExchangeCode.CLAIM_MISSING: Text(_("The token lacks the claim %(claim)s.")),
    ExchangeCode.CLAIMS_NOT_UNDERSTOOD: Text(
        _("This is neither a JSON object of claims nor a token."), _("Paste the claims, as in {“sub”: “…”}.")
    ),
    ExchangeCode.CONDITION_CHECKED_ANYWAY: Text(
        _("%(claim)s is checked by itself."), _("Leave this condition out.")
    ),
    ExchangeCode.CONDITION_CLAIM: Text(_("“%(claim)s” is no name of a claim.")),
    ExchangeCode.CONDITION_LINE: Text(
        _("Line %(line)s is no condition."), _("Write “claim = value”, or “claim ~ pattern” with * in it.")
    ),
    ExchangeCode.CONDITION_MATCH: Text(_("A condition on %(claim)s matches exact or glob.")),
    ExchangeCode.CONDITION_VALUE: Text(_("The value for %(claim)s is empty, too long, or not printable.")),
    ExchangeCode.EXPIRED: Text(_("The token has expired."), _("Have the job ask for a new one.")),
    ExchangeCode.ISSUER_NOT_ALLOWED: Text(
        _("Tokens of %(issuer)s are not taken here."),
        _("The operator of this installation names issuers in BERTH_TOKEN_EXCHANGE_ISSUERS."),
    ),
    ExchangeCode.ISSUER_UNREACHABLE: Text(
        _("The keys of %(issuer)s cannot be read at present."), _("Try again in a minute.")
    ),
    ExchangeCode.LIFETIME_OUT_OF_RANGE: Text(_("A token can live from %(least)s to %(most)s seconds.")),
    ExchangeCode.LIVES_TOO_LONG: Text(_("The token lives longer than %(hours)s hours.")),
    ExchangeCode.NO_IDENTITY: Text(
        _("Nothing says whose pipeline it is: everybody could use the rule."),
        _("Add a condition such as “repository = owner/name” without * before the first “/”."),
    ),
    ExchangeCode.NO_RULE_MATCHES: Text(
        _("No rule lets this token in."), _("The audit log says which condition of which rule failed.")
    ),
    ExchangeCode.NO_SUCH_RULE: Text(_("There is no such rule."), _("Look at the rules of the account.")),
    ExchangeCode.NOT_A_JWT: Text(_("This is no JWT.")),
    ExchangeCode.NOT_VALID: Text(_("The token is not valid.")),
    ExchangeCode.NOT_YET_VALID: Text(_("The token is not valid yet."), _("Look at the clocks.")),
    ExchangeCode.REPLAYED: Text(
        _("This token has been exchanged before."), _("Exchange it once in a job, and keep what you get.")
    ),
    ExchangeCode.RULE_NAMELESS: Text(_("A rule needs a name.")),
    ExchangeCode.SCOPE_NOT_GRANTED: Text(
        _("The rule does not give all of these scopes: %(scopes)s."), prepare=listed("scopes")
    ),
    ExchangeCode.SEVERAL_ACCOUNTS: Text(
        _("Rules of several service accounts let this token in."), _("Name one in service_account.")
    ),
    ExchangeCode.TOKEN_TOO_LONG: Text(_("The token is longer than %(most)s characters.")),
    ExchangeCode.TOO_MANY_CONDITIONS: Text(_("A rule has at most %(most)s conditions.")),
    ExchangeCode.TOO_MANY_RULES: Text(
        _("A service account has at most %(most)s rules."), _("Delete one that nothing uses.")
    ),
    ExchangeCode.UNKNOWN_KEY: Text(_("The token is not signed with a key that %(issuer)s has now.")),
    ServiceAccountCode.NO_SUCH_SERVICE_ACCOUNT: Text(
        _("%(team)s has no service account “%(username)s”."), _("Look at the list on the team's page.")
    ),
}
