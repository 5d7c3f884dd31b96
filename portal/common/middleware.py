"""Request ids, and one way in which services' errors become pages."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable

import structlog
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.utils.decorators import sync_and_async_middleware

from portal.common.errors import PortalError

_ACCEPTABLE_ID = re.compile(r"^[A-Za-z0-9._-]{8,64}\Z")
GetResponse = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def RequestIdMiddleware(get_response: GetResponse) -> GetResponse:  # noqa: N802  (named in settings)
    """Give each request an id that stands in the response, the logs and on error pages."""

    def begin(request: HttpRequest) -> str:
        given = request.headers.get("X-Request-Id", "")
        request_id = given if _ACCEPTABLE_ID.match(given) else uuid.uuid4().hex
        request.request_id = request_id  # type: ignore[attr-defined]
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        return request_id

    if iscoroutinefunction(get_response):

        async def middleware(request: HttpRequest) -> HttpResponseBase:
            request_id = begin(request)
            response: HttpResponseBase = await get_response(request)
            response["X-Request-Id"] = request_id
            return response

        return middleware

    def sync_middleware(request: HttpRequest) -> HttpResponseBase:
        request_id = begin(request)
        response = get_response(request)
        response["X-Request-Id"] = request_id  # type: ignore[index]
        return response  # type: ignore[return-value]

    return sync_middleware


@sync_and_async_middleware
def PartialsMiddleware(get_response: GetResponse) -> GetResponse:  # noqa: N802  (named in settings)
    """Say that a page's address answers htmx with a part of it, so that no cache takes one for the other."""

    def vary(response: HttpResponseBase) -> HttpResponseBase:
        if response.get("Content-Type", "").startswith("text/html"):
            patch_vary_headers(response, ("HX-Request", "HX-Target"))
        return response

    if iscoroutinefunction(get_response):

        async def middleware(request: HttpRequest) -> HttpResponseBase:
            return vary(await get_response(request))

        return middleware

    def sync_middleware(request: HttpRequest) -> HttpResponseBase:
        return vary(get_response(request))  # type: ignore[arg-type]

    return sync_middleware


class ErrorMiddleware:
    """Render a `PortalError` that a view did not handle as a page with one next action."""

    async_capable = True
    sync_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, PortalError):
            return None
        return error_page(request, exception)


def error_page(request: HttpRequest, error: PortalError) -> HttpResponse:
    """The error's page; templates/errors/problem.html says what it needs."""
    return render(
        request,
        "errors/problem.html",
        {"error": error, "request_id": getattr(request, "request_id", "")},
        status=error.status,
    )
