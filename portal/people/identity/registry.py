"""The sign-in providers of this installation, as the settings name them."""

from __future__ import annotations

from functools import lru_cache

from django.conf import settings

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.people.identity import config
from portal.people.identity.codes import IdentityCode
from portal.people.identity.config import Configuration, Ldap, Oidc, Provider, Saml, Scim


def every() -> tuple[Oidc | Saml | Ldap, ...]:
    """All that are configured, in their order. Raises `config.ConfigError`."""
    return _configured().providers


def scim() -> Scim:
    """What is configured about SCIM. Raises `config.ConfigError`."""
    return _configured().scim


def enabled(kind: type[Provider] = Provider) -> list[Provider]:
    """Those of a kind by which people sign in at present."""
    return [each for each in every() if each.enabled and isinstance(each, kind)]


def named(provider_id: str) -> Oidc | Saml | Ldap:
    """The provider of this id. Raises `NotFound`."""
    found = next((each for each in every() if each.id == provider_id), None)
    if found is None:
        raise NotFound(Reason(IdentityCode.NO_SUCH_PROVIDER, {"id": provider_id[:40]}))
    return found


def _configured() -> Configuration:
    return _load(settings.BERTH_SIGN_IN_PROVIDERS, tuple(sorted(settings.BERTH_OIDC.items())))


@lru_cache(maxsize=4)
def _load(path: str, variables: tuple[tuple[str, str], ...]) -> Configuration:
    # Once in a process: another configuration takes a restart, which checks it.
    return config.load(path, dict(variables))
