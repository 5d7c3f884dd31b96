"""LDAP sign-in with django-auth-ldap, which needs the optional dependency `ldap`.

django-auth-ldap only searches, binds and resolves groups. The portal's rules create the account.
"""

from __future__ import annotations

from typing import Any

import ldap
from django.http import HttpRequest
from django_auth_ldap import config as library
from django_auth_ldap.backend import LDAPBackend, LDAPSettings, ldap_error

from portal.people.accounts.models import User
from portal.people.identity.config import Ldap, read_secret

GROUP_TYPES = {
    "groupOfNames": library.GroupOfNamesType,
    "groupOfUniqueNames": library.GroupOfUniqueNamesType,
    "posixGroup": library.PosixGroupType,
    "activeDirectory": library.NestedActiveDirectoryGroupType,
}
REFUSALS = (
    ldap.INVALID_CREDENTIALS,
    ldap.INAPPROPRIATE_AUTH,
    ldap.UNWILLING_TO_PERFORM,
    ldap.CONSTRAINT_VIOLATION,
    ldap.INSUFFICIENT_ACCESS,
    ldap.NO_SUCH_OBJECT,
)
"""Errors that concern one user: wrong password, locked entry, entry without a password."""


class Unreachable(Exception):
    """The directory does not answer, or does not let the portal search."""


def claims_of(
    provider: Ldap, request: HttpRequest | None, username: str, password: str
) -> dict[str, Any] | None:
    """Return the directory's attributes of a user, or None if name and password do not match.

    Raises `Unreachable`.
    """
    backend = _Backend(provider)
    ldap_error.connect(_raise, sender=_Backend)
    if backend.authenticate(request, username=username, password=password) is None:
        return None
    return backend.claims


def look_up(provider: Ldap, username: str) -> dict[str, Any] | None:
    """Return a user's attributes, read by the search account, or None unless exactly one user matches.

    No password is needed or tested. Raises `Unreachable`.
    """
    backend = _Search(provider)
    ldap_error.connect(_raise, sender=_Search)
    # Placeholder: the library requires a password, but `_Search` does not use it.
    backend.authenticate(None, username=username, password="-")  # noqa: S106
    return backend.claims


class _Backend(LDAPBackend):
    """Backend for one directory and one sign-in. Keeps the claims instead of creating a user."""

    def __init__(self, provider: Ldap) -> None:
        self.provider = provider
        self.claims: dict[str, Any] | None = None
        self.settings = LDAPSettings("BERTH_NO_AUTH_LDAP_", _settings(provider))

    def get_or_build_user(self, username: str, ldap_user: Any) -> tuple[User, bool]:
        try:
            self.claims = _claims(self.provider, ldap_user)
        except ldap.LDAPError as error:
            raise Unreachable(type(error).__name__) from error
        return User(), False


class _Search(_Backend):
    """A lookup by the search account, which does not bind as the entry that it finds."""

    def authenticate_ldap_user(self, ldap_user: Any, password: str) -> None:
        # The search also returns operational attributes.
        if ldap_user.dn is not None:
            self.get_or_build_user("", ldap_user)


def _settings(provider: Ldap) -> dict[str, Any]:
    options = {
        ldap.OPT_NETWORK_TIMEOUT: provider.timeout_s,
        ldap.OPT_TIMEOUT: provider.timeout_s,
        ldap.OPT_REFERRALS: 0,
        ldap.OPT_X_TLS_REQUIRE_CERT: ldap.OPT_X_TLS_DEMAND,
    }
    if provider.ca_file:
        options[ldap.OPT_X_TLS_CACERTFILE] = provider.ca_file
    # Must be last: creates a TLS context from the options above.
    options[ldap.OPT_X_TLS_NEWCTX] = 0
    config: dict[str, Any] = {
        "SERVER_URI": provider.url,
        "BIND_DN": provider.bind_dn,
        "BIND_PASSWORD": read_secret(provider.bind_password) if provider.bind_password else "",
        "START_TLS": provider.start_tls,
        "CONNECTION_OPTIONS": options,
        # Includes operational attributes such as entryUUID.
        "USER_SEARCH": library.LDAPSearch(
            provider.user_base, ldap.SCOPE_SUBTREE, provider.user_filter, ["*", "+"]
        ),
        "ALWAYS_UPDATE_USER": False,
        "PERMIT_EMPTY_PASSWORD": False,
    }
    if provider.group_base:
        config["GROUP_SEARCH"] = library.LDAPSearch(
            provider.group_base, ldap.SCOPE_SUBTREE, provider.group_filter
        )
        config["GROUP_TYPE"] = GROUP_TYPES[provider.group_type]()
    return config


def _claims(provider: Ldap, ldap_user: Any) -> dict[str, Any]:
    """Return the attributes and groups of the entry. Raises `ldap.LDAPError`."""
    attrs = ldap_user.attrs
    claims = {name: [_plain(value) for value in values] for name, values in attrs.items()}
    for name in _names(provider):
        # Attribute names are case-insensitive.
        if name not in claims and name in attrs:
            claims[name] = [_plain(value) for value in attrs[name]]
    claims["dn"] = ldap_user.dn
    if provider.group_base:
        claims[provider.claims.groups] = sorted(ldap_user.group_names)
    claims.pop("userPassword", None)
    return claims


def _names(provider: Ldap) -> list[str]:
    names = provider.claims
    return [
        names.subject,
        names.username,
        names.email,
        names.name,
        names.first_name,
        names.last_name,
        names.groups,
    ]


def _plain(value: str | bytes) -> str:
    """Return text unchanged, and binary values (such as Active Directory's objectGUID) in hexadecimal."""
    return value if isinstance(value, str) else value.hex()


def _raise(**signal: Any) -> None:
    """Raise errors that django-auth-ldap would report as an unknown user."""
    error = signal["exception"]
    if signal["context"] != "authenticate" or not isinstance(error, REFUSALS):
        raise Unreachable(type(error).__name__) from error
