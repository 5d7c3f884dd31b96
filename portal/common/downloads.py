"""Responses that a browser saves as a file."""

from __future__ import annotations

from django.http import HttpResponse
from django.utils.http import content_disposition_header


def text_file(text: str, name: str) -> HttpResponse:
    """Return the text as a file in UTF-8. The name may contain any characters.

    `SecurityMiddleware` adds `X-Content-Type-Options: nosniff`, so that no browser renders the file as a
    page.
    """
    answer = HttpResponse(text, content_type="text/plain; charset=utf-8")
    answer["Content-Disposition"] = content_disposition_header(as_attachment=True, filename=name)
    return answer
