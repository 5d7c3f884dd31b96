"""Context available to every template."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest


def portal(request: HttpRequest) -> dict[str, Any]:
    """Context processor. `theme` is `light`, `dark` or empty (system preference)."""
    theme = request.COOKIES.get(settings.BERTH_THEME_COOKIE, "")
    return {
        "theme": theme if theme in {"light", "dark"} else "",
        "request_id": getattr(request, "request_id", ""),
        "multiuser": settings.BERTH_MULTIUSER,
    }
