"""Fast path for REST requests with an API token.

The middleware configured after this one is for browsers: sessions, cookies, CSRF, messages, htmx, second
factors, pages. `ApiView` authenticates and authorizes token requests itself, so they go to their view with
only the middleware that they need.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest, HttpResponseBase
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.common import CommonMiddleware
from django.urls import Resolver404, ResolverMatch, get_resolver
from django.utils.cache import patch_vary_headers

from portal.common.api import ApiView
from portal.common.bearer import bearer_token

API = "/api/"
_MAX_KEPT = 1024
# Django's middleware for host checks, Content-Length and X-Frame-Options.
_MIDDLEWARE = (CommonMiddleware, XFrameOptionsMiddleware)


class TokenRequestMiddleware:
    """Dispatch token requests directly to their view. Other requests continue through the middleware."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        handler: Any = convert_exception_to_response(_ViewHandler().respond)
        for middleware in reversed(_MIDDLEWARE):
            handler = convert_exception_to_response(middleware(handler))
        self._handler: Callable[[HttpRequest], HttpResponseBase] = handler

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        path = request.path_info
        if path.startswith(API) and bearer_token(request.META.get("HTTP_AUTHORIZATION", "")) is not None:
            try:
                match = _match(settings.ROOT_URLCONF, path)
            except Resolver404:
                return self.get_response(request)
            if _takes_tokens(match.func):
                request.resolver_match = match
                answer = self._handler(request)
                # Without a token, the same URL serves session clients.
                patch_vary_headers(answer, ("Cookie",))
                return answer
        return self.get_response(request)


class _ViewHandler(BaseHandler):
    """Django's request handling from request to rendered response, without middleware hooks."""

    _view_middleware = ()
    _template_response_middleware = ()
    _exception_middleware = ()

    def respond(self, request: HttpRequest) -> HttpResponseBase:
        # Innermost function of Django's middleware chain. Not public API.
        answered: HttpResponseBase = self._get_response(request)  # type: ignore[attr-defined]
        return answered

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        match = request.resolver_match
        if match is None:
            raise ValueError("the request has no resolver match")
        return match


@lru_cache(maxsize=_MAX_KEPT)
def _match(urlconf: str, path: str) -> ResolverMatch:
    """Resolve a path. Raises `Resolver404`, which is not cached."""
    return get_resolver(urlconf).resolve(path)


def _takes_tokens(view: Any) -> bool:
    """Return whether a view is a REST view that tries tokens before sessions."""
    cls = getattr(view, "cls", None)
    return (
        isinstance(cls, type)
        and issubclass(cls, ApiView)
        and cls.authentication_classes == ApiView.authentication_classes
    )
