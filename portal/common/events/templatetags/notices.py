"""Template tag of the bell."""

from __future__ import annotations

from typing import Any

from django import template

from portal.common.events import selectors

register = template.Library()


@register.simple_tag(takes_context=True)
def unread_notices(context: dict[str, Any]) -> int:
    """Return the number of the user's unread notices. Costs one query per page."""
    user = getattr(context.get("request"), "user", None)
    return selectors.unread_count(user) if user is not None and user.is_authenticated else 0
