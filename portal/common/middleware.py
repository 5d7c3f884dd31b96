"""Middleware for request ids, and for rendering service errors as pages.

All middleware is synchronous. Mixing sync and async middleware would cost a thread switch at each boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from portal.common import request_context, storage
from portal.common.context import BARE
from portal.common.errors import PortalError
from portal.common.problems import plain_response, retry_after

REFUSALS = frozenset({401, 403, 429})
# Prefixes of API paths, which get problem documents instead of error pages.
PROGRAMS = ("/api/", "/agent/", "/nodes/", "/scim/")
log = structlog.get_logger(__name__)
GetResponse = Callable[[HttpRequest], HttpResponseBase]


class RequestIdMiddleware:
    """Assign a request id, for the response, logs and error pages."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        request_id = request_context.accepted_request_id(request.headers.get("X-Request-Id", ""))
        request.request_id = request_id  # type: ignore[attr-defined]
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        request_context.begin(
            address=request.META.get("REMOTE_ADDR", ""),
            user_agent=request.headers.get("User-Agent", ""),
            request_id=request_id,
        )
        try:
            response = self.get_response(request)
        finally:
            request_context.end()
        response["X-Request-Id"] = request_id
        return response


class RejectNulBytesMiddleware:
    """Reject URLs with NUL characters, encoded or not, because databases do not accept them."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        query = request.META.get("QUERY_STRING", "")
        if "\0" not in request.path and "%00" not in query and "\0" not in query:
            return self.get_response(request)
        if request.path.startswith(PROGRAMS):
            return plain_response(400, "bad_request", _("The URL contains a NUL character."), request)
        return render(request, "400.html", status=400)


class NoStoreMiddleware:
    """Disable caching unless the view sets its own policy. Most responses are personal."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if "Cache-Control" not in response:
            response["Cache-Control"] = "no-store, private"
        return response


class RefusalLogMiddleware:
    """Log refused requests. Logs the route, not the path, because a path may be a sign-in link."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if response.status_code in REFUSALS:
            match = request.resolver_match
            # Use the cached user only, to avoid a query for the log.
            user = getattr(request, "_cached_user", None)
            log.warning(
                "request refused",
                status=response.status_code,
                method=request.method,
                route=match.route if match else "",
                user=str(getattr(user, "pk", None) or ""),
                token=request_context.current().token,
                address=request_context.current().address,
            )
        return response


class PartialsMiddleware:
    """Set `Vary` on pages with htmx partials, so that caches keep both variants apart."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if response.get("Content-Type", "").startswith("text/html"):
            patch_vary_headers(response, ("HX-Request", "HX-Target"))
        return response


SERVER_ERROR = 500


class ErrorMiddleware:
    """Render unhandled `PortalError`s as an error page."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        error = _error_of(exception)
        return error_page(request, error) if error is not None else None


class PlainErrorMiddleware(ErrorMiddleware):
    """Render unhandled errors as problem documents (RFC 9457), in processes without pages."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        error = _error_of(exception)
        if error is None:
            return None
        answer = plain_response(error.status, error.code, error.message, request)
        for name, value in retry_after(error).items():
            answer[name] = value
        return answer


def _error_of(exception: Exception) -> PortalError | None:
    """Return the error to render: a `PortalError` or an unavailable database. None for other exceptions."""
    if isinstance(exception, PortalError):
        return exception
    refused = storage.unavailable_error(exception)
    if refused is not None:
        log.error("database is not writable", reason=refused.reason.code, exc_info=exception)
    return refused


def error_page(request: HttpRequest, error: PortalError) -> HttpResponse:
    """Render the error page. See templates/errors/problem.html for the context."""
    context: dict[str, Any] = {"error": error, "request_id": getattr(request, "request_id", "")}
    if error.status >= SERVER_ERROR:
        # The menu reads the database, which may be unavailable.
        context["error_frame"] = BARE
    page = render(request, "errors/problem.html", context, status=error.status)
    for name, value in retry_after(error).items():
        page[name] = value
    return page
