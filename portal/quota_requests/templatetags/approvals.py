"""What the menu says of requests."""

from __future__ import annotations

from typing import Any

from django import template

from portal.quota_requests import selectors

register = template.Library()


@register.simple_tag(takes_context=True)
def requests_to_decide(context: dict[str, Any]) -> int:
    """How many open requests the reader may decide: two queries at most, since it is on every page."""
    user = getattr(context.get("request"), "user", None)
    return selectors.open_count(user) if user is not None and user.is_authenticated else 0
