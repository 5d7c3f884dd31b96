"""Authentication backend that checks names and passwords with LDAP directories."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

from django.contrib.auth.backends import BaseBackend
from django.http import HttpRequest

from portal.common.errors import NotAllowed
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.people.identity import registry, services
from portal.people.identity.codes import IdentityCode
from portal.people.identity.config import Ldap

log = logging.getLogger(__name__)


class DirectoryBackend(BaseBackend):
    """Runs after Django's backend, so accounts with a local password never depend on a directory.

    If the password is correct but the rules refuse, or if a directory does not answer, the reason is stored
    on the request (`sign_in_reason`) for the page.
    """

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **_more: Any,
    ) -> User | None:
        if not username or not password:
            return None
        for provider in registry.enabled(Ldap):
            assert isinstance(provider, Ldap)
            reason = None
            try:
                claims = _directory_claims(provider, request, username, password)
                if claims is not None:
                    return services.sign_in(provider=provider, claims=claims)[0]
            except NotAllowed as error:
                reason = error.reason
            except ConnectionError as error:
                log.warning("could not query provider %s: %s", provider.id, error)
                reason = Reason(IdentityCode.PROVIDER_DOWN, {"provider": provider.name})
            if reason is not None and request is not None:
                request.sign_in_reason = reason  # type: ignore[attr-defined]
        return None

    def get_user(self, user_id: Any) -> User | None:
        return User.objects.filter(pk=user_id).first()


def _directory_claims(
    provider: Ldap, request: HttpRequest | None, username: str, password: str
) -> dict[str, Any] | None:
    """Return the claims, or None if name and password do not match.

    Raises `ConnectionError`, also if the library is missing.
    """
    directory = _library()
    try:
        claims: dict[str, Any] | None = directory.claims_of(provider, request, username, password)
    except directory.Unreachable as error:
        raise ConnectionError(str(error)) from error
    return claims


def look_up(provider: Ldap, username: str) -> dict[str, Any] | None:
    """Return the attributes that a directory reports for a user, or None. Checks no password.

    Raises `ConnectionError`.
    """
    directory = _library()
    try:
        claims: dict[str, Any] | None = directory.look_up(provider, username)
    except directory.Unreachable as error:
        raise ConnectionError(str(error)) from error
    return claims


def _library() -> ModuleType:
    """Return the `directory` module. Raises `ConnectionError` if its packages are missing."""
    try:
        # Optional dependency, needed only with a directory.
        from portal.people.identity import directory
    except ImportError as error:
        raise ConnectionError("the packages of requirements/ldap.lock are not installed") from error
    return directory
