"""Validates settings. An error prevents the start, and says which variable to change and how.

Every function raises `ImproperlyConfigured`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

SITE_ROLES = frozenset({"administrator", "operator", "approver", "auditor"})
"""The values of `portal.people.accounts.models.SiteRole`, which cannot be imported before the settings."""
_DOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)+")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(variable: str, values: Iterable[str], *, strict: bool, advice: str) -> tuple[Network, ...]:
    """Parse networks. `strict` rejects an address with host bits."""
    try:
        return tuple(ipaddress.ip_network(value.strip(), strict=strict) for value in values)
    except ValueError as error:
        raise ImproperlyConfigured(f"{variable}: {error}. {advice}") from error


def check_minimum(minimum: int, **values: int) -> None:
    """Check that all `values`, given by variable name, are at least `minimum`."""
    if min(values.values()) < minimum:
        verb = "are" if len(values) > 1 else "is"
        raise ImproperlyConfigured(f"{' and '.join(values)} {verb} {minimum} or more.")


def check_vault(address: str, *, has_app_role: bool, has_token_file: bool) -> None:
    """Check that Vault uses TLS or loopback, and that exactly one sign-in method is set."""
    url = urlsplit(address)
    is_loopback = url.hostname in ("localhost", "127.0.0.1", "::1")
    if not url.hostname or not (url.scheme == "https" or (url.scheme == "http" and is_loopback)):
        raise ImproperlyConfigured(
            "BERTH_VAULT_ADDR is not valid: write https://vault.example.org:8200 (http:// for this machine)."
        )
    if has_app_role == has_token_file:
        raise ImproperlyConfigured(
            "BERTH_VAULT_ADDR needs either BERTH_VAULT_ROLE_ID and BERTH_VAULT_SECRET_ID_FILE, "
            "or BERTH_VAULT_TOKEN_FILE."
        )


def check_site_roles(variable: str, roles: Collection[str]) -> None:
    """Check that `roles` are site roles."""
    if unknown := set(roles) - SITE_ROLES:
        raise ImproperlyConfigured(
            f"{variable} names {', '.join(sorted(unknown))}: "
            "write administrator, operator, approver or auditor."
        )


def check_mail_domains(variable: str, values: Iterable[str]) -> frozenset[str]:
    """Return the domains in lower case. Each must be a domain, or “*” for all."""
    domains = frozenset(value.strip().lower() for value in values if value.strip())
    if wrong := sorted(domain for domain in domains if domain != "*" and not _DOMAIN.fullmatch(domain)):
        raise ImproperlyConfigured(
            f"{variable} names {', '.join(wrong)}: write domains such as example.org, or * for all."
        )
    return domains


def check_audit_syslog(address: str) -> None:
    """Check the address of a syslog server: protocol, host and port."""
    try:
        url = urlsplit(address)
        is_complete = bool(url.scheme in ("tls", "tcp", "udp") and url.hostname and url.port)
    except ValueError:
        is_complete = False
    if not is_complete:
        raise ImproperlyConfigured(
            "BERTH_AUDIT_SYSLOG is not valid: write tls://host:6514 (or tcp://, udp://)."
        )


def check_audit_webhook(url: str, secret: str) -> None:
    """Check the URL of an audit webhook and the form of its signing secret."""
    if not (url.startswith(("https://", "http://")) and secret.startswith("whsec_")):
        raise ImproperlyConfigured(
            "BERTH_AUDIT_WEBHOOK needs a URL, and BERTH_AUDIT_WEBHOOK_SECRET as whsec_…."
        )
