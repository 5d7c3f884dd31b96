"""Evaluates claims of a provider. Pure functions.

`read` extracts and validates identity; `grants` returns memberships and roles given by rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from portal.common.reasons.reason import Reason
from portal.people.identity.codes import IdentityCode
from portal.people.identity.config import TEAM_ROLES, Claims, Condition, Provider

MAX_VALUE = 255
"""Longer values match no pattern, to limit the cost of regular expressions on untrusted input."""
MAX_SUBJECT = 255
_TRUE = frozenset({"true", "1", "yes"})


class SignInRefused(Exception):
    """The claims do not permit a sign-in. `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.code.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ProviderIdentity:
    """Identity reported by a provider. `email` is empty unless verified."""

    subject: str
    username: str
    email: str
    first_name: str
    last_name: str
    groups: tuple[str, ...]
    mfa: bool
    unverified_email: str = ""


@dataclass(frozen=True, slots=True)
class Grants:
    """Grants by rules: team roles by slug, site roles, and teams that may be created."""

    memberships: Mapping[str, str]
    roles: tuple[str, ...]
    may_create: frozenset[str]


def read(provider: Provider, claims: Mapping[str, Any]) -> ProviderIdentity:
    """Return the identity in the claims. Raises `SignInRefused` if a claim is missing, invalid or denied."""
    names = provider.claims
    subject = _required_claim(provider, claims, names.subject)
    if len(subject) > MAX_SUBJECT:
        raise SignInRefused(Reason(IdentityCode.CLAIM_TOO_LONG, {"claim": names.subject}))
    groups = _groups(provider, claims)
    for condition in provider.require:
        if not _matches(condition, claims, groups):
            params = {
                "provider": provider.name,
                "claim": _claim_name(condition, names),
                "rule": condition.as_text(),
            }
            raise SignInRefused(Reason(IdentityCode.NOT_ALLOWED, params))
    email = _email(_text(_value(claims, names.email)))
    verified = bool(email) and (provider.trust_email or _is_true(_value(claims, names.email_verified)))
    first, last = _text(_value(claims, names.first_name)), _text(_value(claims, names.last_name))
    if not first and not last:
        first, _, last = _text(_value(claims, names.name)).partition(" ")
    return ProviderIdentity(
        subject=subject,
        username=_username(provider, claims),
        email=email if verified else "",
        first_name=first.strip()[:150],
        last_name=last.strip()[:150],
        groups=groups,
        mfa=any(_matches(condition, claims, groups) for condition in provider.mfa),
        unverified_email="" if verified else email,
    )


def grants(provider: Provider, claims: Mapping[str, Any]) -> Grants:
    """Return the memberships and roles that the provider's rules grant for these claims."""
    groups = _groups(provider, claims)
    memberships: dict[str, str] = {}
    roles: set[str] = set()
    may_create: set[str] = set()
    for rule in provider.rules:
        for match in _matches(rule, claims, groups):
            if rule.site_role:
                roles.add(rule.site_role)
                continue
            team = match.expand(rule.team) if isinstance(match, re.Match) else rule.team
            memberships[team] = max(memberships.get(team, rule.role), rule.role, key=TEAM_ROLES.index)
            if rule.create_team:
                may_create.add(team)
    return Grants(dict(sorted(memberships.items())), tuple(sorted(roles)), frozenset(may_create))


def _matches(condition: Condition, claims: Mapping[str, Any], groups: tuple[str, ...]) -> list[Any]:
    """Return one item for each value that meets the condition: a regex match, or True without a pattern."""
    if condition.everyone:
        return [True]
    if condition.claim:
        claim = _value(claims, condition.claim)
        values = claim if isinstance(claim, list | tuple) else [claim]
        if condition.pattern:
            texts = [_text(value) for value in values if isinstance(value, str | int)]
            return _matching(condition.pattern, texts)
        # In Python `True == 1`, but not in claims.
        return [
            True for value in values if value == condition.equals and type(value) is type(condition.equals)
        ][:1]
    if condition.group:
        return [True] if condition.group in groups else []
    return _matching(condition.group_pattern, groups)


def _matching(pattern: str, values: Any) -> list[re.Match[str]]:
    compiled = re.compile(pattern)
    return [match for value in values if len(value) <= MAX_VALUE and (match := compiled.fullmatch(value))]


def _email(value: str) -> str:
    """Return the address, or "" if it is invalid."""
    try:
        validate_email(value)
    except ValidationError:
        return ""
    return value if len(value) <= 254 else ""


def _claim_name(condition: Condition, names: Claims) -> str:
    return condition.claim or names.groups


def username_in(provider: Provider, value: str) -> str | None:
    """Return the user name in this value of the username claim, or None if the pattern does not match."""
    if not provider.username_pattern:
        return value
    matches = _matching(provider.username_pattern, [value])
    return (matches[0].group(1) or "") if matches else None


def _username(provider: Provider, claims: Mapping[str, Any]) -> str:
    claim = provider.claims.username
    value = _required_claim(provider, claims, claim)
    name = username_in(provider, value)
    if name is None:
        raise SignInRefused(Reason(IdentityCode.USERNAME_NOT_MATCHED, {"claim": claim, "value": value[:100]}))
    # Lower-casing maps some letters to ASCII: the Kelvin sign would become k.
    if not name.isascii():
        raise SignInRefused(Reason(IdentityCode.USERNAME_NOT_VALID, {"claim": claim, "value": value[:100]}))
    return name.strip().lower()


def _groups(provider: Provider, claims: Mapping[str, Any]) -> tuple[str, ...]:
    name = provider.claims.groups
    # Entra ID omits the groups of users with many groups and names an endpoint for them instead.
    elsewhere = claims.get("_claim_names")
    if (isinstance(elsewhere, Mapping) and name in elsewhere) or claims.get("hasgroups") is True:
        raise SignInRefused(Reason(IdentityCode.GROUPS_LEFT_OUT, {"provider": provider.name, "claim": name}))
    claim = _value(claims, name)
    values = claim if isinstance(claim, list | tuple) else [claim]
    return tuple(sorted({value for value in values if isinstance(value, str) and value}))


def _required_claim(provider: Provider, claims: Mapping[str, Any], claim: str) -> str:
    value = _text(_value(claims, claim))
    if not value:
        raise SignInRefused(Reason(IdentityCode.CLAIM_MISSING, {"provider": provider.name, "claim": claim}))
    return value


def _value(claims: Mapping[str, Any], name: str) -> Any:
    """Return the claim with exactly this name, else the nested claim, else None."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _text(value: Any) -> str:
    """Return a single value as text. Uses the first of a list, because SAML and LDAP send lists."""
    if isinstance(value, list | tuple):
        value = value[0] if value else ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return str(value).replace("\x00", "").strip()


def _is_true(value: Any) -> bool:
    if isinstance(value, list | tuple):
        value = value[0] if value else ""
    return value is True or (isinstance(value, str) and value.lower() in _TRUE)
