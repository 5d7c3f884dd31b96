"""Template tags of the inbox."""

from __future__ import annotations

from typing import Any

from django import template

from portal.web.inbox import selectors

register = template.Library()


@register.simple_tag(takes_context=True)
def inbox_count(context: dict[str, Any]) -> int:
    """Return the number of items for the user. At most 3 queries, because every page shows it.

    A page that has already counted the items has `inbox_counts` in its context.
    """
    if (counted := context.get("inbox_counts")) is not None:
        return int(sum(counted.values()))
    user = getattr(context.get("request"), "user", None)
    return selectors.count(user) if user is not None and user.is_authenticated else 0
