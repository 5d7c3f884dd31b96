"""Pages and their partials: htmx gets the part that it asked for, everybody else the whole page."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from django.utils.http import url_has_allowed_host_and_scheme


def wants(request: HttpRequest, target: str) -> bool:
    """Whether htmx asks for the element with this id."""
    htmx: Any = getattr(request, "htmx", None)
    return bool(htmx) and not htmx.boosted and htmx.target == target


def partial_of(request: HttpRequest, page: str, *partials: str) -> str:
    """The template to render: `page#partial` when htmx targets an element of that id, else `page`."""
    for name in partials:
        if wants(request, name):
            return f"{page}#{name}"
    return page


def local_path(candidate: str, default: str = "/") -> str:
    """`candidate` if it is a path of the portal itself, else `default`: never a way to another site."""
    safe = candidate.isprintable() and url_has_allowed_host_and_scheme(candidate, allowed_hosts=None)
    if candidate.startswith("/") and safe and not urlsplit(candidate).netloc:
        return candidate
    return default


def public_url() -> str:
    """The portal's own address as people reach it."""
    return str(settings.BERTH_PUBLIC_URL)
