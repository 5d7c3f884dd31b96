"""Rate limit of page requests, per user or, for anonymous requests, per address."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render

from portal.common.context import BARE
from portal.common.middleware import PROGRAMS
from portal.people.accounts.throttles import count_request

UNLIMITED = ("/healthz", "/static/", *PROGRAMS)
"""Paths limited by `RequestThrottle`, agent reports, and paths that must always respond."""


class RequestLimitMiddleware:
    """Responds with 429 above the limit."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        wait_s = 0 if request.path_info.startswith(UNLIMITED) else count_request(request.user)
        if not wait_s:
            return self.get_response(request)
        # Without the menu: what is refused must cost less than what is served.
        context = {"request_id": getattr(request, "request_id", ""), "error_frame": BARE}
        response = render(request, "429.html", context, status=429)
        response["Retry-After"] = str(wait_s)
        return response
