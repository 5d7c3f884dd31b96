"""What belongs to the OpenAPI document as a whole: drf-spectacular calls it when all operations are there."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from portal.common.problem_serializers import schemas
from portal.common.problems import CONTENT_TYPE
from portal.web.openapi.descriptions import describe
from portal.web.openapi.tags import TAGS

_RETRY_AFTER = {
    "description": "After how many seconds it may be tried again.",
    "schema": {"type": "integer", "minimum": 1},
}
_POLICY = {
    "description": 'Rate limit of the caller: `"user";q=3000;w=60` is 3000 requests in 60 seconds.',
    "schema": {"type": "string"},
}
_AUTHENTICATE = {
    "description": "How to prove who one is (RFC 9110).",
    "schema": {"type": "string"},
}
PROBLEMS: dict[str, str] = {
    "400": "The request is not valid; `errors` says where.",
    "401": "No token, or one that is unknown, expired or revoked.",
    "403": "The token lacks a scope, or its user may not.",
    "404": "Not found, or not visible to the caller.",
    "409": "Not in the present state, or a name is taken, or the idempotency key came with another request.",
    "412": "It has changed since the answer that had the tag in `If-Match`.",
    "413": "The body, or what is sent with it, is too large.",
    "415": "The body is no `application/json`.",
    "422": "No pool can ever run this; `reasons` says why for each node.",
    "429": "Too many requests, or too many event streams at once.",
    "503": "A part does not answer just now.",
}
"""What each status of an error means, wherever it is answered."""
_HEADERS = {
    "401": {"WWW-Authenticate": _AUTHENTICATE},
    "429": {"Retry-After": _RETRY_AFTER, "RateLimit-Policy": _POLICY},
    "503": {"Retry-After": _RETRY_AFTER},
}
ANSWERS = {
    "200": "Done; this is what was asked for.",
    "201": "Made; this is it.",
    "202": "Taken; it goes on, and this is how far it is.",
    "204": "Done; there is nothing to say.",
}


def complete(result: dict[str, Any], **_of_the_generator: Any) -> dict[str, Any]:
    """Say what tags, answers and fields mean; have each problem defined once, and referenced."""
    result["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    components = result["components"]
    components["schemas"] |= schemas()
    components["schemas"] = dict(sorted(components["schemas"].items()))
    _may_be_anything(components["schemas"])
    _list_choices_once(components["schemas"])
    describe(result)
    used: set[str] = set()
    for answers in _answers(result):
        for status, answer in answers.items():
            if CONTENT_TYPE in answer.get("content", {}):
                answers[status] = {"$ref": f"#/components/responses/{_name(status)}"}
                used.add(status)
            elif not answer.get("description"):
                answer["description"] = ANSWERS.get(status) or HTTPStatus(int(status)).phrase
    components["responses"] = {_name(status): _problem(status) for status in sorted(used)}
    return result


def _may_be_anything(schemas: dict[str, Any]) -> None:
    """What may be any JSON may be null without being told so: as one of two it would be null in two ways."""
    for definition in schemas.values():
        for field in definition.get("properties", {}).values():
            if {} in field.get("oneOf", ()):
                del field["oneOf"]


def _list_choices_once(schemas: dict[str, Any]) -> None:
    """The schema of an enum lists its values: a field that references it does not repeat the list."""
    for definition in schemas.values():
        for field in definition.get("properties", {}).values():
            if "enum" not in field and "description" in field:
                field["description"] = field["description"].partition("\n\n* `")[0]


def _answers(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in result["paths"].values():
        for operation in methods.values():
            yield operation["responses"]


def _name(status: str) -> str:
    """`NotFound` for 404."""
    return HTTPStatus(int(status)).phrase.title().replace(" ", "")


def _problem(status: str) -> dict[str, Any]:
    headers = {"headers": _HEADERS[status]} if status in _HEADERS else {}
    return {
        "description": PROBLEMS[status],
        **headers,
        "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
