"""The cookie of sessions, which no late answer takes away from a session that has begun meanwhile."""

from __future__ import annotations

from django.conf import settings
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest, HttpResponse


class SessionCookieMiddleware(SessionMiddleware):
    """Django's, but that parts of a page do not delete the cookie of a session that has gone.

    A session goes on under another key after a change of password or of second factors. What its page asked
    for at that moment with the old key may be answered after the new cookie was set, and would sign the user
    out.
    """

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response = super().process_response(request, response)
        cookie = response.cookies.get(settings.SESSION_COOKIE_NAME)
        if cookie is not None and not cookie.value and not _is_navigation(request):
            del response.cookies[settings.SESSION_COOKIE_NAME]
        return response


def _is_navigation(request: HttpRequest) -> bool:
    """Whether the answer is a page of its own. Browsers without Fetch Metadata say so of htmx alone."""
    mode = request.headers.get("Sec-Fetch-Mode", "navigate")
    return mode == "navigate" and "HX-Request" not in request.headers
