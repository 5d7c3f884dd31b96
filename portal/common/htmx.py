"""Full pages and htmx partials."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from django.utils.http import url_has_allowed_host_and_scheme


def requests_element(request: HttpRequest, target: str) -> bool:
    """Return whether htmx requests the element with the id `target`."""
    htmx: Any = getattr(request, "htmx", None)
    return bool(htmx) and not htmx.boosted and htmx.target == target


def partial_of(request: HttpRequest, page: str, *partials: str) -> str:
    """Return `page#partial` if htmx targets one of the partials, else `page`."""
    for name in partials:
        if requests_element(request, name):
            return f"{page}#{name}"
    return page


def local_path(candidate: str, default: str = "/") -> str:
    """Return `candidate` if it is a path of the portal, else `default`. Prevents open redirects."""
    safe = candidate.isprintable() and url_has_allowed_host_and_scheme(candidate, allowed_hosts=None)
    if candidate.startswith("/") and safe and not urlsplit(candidate).netloc:
        return candidate
    return default


def public_url() -> str:
    """Return the public URL of the portal."""
    return str(settings.BERTH_PUBLIC_URL)
