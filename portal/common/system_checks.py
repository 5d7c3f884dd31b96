"""System checks for unsafe or unusable settings."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from portal.common import front_door
from provisioning.service.environ import UP


@register(Tags.security)
def check_plain_http(**_: Any) -> list[CheckMessage]:
    """Warn about plain http: sessions can be intercepted, and workspace hosts can set domain cookies."""
    name = urlsplit(settings.BERTH_PUBLIC_URL).hostname or ""
    if settings.HTTPS or name == "localhost" or name.endswith(".localhost") or name == "127.0.0.1":
        return []
    return [
        Warning(
            f"The portal is reached at {settings.BERTH_PUBLIC_URL}, without encryption.",
            hint="Put TLS in front of it and set BERTH_PUBLIC_URL to the https address.",
            id="common.W001",
        )
    ]


@register(Tags.security)
def check_unauthenticated_proxy(**_: Any) -> list[CheckMessage]:
    """Warn about an unauthenticated proxy on this machine: notebooks have the same address."""
    local = any(network.network_address.is_loopback for network in settings.BERTH_TRUSTED_PROXIES)
    if not local or len(settings.BERTH_PROXY_SECRET) >= front_door.MIN_SECRET:
        return []
    return [
        Warning(
            "BERTH_TRUSTED_PROXIES names this machine without BERTH_PROXY_SECRET: all clients behind "
            "that proxy count as one address.",
            hint=f"Set BERTH_PROXY_SECRET, and have the proxy send it as {front_door.PROXY_HEADER}.",
            id="common.W002",
        )
    ]


@register(Tags.security)
def check_home_limits(**_: Any) -> list[CheckMessage]:
    """Warn about missing home limits: a member could fill the disk, so nodes refuse to start workspaces."""
    if not settings.BERTH_MULTIUSER or settings.BERTH_HOME_LIMIT_MIB:
        return []
    return [
        Warning(
            "Several users share this installation (BERTH_MULTIUSER), and homes have no limit. Nodes start "
            "no workspace.",
            hint="Set BERTH_HOME_LIMIT_MIB to the limit of a home, such as 51200 (50 GiB).",
            id="common.W003",
        )
    ]


@register(Tags.security)
def account_deletion_is_known(**_: Any) -> list[CheckMessage]:
    """Report an unknown deletion policy, which would count as off."""
    if settings.BERTH_ACCOUNT_DELETION in {"off", "on"}:
        return []
    return [
        Error(
            f"BERTH_ACCOUNT_DELETION is “{settings.BERTH_ACCOUNT_DELETION}”.",
            hint="Set it to off (administrators delete accounts) or on (people may delete their own).",
            id="common.E003",
        )
    ]


@register(Tags.security, deploy=True)
def secrets_are_set(**_: Any) -> list[CheckMessage]:
    """Require a secret key and a gateway secret."""
    missing = []
    if settings.SECRET_KEY.startswith("insecure-"):
        missing.append(("BERTH_SECRET_KEY", "common.E001"))
    if not settings.BERTH_GATEWAY_SECRET:
        missing.append(("BERTH_GATEWAY_SECRET", "common.E002"))
    return [
        Error(f"{name} is not set.", hint=f"Run `{UP}`, which writes one, or set {name}.", id=code)
        for name, code in missing
    ]
