"""Error pages for requests without a view."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views import defaults

from portal.common.problem_codes import ProblemCode
from portal.common.problems import plain_response


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Handle requests that Django rejects before any view, such as an invalid host.

    Returns a problem document for API paths, else a page.
    """
    if request.path.startswith("/api/"):
        return plain_response(400, ProblemCode.BAD_REQUEST, _("The request is not valid."), request)
    return defaults.bad_request(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Render the page for internal errors. Uses no database and no session, only the request id."""
    context = {
        "request_id": getattr(request, "request_id", ""),
        "theme": request.COOKIES.get(settings.BERTH_THEME_COOKIE, ""),
    }
    return render(None, "500.html", context, status=500)
