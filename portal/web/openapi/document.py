"""Completes the OpenAPI document in a drf-spectacular hook, after all operations."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from portal.common.problem_serializers import schemas
from portal.common.problems import CONTENT_TYPE
from portal.web.openapi.descriptions import describe
from portal.web.openapi.tags import TAGS

_RETRY_AFTER = {
    "description": "Seconds to wait before a retry.",
    "schema": {"type": "integer", "minimum": 1},
}
_POLICY = {
    "description": 'Rate limit of the caller: `"user";q=3000;w=60` is 3000 requests in 60 seconds.',
    "schema": {"type": "string"},
}
_AUTHENTICATE = {
    "description": "Supported authentication schemes (RFC 9110).",
    "schema": {"type": "string"},
}
PROBLEMS: dict[str, str] = {
    "400": "The request is invalid. `errors` lists the fields.",
    "401": "The token is missing, unknown, expired or revoked.",
    "403": "The token lacks a scope, or its user lacks permission.",
    "404": "Not found, or not visible to the caller.",
    "409": (
        "The current state does not allow it, the name is already in use, or the idempotency key was used "
        "for another request."
    ),
    "412": "The resource has changed since the `ETag` in `If-Match`.",
    "413": "The request body or an attached file is too large.",
    "415": "The body is not `application/json`.",
    "422": "No pool can ever run this. `reasons` has the reason for each node.",
    "429": "Too many requests, or too many event streams at once.",
    "503": "A component of the portal does not respond. Retry later.",
}
"""Meaning of each error status."""
_HEADERS = {
    "401": {"WWW-Authenticate": _AUTHENTICATE},
    "429": {"Retry-After": _RETRY_AFTER, "RateLimit-Policy": _POLICY},
    "503": {"Retry-After": _RETRY_AFTER},
}
ANSWERS = {
    "200": "Done. Returns the result.",
    "201": "Created. Returns the new resource.",
    "202": "Accepted. Returns the progress.",
    "204": "Done. No response body.",
}


def complete(result: dict[str, Any], **_of_the_generator: Any) -> dict[str, Any]:
    """Add descriptions of tags, responses and fields, and define each problem once."""
    result["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    components = result["components"]
    components["schemas"] |= schemas()
    components["schemas"] = dict(sorted(components["schemas"].items()))
    _mark_any_json(components["schemas"])
    _list_choices_once(components["schemas"])
    _require_characters(result)
    describe(result)
    used: set[str] = set()
    for answers in _response_maps(result):
        for status, answer in answers.items():
            if CONTENT_TYPE in answer.get("content", {}):
                answers[status] = {"$ref": f"#/components/responses/{_name(status)}"}
                used.add(status)
            elif not answer.get("description"):
                answer["description"] = ANSWERS.get(status) or HTTPStatus(int(status)).phrase
    components["responses"] = {_name(status): _problem(status) for status in sorted(used)}
    return result


def _mark_any_json(schemas: dict[str, Any]) -> None:
    """Simplify schemas that allow any JSON, because null would match two branches of `oneOf`."""
    for definition in schemas.values():
        for field in definition.get("properties", {}).values():
            if {} in field.get("oneOf", ()):
                del field["oneOf"]


def _list_choices_once(schemas: dict[str, Any]) -> None:
    """Remove lists of choices from fields that reference an enum, because its schema has the list."""
    for definition in schemas.values():
        for field in definition.get("properties", {}).values():
            if "enum" not in field and "description" in field:
                field["description"] = field["description"].partition("\n\n* `")[0]


def _require_characters(result: dict[str, Any]) -> None:
    """Require at least one character in text parameters, except those in `ApiView.may_be_empty`."""
    for methods in result["paths"].values():
        for parameter in (item for operation in methods.values() for item in operation.get("parameters", ())):
            schema = parameter["schema"]
            if (
                parameter["in"] == "query"
                and schema.get("type") == "string"
                and not schema.keys() & {"enum", "format"}
            ):
                schema.setdefault("minLength", 1)


def _response_maps(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in result["paths"].values():
        for operation in methods.values():
            yield operation["responses"]


def _name(status: str) -> str:
    """Return the component name of a status, such as `NotFound` for 404."""
    return HTTPStatus(int(status)).phrase.title().replace(" ", "")


def _problem(status: str) -> dict[str, Any]:
    headers = {"headers": _HEADERS[status]} if status in _HEADERS else {}
    return {
        "description": PROBLEMS[status],
        **headers,
        "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
