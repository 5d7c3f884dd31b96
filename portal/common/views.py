"""Pages for requests that no view answers."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def server_error(request: HttpRequest) -> HttpResponse:
    """The page for a fault of the portal's own: no database, no session, only the request's id."""
    context = {
        "request_id": getattr(request, "request_id", ""),
        "theme": request.COOKIES.get(settings.BERTH_THEME_COOKIE, ""),
    }
    return render(None, "500.html", context, status=500)
