"""Problem documents (RFC 9457) for all errors of the API."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.exceptions import ValidationError as DjangoValidationError
from django.http import Http404, HttpRequest, JsonResponse
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import set_rollback

from portal.common.errors import PortalError, TooMany, Unavailable

CONTENT_TYPE = "application/problem+json"
log = logging.getLogger(__name__)

_TITLES = {
    400: "The request is not valid",
    401: "Not signed in",
    403: "Permission denied",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    409: "Conflict",
    412: "Changed since it was read",
    413: "The request is too large",
    415: "Unsupported media type",
    429: "Too many requests",
    500: "Internal error",
    503: "Temporarily unavailable",
}


def document(
    status: int, code: str, detail: str, request: Any = None, *, title: str = "", **extra: Any
) -> dict[str, Any]:
    """Return a problem document: members of RFC 9457, and `code`, `next_action`, `request_id`, `errors`."""
    body: dict[str, Any] = {
        "type": f"urn:berth:problem:{code}",
        "title": title or _TITLES.get(status, "Error"),
        "status": status,
        "code": code,
        "detail": detail,
        **extra,
    }
    if request is not None:
        body["instance"] = request.path
        request_id = getattr(getattr(request, "_request", request), "request_id", "")
        if request_id:
            body["request_id"] = request_id
    return body


def document_of(error: PortalError, request: Any = None) -> dict[str, Any]:
    """Return the problem document of a service error."""
    extra: dict[str, Any] = dict(error.extra)
    if "errors" in extra:
        extra["errors"] = error.field_errors
    if error.next_action:
        extra["next_action"] = error.next_action
    extra["reason"] = error.reason.as_json()
    return document(error.status, error.code, error.message, request, title=error.title, **extra)


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return a problem for every exception; for unknown ones, a 500 without details. A handler for DRF."""
    request = context.get("request")
    if isinstance(error, PortalError):
        set_rollback()
        return _response(document_of(error, request), retry_after(error))
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    elif isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    elif isinstance(error, DjangoValidationError):
        error = exceptions.ValidationError(
            error.message_dict if hasattr(error, "error_dict") else error.messages
        )
    if not isinstance(error, exceptions.APIException):
        return None
    set_rollback()
    headers: dict[str, str] = {}
    extra: dict[str, Any] = {}
    if isinstance(error, exceptions.ValidationError):
        code, detail = "invalid", "One or more fields are not valid."
        extra["errors"] = _by_field(error.detail)
    else:
        code, detail = str(error.default_code), str(error.detail)
    auth_header = getattr(error, "auth_header", None)
    if auth_header:
        headers["WWW-Authenticate"] = auth_header
    wait = getattr(error, "wait", None)
    if wait:
        headers["Retry-After"] = str(math.ceil(wait))
    return _response(document(error.status_code, code, detail, request, **extra), headers)


def _by_field(detail: Any) -> dict[str, list[str]]:
    """Return DRF's validation errors as messages by field name.

    Nested fields are named `git.url`, and `rules.0.claim` in lists of objects. Errors of a plain list item
    belong to the list. Errors of the whole body have an empty name.
    """
    errors: dict[str, list[str]] = {}

    def gather(item: Any, name: str) -> None:
        if isinstance(item, Mapping):
            for key, inner in item.items():
                plain_value = isinstance(key, int) and not isinstance(inner, Mapping)
                of_itself = key == api_settings.NON_FIELD_ERRORS_KEY
                gather(inner, name if plain_value or of_itself else f"{name}.{key}" if name else str(key))
        elif isinstance(item, list):
            for at, inner in enumerate(item):
                gather(inner, f"{name}.{at}".lstrip(".") if isinstance(inner, Mapping | list) else name)
        else:
            errors.setdefault(name, []).append(str(item))

    gather(detail, "")
    return errors


def retry_after(error: PortalError) -> dict[str, str]:
    """Return the `Retry-After` header of a temporary error, or no header."""
    if isinstance(error, TooMany | Unavailable):
        return {"Retry-After": str(error.retry_after_s)}
    return {}


def _response(body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    response = Response(body, status=body["status"], headers=headers)
    response.content_type = CONTENT_TYPE
    return response


def plain_response(status: int, code: str, detail: str, request: HttpRequest, **extra: Any) -> JsonResponse:
    """Return a problem response outside of DRF: middleware, handlers, agent endpoints."""
    return JsonResponse(
        document(status, code, detail, request, **extra), status=status, content_type=CONTENT_TYPE
    )
