"""Template tag for sign-in buttons."""

from __future__ import annotations

from urllib.parse import urlencode

from django import template
from django.urls import reverse

from portal.people.identity import registry
from portal.people.identity.config import Oidc, Saml

register = template.Library()


@register.simple_tag
def sign_in_providers(wanted: str = "") -> list[dict[str, str]]:
    """Return providers with a sign-in button: `name`, and `url` that returns to `wanted`."""
    query = f"?{urlencode({'next': wanted})}" if wanted and wanted != "/" else ""
    return [
        {"name": provider.name, "url": reverse("identity:begin", args=[provider.id]) + query}
        for provider in registry.enabled()
        if isinstance(provider, Oidc | Saml)
    ]
