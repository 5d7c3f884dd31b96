"""Lets clients send the whole representation that GET returns in a PUT or PATCH.

Fields that the request cannot set are accepted while they have the value that GET returns now, and refused by
name otherwise. In a body with all fields that GET returns, those that change by themselves (`observed` of the
view) are ignored. If the body was read before the latest change, as `If-Match` shows, the response is 412.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common import etags
from portal.common.errors import NotFound
from portal.common.json_output import JsonRenderer

METHODS = ("PUT", "PATCH")
CHANGED_BY_EACH_WRITE = frozenset({"updated_at", "updated_by", "changed_at", "changed_by"})


def drop_read_only_fields(request: Request, serializer: serializers.Serializer[Any]) -> Any:
    """Return the request body without the read-only fields that it repeats.

    Raises `ValidationError` for read-only fields that the body changes. Returns the body of a PUT that
    creates an object unchanged.
    """
    data: Any = request.data
    if request.method not in METHODS or not _has_more(data, serializer):
        return data
    view: Any = request.parser_context["view"]
    try:
        current = view.current()
    except NotFound:
        return data
    shown = json.loads(JsonRenderer().render(current.data))
    is_whole = shown.keys() <= data.keys()
    observed = CHANGED_BY_EACH_WRITE | view.observed if is_whole else frozenset()
    errors: dict[str, Any] = {}
    writable = _without(data, serializer, shown, observed, "", errors)
    if errors and not _is_outdated(request, current):
        raise serializers.ValidationError(errors)
    return writable


def _is_outdated(request: Request, current: Response) -> bool:
    """Return whether `If-Match` lacks the current version, so that the service refuses the write."""
    expected = etags.expected_versions(request)
    return bool(expected) and current.has_header("ETag") and current["ETag"][3:-1] not in expected


def _has_more(data: Any, serializer: serializers.Serializer[Any]) -> bool:
    """Return whether the body has fields that the serializer lacks."""
    if not isinstance(data, Mapping):
        return False
    fields = serializer.fields
    return any(
        name not in fields
        or (isinstance(inner := fields[name], serializers.Serializer) and _has_more(value, inner))
        for name, value in data.items()
    )


def _without(
    data: Mapping[str, Any],
    serializer: serializers.Serializer[Any],
    shown: Any,
    observed: frozenset[str],
    path: str,
    errors: dict[str, Any],
) -> dict[str, Any]:
    current: Mapping[str, Any] = shown if isinstance(shown, Mapping) else {}
    writable = {}
    for name, value in data.items():
        field = serializer.fields.get(name)
        if field is None and name in current:
            if value != current[name] and name not in observed:
                errors[f"{path}{name}"] = [
                    _("Read-only, and not the current value. Read the resource again, or omit the field.")
                ]
            continue
        if isinstance(field, serializers.Serializer) and isinstance(value, Mapping):
            value = _without(value, field, current.get(name), observed, f"{path}{name}.", errors)
        writable[name] = value
    return writable
