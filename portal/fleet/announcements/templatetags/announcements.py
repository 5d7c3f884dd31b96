"""Template tag for the banners above every page."""

from __future__ import annotations

from typing import Any

from django import template

from portal.fleet.announcements import selectors

register = template.Library()


@register.inclusion_tag("announcements/banners.html", takes_context=True)
def announcement_banners(context: dict[str, Any]) -> dict[str, Any]:
    """Render the banners for current maintenance and announcements. Two queries without any."""
    request = context.get("request")
    user = getattr(request, "user", None)
    banners = selectors.banners_for(user) if user is not None and user.is_authenticated else []
    return {
        "banners": banners[: selectors.MAX_BANNERS],
        "more": max(0, len(banners) - selectors.MAX_BANNERS),
        "here": request.get_full_path() if request is not None else "/",
        "csrf_token": context.get("csrf_token"),
        "operates": bool(banners) and user is not None and user.operates,
    }
