"""A JSON client of the API, and checks of responses against the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
import yaml
from django.test import Client

from portal.common.events import live
from tests.api.streaming import Hints

# Fixtures: a listening portal and a Redis.
from tests.cli.conftest import server  # noqa: F401
from tests.workspaces.gateway.gateway_support import redis, redis_url  # noqa: F401

if TYPE_CHECKING:
    from portal.people.accounts.models import User

V1 = "/api/v1/"


class Api:
    """`api.post("workspaces", {...})`; the answer has `.json()`."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(path if path.startswith(("/", "http")) else V1 + path, headers=headers)

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        answer = self.client.generic(
            method,
            V1 + path,
            "" if body is None else json.dumps(body),
            content_type="application/json",
            headers=headers,
        )
        if answer.status_code == 202 or (answer.status_code == 201 and "Retry-After" in answer):
            # A running operation names its URL, as the document declares.
            assert answer["Location"].startswith(V1)
            assert {"Location", "Retry-After"} >= headers_of(answer) >= {"Location"}
            assert ("Retry-After" in answer) == ("Retry-After" in headers_of(answer))
        return answer

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.send("POST", path, body, **headers)

    def put(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.send("PUT", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self.send("DELETE", path, **headers)


@pytest.fixture
def api(with_token: Callable[..., Client]) -> Callable[..., Api]:
    """`api(alice)`, `api(alice, "workspaces:read")`; `api(None)` sends no token."""

    def as_program(user: User | None, *scopes: str) -> Api:
        return Api(with_token(user, *scopes) if user is not None else Client())

    return as_program


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> Hints:
    fake = Hints()
    monkeypatch.setattr(live, "hints", fake)
    return fake


DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.yaml"


@cache
def document() -> Any:
    """The committed OpenAPI document."""
    return yaml.load(DOCUMENT.read_text(), Loader=yaml.CSafeLoader)


def headers_of(answer: Any) -> set[str]:
    """The headers that the document names for this response."""
    request = answer.wsgi_request
    route = "/" + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", request.resolver_match.route).rstrip("/")
    operation = document()["paths"][route][request.method.lower()]
    return set(operation["responses"][str(answer.status_code)].get("headers", {}))


@cache
def _problems() -> Any:
    """The schema of problems in the document, closed: unknown fields fail."""
    schemas = document()["components"]["schemas"]
    closed = {**schemas["Problem"], "additionalProperties": False}
    return jsonschema_rs.validator_for(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$ref": "#/components/schemas/Problem",
            "components": {"schemas": {**schemas, "Problem": closed}},
        },
        validate_formats=True,
    )


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """Check a problem response and return its document."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    _problems().validate(body)
    assert body["status"] == status
    assert body["code"] == code
    assert body["type"] == f"urn:berth:problem:{code}"
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == response["X-Request-Id"]
    return body
