"""Template tag for sign-in buttons."""

from __future__ import annotations

from urllib.parse import urlencode

from django import template
from django.urls import reverse

from portal.people.identity import registry
from portal.people.identity.config import Oidc, Saml

register = template.Library()


@register.simple_tag
def sign_in_providers(next_url: str = "") -> list[dict[str, str]]:
    """Return providers with a sign-in button: `name`, and `url` that returns to `next_url`."""
    query = f"?{urlencode({'next': next_url})}" if next_url and next_url != "/" else ""
    return [
        {"name": provider.name, "url": reverse("identity:begin", args=[provider.id]) + query}
        for provider in registry.enabled()
        if isinstance(provider, Oidc | Saml)
    ]
