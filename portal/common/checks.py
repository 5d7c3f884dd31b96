"""System checks on settings that would be unsafe or could not work."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register


@register(Tags.security, deploy=True)
def secrets_are_set(**_: Any) -> list[CheckMessage]:
    """Whatever serves requests must have a secret key and a gateway secret of its own."""
    missing = []
    if settings.SECRET_KEY.startswith("insecure-"):
        missing.append(("BERTH_SECRET_KEY", "common.E001"))
    if not settings.BERTH_GATEWAY_SECRET:
        missing.append(("BERTH_GATEWAY_SECRET", "common.E002"))
    return [
        Error(f"{name} is not set.", hint=f"Run `make up`, which writes one, or set {name}.", id=code)
        for name, code in missing
    ]
