"""What the menu says of the inbox."""

from __future__ import annotations

from typing import Any

from django import template

from portal.web.inbox import selectors

register = template.Library()


@register.simple_tag(takes_context=True)
def inbox_count(context: dict[str, Any]) -> int:
    """How many things wait for the reader: three queries at most, since it is on every page."""
    user = getattr(context.get("request"), "user", None)
    return selectors.count(user) if user is not None and user.is_authenticated else 0
