"""System checks of sign-in providers."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register

from portal.people.identity import registry
from portal.people.identity.config import ConfigError, Ldap, Oidc, Provider


@register(Tags.security)
def providers_are_valid(**_: Any) -> list[CheckMessage]:
    """Check that the configuration is valid and that all secrets exist."""
    try:
        providers = registry.all_providers()
    except ConfigError as error:
        hint = "Correct it in the file that BERTH_SIGN_IN_PROVIDERS names, or in the variables BERTH_OIDC_…."
        return [
            Error(f"Sign-in providers: {problem}", hint=hint, id="identity.E001")
            for problem in error.problems
        ]
    return [
        *_missing_library(providers),
        *_open_to_everybody(providers),
    ]


def _missing_library(providers: Sequence[Provider]) -> list[CheckMessage]:
    has_ldap = importlib.util.find_spec("ldap") and importlib.util.find_spec("django_auth_ldap")
    hint = "Run `make ldap`, which installs requirements/ldap.lock; docs/sign-in.md lists its requirements."
    return [
        Error(f"Sign-in providers: {provider.id} needs python-ldap.", hint=hint, id="identity.E002")
        for provider in providers
        if isinstance(provider, Ldap) and provider.enabled and not has_ldap
    ]


def _open_to_everybody(providers: Sequence[Provider]) -> list[CheckMessage]:
    return [
        Warning(
            f"Sign-in providers: {provider.id} admits every user of the provider.",
            hint="Restrict sign-in with `require`, unless the provider itself restricts it.",
            id="identity.W001",
        )
        for provider in providers
        if isinstance(provider, Oidc) and not provider.require and provider.issuer in _PUBLIC
    ]


# Issuers with public sign-up.
_PUBLIC = frozenset(
    {
        "https://accounts.google.com",
        "https://login.microsoftonline.com/common/v2.0",
        "https://login.microsoftonline.com/consumers/v2.0",
        "https://login.microsoftonline.com/organizations/v2.0",
        "https://gitlab.com",
        "https://appleid.apple.com",
    }
)
