"""Directory test for administrators: a user's attributes, and what their sign-in would do."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portal.common.errors import InvalidInput, StateConflict, Unavailable
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_administrator
from portal.people.identity import backends, services
from portal.people.identity.codes import IdentityCode
from portal.people.identity.config import Ldap, Provider
from portal.people.identity.decisions import SignInDecision, decide

MAX_SHOWN = 1000
"""Maximum number of characters per value, and of values per attribute."""
_SECRET = re.compile(r"passw|passphrase|pwd$|pwdhistory|krbprincipalkey|secret|privatekey", re.IGNORECASE)
"""Matches attributes that contain passwords or keys, in clear or hashed."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LookUpResult:
    """Attributes of a user without secrets, and what a sign-in would do."""

    claims: dict[str, Any]
    decision: SignInDecision


def look_up(*, actor: User, provider: Provider, username: str) -> LookUpResult:
    """Look up a user through the directory's search account. Does not sign in, and changes nothing.

    The lookup is recorded in the audit log. Raises `NotAllowed` unless the actor is an administrator,
    `StateConflict` (not a directory), `InvalidInput` (no match, or several) and `Unavailable`.
    """
    require_administrator(actor)
    if not isinstance(provider, Ldap):
        raise StateConflict(
            Reason(IdentityCode.TESTED_IN_A_BROWSER, {"provider": provider.name}),
            code=ProblemCode.TESTED_IN_A_BROWSER,
        )
    username = strip_nul(username).strip()
    services.record_test(actor=actor, provider=provider, username=username)
    try:
        claims = backends.look_up(provider, username) if username else None
    except ConnectionError as error:
        log.warning("could not query provider %s: %s", provider.id, error)
        raise Unavailable(Reason(IdentityCode.PROVIDER_DOWN, {"provider": provider.name})) from error
    if claims is None:
        reason = Reason(IdentityCode.DIRECTORY_NOBODY, {"provider": provider.name, "username": username})
        raise InvalidInput(reason, errors={"username": [reason]})
    return LookUpResult(redact_claims(claims), decide(provider, claims))


def redact_claims(claims: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claims without secrets, and with long values shortened."""
    return {name: _shorten(value) for name, value in claims.items() if not _SECRET.search(name)}


def _shorten(value: Any) -> Any:
    if isinstance(value, list):
        return [_shorten(item) for item in value[:MAX_SHOWN]]
    return f"{value[:MAX_SHOWN]}…" if isinstance(value, str) and len(value) > MAX_SHOWN else value
