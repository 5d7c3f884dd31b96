"""What is to go says so with each answer, and from when on it may be gone: RFC 9745 and RFC 8594."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import wraps
from typing import Any

from django.utils.http import http_date
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

HEADERS = (
    OpenApiParameter(
        "Deprecation",
        {"type": "string", "pattern": "^@[0-9]+$"},
        OpenApiParameter.HEADER,
        description="Since when it is to go, in seconds since 1970 (RFC 9745).",
        response=True,
    ),
    OpenApiParameter(
        "Sunset",
        str,
        OpenApiParameter.HEADER,
        description="From when on it may be gone (RFC 8594).",
        response=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Deprecated:
    """Since when an operation is to go, and until when it works at the least; days begin at 00:00 UTC."""

    since: date
    until: date

    def announced(self, method: Callable[..., Response]) -> Callable[..., Response]:
        @wraps(method)
        def answered(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
            response = method(view, request, *args, **kwargs)
            response["Deprecation"] = f"@{_seconds(self.since)}"
            response["Sunset"] = http_date(_seconds(self.until))
            return response

        return answered


def _seconds(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
