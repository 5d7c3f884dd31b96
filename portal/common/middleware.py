"""Request ids, and one way in which services' errors become pages.

All of it is synchronous, as is every middleware in the settings: a chain in which one kind follows the
other costs a change of threads at each step.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from portal.common import origins, storage
from portal.common.errors import PortalError
from portal.common.problems import plain_response, retry_after

REFUSALS = frozenset({401, 403, 429})
# Below these, programs ask: they are answered with a problem, not with a page.
PROGRAMS = ("/api/", "/agent/", "/nodes/", "/scim/")
log = structlog.get_logger(__name__)
GetResponse = Callable[[HttpRequest], HttpResponseBase]


class RequestIdMiddleware:
    """Give each request an id that stands in the response, the logs and on error pages."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        request_id = origins.request_id(request.headers.get("X-Request-Id", ""))
        request.request_id = request_id  # type: ignore[attr-defined]
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        origins.begin(
            address=request.META.get("REMOTE_ADDR", ""),
            user_agent=request.headers.get("User-Agent", ""),
            request_id=request_id,
        )
        try:
            response = self.get_response(request)
        finally:
            origins.end()
        response["X-Request-Id"] = request_id
        return response


class StorableMiddleware:
    """Refuse an address with a NUL character, encoded or not: no database takes one."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        query = request.META.get("QUERY_STRING", "")
        if "\0" not in request.path and "%00" not in query and "\0" not in query:
            return self.get_response(request)
        if request.path.startswith(PROGRAMS):
            return plain_response(400, "bad_request", _("The address has a NUL character."), request)
        return render(request, "400.html", status=400)


class NoStoreMiddleware:
    """Nothing is kept in a cache unless its view says for how long: most answers are one person's own."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if "Cache-Control" not in response:
            response["Cache-Control"] = "no-store, private"
        return response


class RefusalLogMiddleware:
    """Log who was refused what: the route instead of the path, which may be a link that signs in."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if response.status_code in REFUSALS:
            match = request.resolver_match
            # Whoever was not looked up for the answer is not looked up for the log.
            user = getattr(request, "_cached_user", None)
            log.warning(
                "request refused",
                status=response.status_code,
                method=request.method,
                route=match.route if match else "",
                user=str(getattr(user, "pk", None) or ""),
                token=origins.present().token,
                address=origins.present().address,
            )
        return response


class PartialsMiddleware:
    """Say that a page's address answers htmx with a part of it, so that no cache takes one for the other."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if response.get("Content-Type", "").startswith("text/html"):
            patch_vary_headers(response, ("HX-Request", "HX-Target"))
        return response


class ErrorMiddleware:
    """Render a `PortalError` that a view did not handle as a page with one next action."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        error = _error_of(exception)
        return error_page(request, error) if error is not None else None


class PlainErrorMiddleware(ErrorMiddleware):
    """The same in the form of a problem (RFC 9457), for a process that renders no pages."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        error = _error_of(exception)
        if error is None:
            return None
        answer = plain_response(error.status, error.code, error.message, request)
        for name, value in retry_after(error).items():
            answer[name] = value
        return answer


def _error_of(exception: Exception) -> PortalError | None:
    """What a view has refused, or the database at present; None for a fault of the portal's own."""
    if isinstance(exception, PortalError):
        return exception
    refused = storage.unavailable(exception)
    if refused is not None:
        log.error("the database cannot be written", reason=refused.reason.code, exc_info=exception)
    return refused


def error_page(request: HttpRequest, error: PortalError) -> HttpResponse:
    """The error's page; templates/errors/problem.html says what it needs."""
    page = render(
        request,
        "errors/problem.html",
        {"error": error, "request_id": getattr(request, "request_id", "")},
        status=error.status,
    )
    for name, value in retry_after(error).items():
        page[name] = value
    return page
