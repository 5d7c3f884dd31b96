"""Session cookie that a late response cannot delete."""

from __future__ import annotations

from django.conf import settings
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest, HttpResponse


class SessionCookieMiddleware(SessionMiddleware):
    """Django's session middleware, except that partials do not delete the cookie of an unknown session.

    A session gets a new key after a change of password or second factors. Requests sent with the old key may
    be answered after the new cookie was set, and deleting it would sign the user out.
    """

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response = super().process_response(request, response)
        cookie = response.cookies.get(settings.SESSION_COOKIE_NAME)
        if cookie is not None and not cookie.value and not _is_navigation(request):
            del response.cookies[settings.SESSION_COOKIE_NAME]
        return response


def _is_navigation(request: HttpRequest) -> bool:
    """Return whether the response is a full page.

    Without Fetch Metadata, only htmx requests are recognized.
    """
    mode = request.headers.get("Sec-Fetch-Mode", "navigate")
    return mode == "navigate" and "HX-Request" not in request.headers
