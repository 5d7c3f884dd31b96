"""Redirects anonymous users from private pages to sign-in, and back to the page afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme

SAFE = frozenset({"GET", "HEAD"})


class PrivatePagesMiddleware(LoginRequiredMiddleware):
    """Django's middleware, but a form sent after the session has ended leads back to its page."""

    def handle_no_permission(
        self, request: HttpRequest, view_func: Callable[..., Any]
    ) -> HttpResponseRedirect:
        """Return the redirect to the sign-in page."""
        page = request.META.get("HTTP_REFERER", "")
        own = url_has_allowed_host_and_scheme(
            page, allowed_hosts={request.get_host()}, require_https=request.is_secure()
        )
        if request.method in SAFE or not own:
            return super().handle_no_permission(request, view_func)
        parts = urlsplit(page)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        return redirect_to_login(path, self.get_login_url(view_func), self.get_redirect_field_name(view_func))
