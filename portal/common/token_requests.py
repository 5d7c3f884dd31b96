"""The short way of REST requests that bring an API token.

What stands in the settings after this middleware is for browsers: sessions and their cookies, CSRF, messages,
htmx, second factors, pages. A token's request has nothing of these, and `ApiView` decides all of it by
itself, so such a request goes from here to its view through what concerns it.
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
from portal.common.bearer import token_in

API = "/api/"
_MAX_KEPT = 1024
# Django's own, which refuses hosts and gives lengths, and the header against frames.
_ON_THE_WAY = (CommonMiddleware, XFrameOptionsMiddleware)


class TokenRequestMiddleware:
    """Leads a token's request to its view; every other request goes on as the settings say."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        way: Any = convert_exception_to_response(_ToView().answer)
        for middleware in reversed(_ON_THE_WAY):
            way = convert_exception_to_response(middleware(way))
        self._way: Callable[[HttpRequest], HttpResponseBase] = way

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        path = request.path_info
        if path.startswith(API) and token_in(request.META.get("HTTP_AUTHORIZATION", "")) is not None:
            try:
                match = _match(settings.ROOT_URLCONF, path)
            except Resolver404:
                return self.get_response(request)
            if _takes_tokens(match.func):
                request.resolver_match = match
                answer = self._way(request)
                # Without a token the same address answers a browser's session.
                patch_vary_headers(answer, ("Cookie",))
                return answer
        return self.get_response(request)


class _ToView(BaseHandler):
    """Django's way from a request to its view and to the answer's bytes, without hooks of middleware."""

    _view_middleware = ()
    _template_response_middleware = ()
    _exception_middleware = ()

    def answer(self, request: HttpRequest) -> HttpResponseBase:
        # What Django's own chain ends with; it has no public name.
        answered: HttpResponseBase = self._get_response(request)  # type: ignore[attr-defined]
        return answered

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        match = request.resolver_match
        if match is None:
            raise ValueError("a request comes here with where it leads")
        return match


@lru_cache(maxsize=_MAX_KEPT)
def _match(urlconf: str, path: str) -> ResolverMatch:
    """Where a path leads. Raises `Resolver404`, which is not remembered."""
    return get_resolver(urlconf).resolve(path)


def _takes_tokens(view: Any) -> bool:
    """Whether a view is one of REST's that asks for tokens before it asks for sessions."""
    cls = getattr(view, "cls", None)
    return (
        isinstance(cls, type)
        and issubclass(cls, ApiView)
        and cls.authentication_classes == ApiView.authentication_classes
    )
