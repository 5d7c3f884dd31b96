"""Context available to every template."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest

BARE = "bare.html"
"""Base template of error pages that must not read the database."""


def error_frame(request: HttpRequest) -> str:
    """Return the base template of an error page: with the menu for signed-in users, else bare."""
    try:
        return "errors/framed.html" if request.user.is_authenticated else BARE
    except (AttributeError, DatabaseError):
        # The error occurred before the session was read, or the database is unavailable.
        return BARE


def portal(request: HttpRequest) -> dict[str, Any]:
    """Return the context of every page. `theme` is `light`, `dark` or empty (system preference)."""
    theme = request.COOKIES.get(settings.BERTH_THEME_COOKIE, "")
    return {
        "theme": theme if theme in {"light", "dark"} else "",
        "request_id": getattr(request, "request_id", ""),
        # Called by error pages only.
        "error_frame": partial(error_frame, request),
        "multiuser": settings.BERTH_MULTIUSER,
    }
