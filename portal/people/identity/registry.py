"""Sign-in providers configured for this installation."""

from __future__ import annotations

from functools import lru_cache

from django.conf import settings

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.people.identity import config
from portal.people.identity.codes import IdentityCode
from portal.people.identity.config import Configuration, Ldap, Oidc, Provider, Saml, Scim


def all_providers() -> tuple[Oidc | Saml | Ldap, ...]:
    """Return all configured providers, in order. Raises `config.ConfigError`."""
    return _configured().providers


def scim() -> Scim:
    """Return the SCIM settings. Raises `config.ConfigError`."""
    return _configured().scim


def enabled(kind: type[Provider] = Provider) -> list[Provider]:
    """Return enabled providers of a kind."""
    return [provider for provider in all_providers() if provider.enabled and isinstance(provider, kind)]


def provider_by_id(provider_id: str) -> Oidc | Saml | Ldap:
    """Return the provider with this id. Raises `NotFound`."""
    provider = next((candidate for candidate in all_providers() if candidate.id == provider_id), None)
    if provider is None:
        raise NotFound(Reason(IdentityCode.NO_SUCH_PROVIDER, {"id": provider_id[:40]}))
    return provider


def _configured() -> Configuration:
    return _load(settings.BERTH_SIGN_IN_PROVIDERS, tuple(sorted(settings.BERTH_OIDC.items())))


@lru_cache(maxsize=4)
def _load(path: str, variables: tuple[tuple[str, str], ...]) -> Configuration:
    # Loaded once per process. Changes require a restart, which validates them.
    return config.load(path, dict(variables))
