"""What is answered after too many wrong passwords."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _


def locked_out(request: HttpRequest, *_args: Any) -> HttpResponse:
    """The page after too many wrong passwords; django-axes calls it with more than is needed here."""
    minutes = max(1, round(float(settings.AXES_COOLOFF_TIME) * 60))
    context = {
        "message": _(
            "There were %(count)d wrong passwords for this name from here. "
            "Wait %(minutes)d minutes, then try again. Forgotten it? An administrator can give you a link "
            "for a new one."
        )
        % {"count": settings.AXES_FAILURE_LIMIT, "minutes": minutes},
        "retry_url": reverse("accounts:sign-in"),
        "request_id": getattr(request, "request_id", ""),
    }
    response = render(request, "429.html", context, status=429)
    response["Retry-After"] = str(minutes * 60)
    return response
