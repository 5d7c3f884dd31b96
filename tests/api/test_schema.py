"""The OpenAPI document: current, complete, and true when many strange requests are made from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import yaml
from django.core.management import call_command
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from hypothesis import HealthCheck, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from portal.openapi.meanings import ELSE, FIELDS, OWN
from portal.openapi.operations import NAMES, TAGS
from tests.factories import make_token

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.yaml"
DOCUMENT = yaml.load(COMMITTED.read_text(), Loader=yaml.CSafeLoader)
RESPONSES = DOCUMENT["components"]["responses"]
OPERATIONS = [
    (path, method, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
# Streams do not end, which is what one waits for here; they have tests of their own.
schema = schemathesis.openapi.from_dict(DOCUMENT).exclude(path_regex="/stream$")


def test_the_committed_document_is_current(tmp_path: Path) -> None:
    fresh = tmp_path / "openapi.yaml"
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(fresh))
    assert fresh.read_text() == COMMITTED.read_text(), (
        "Run: manage.py spectacular --validate --fail-on-warn --file docs/openapi.yaml"
    )


def test_it_is_openapi_3_1_and_says_how_to_sign_in() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert set(DOCUMENT["components"]["securitySchemes"]) == {"token", "session"}


def test_it_is_valid_openapi_3_1() -> None:
    """By the meta-schema, and every default by the schema that it stands in."""
    found = [
        f"{list(each.absolute_path)}: {each.message}"
        for each in OpenAPIV31SpecValidator(DOCUMENT).iter_errors()
    ]
    assert found == []


def test_nothing_is_written_as_in_openapi_3_0() -> None:
    text = COMMITTED.read_text()
    assert "nullable: true" not in text
    assert "api.example.org" not in text
    page = DOCUMENT["components"]["schemas"]["PaginatedWorkspaceList"]
    assert page["properties"]["next"]["type"] == ["string", "null"]


def test_no_parameter_is_offered_that_is_refused() -> None:
    for path, method, operation in OPERATIONS:
        names = {each["name"] for each in operation.get("parameters", []) if each["in"] == "query"}
        assert "format" not in names, (path, method)


def test_every_operation_has_a_name_and_a_tag_given_by_hand() -> None:
    documented = {
        (method.upper(), path.removeprefix("/api/v1/")): (operation["operationId"], *operation["tags"])
        for path, method, operation in OPERATIONS
    }
    assert documented == NAMES  # None is made up, and none is left over.
    names = [name for name, _tag in NAMES.values()]
    assert sorted(names) == sorted(set(names))
    # What a generator of clients makes methods of: a verb and its object, also in snake_case.
    assert [name for name in names if not re.fullmatch(r"[a-z]+(?:[A-Z][a-z]+)+", name)] == []
    assert [tag["name"] for tag in DOCUMENT["tags"]] == list(TAGS)


UNTOLD = 318
"""Fields that may be without a meaning; it only goes down."""


def test_parameters_and_fields_have_meanings() -> None:
    parameters = [
        (operation["operationId"], each["name"])
        for _path, _method, operation in OPERATIONS
        for each in operation.get("parameters", [])
        if not each.get("description")
    ]
    assert parameters == []
    untold = [
        f"{schema}.{name}"
        for schema, definition in DOCUMENT["components"]["schemas"].items()
        for name, field in definition.get("properties", {}).items()
        if not field.get("description") and "$ref" not in field
    ]
    assert len(untold) <= UNTOLD, f"Write a help_text: {untold}"


def test_shared_meanings_are_of_fields_that_there_are() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    fields = {f"{schema}.{name}" for schema in schemas for name in schemas[schema].get("properties", {})}
    assert set(OWN) <= fields
    assert {f"{schema}.{name}" for name, left_out in ELSE.items() for schema in left_out} <= fields
    assert set(FIELDS) <= {field.partition(".")[2] for field in fields}


OAUTH = {"/api/v1/token-exchange"}
"""RFC 8693 and 6749 say how these answer: errors in JSON of their own, 400 for another content type."""


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS)
def test_each_operation_is_documented(path: str, method: str, operation: dict[str, Any]) -> None:
    assert path.startswith("/api/v1/")
    assert not path.endswith("/")
    assert operation["summary"]
    answers = operation["responses"]
    assert all("$ref" in answer or answer["description"] for answer in answers.values())
    problems = [answer for status, answer in answers.items() if status.startswith(("4", "5"))]
    assert len(problems) >= 2
    if path in OAUTH:
        assert all(list(answer["content"]) == ["application/json"] for answer in problems)
        assert "400" in operation["responses"]
        return
    defined = [answer["$ref"].rpartition("/")[2] for answer in problems]
    assert all(
        RESPONSES[name]["content"]
        == {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
        for name in defined
    )
    if method in ("post", "put") and "requestBody" in operation:
        assert "400" in operation["responses"]
        assert "415" in operation["responses"]
    # A resource is a name: every one can be set, and taking away what is not set is success.
    if "{" in path and not path.endswith("{resource}"):
        assert "404" in operation["responses"]


@pytest.mark.django_db
def test_it_is_served_with_and_without_a_slash(client: Any) -> None:
    for path in ("/api/v1/schema", "/api/v1/schema/"):
        response = client.get(path)
        assert response.status_code == 200
        assert yaml.safe_load(response.content)["openapi"] == "3.1.0"
    assert client.get("/api/v1/schema/", headers={"Accept": "application/json"}).json()["paths"]


@pytest.mark.django_db
def test_its_documentation_needs_no_inline_code_and_no_other_host(client: Any) -> None:
    page = client.get("/api/v1/docs/")

    assert page.status_code == 200
    html = page.content.decode()
    assert "<style" not in html
    assert "://" not in html
    assert html.count("<script") == html.count('<script src="/')
    script = client.get("/api/v1/docs/?script=")
    assert script["Content-Type"] == "application/javascript"
    assert 'url: "/api/v1/schema"' in script.content.decode().replace("\\u002D", "-")


@pytest.fixture(scope="module")
def application() -> Any:
    """The portal as a web server calls it, made once: its middleware reads every route and file."""
    return get_wsgi_application()


@pytest.fixture
def web(application: Any, olga: Any, team: Any, pool: Any) -> Iterator[Callable[..., Any]]:
    """The portal on the test's own connection, asked with an operator's token."""
    secret = make_token(olga)[1]
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield lambda case: case.call(
        app=application, base_url="http://localhost", headers={"Authorization": f"Bearer {secret}"}
    )
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@schema.parametrize()
@pytest.mark.django_db
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_strange_requests(case: schemathesis.Case, web: Callable[..., Any]) -> None:
    """As an operator, who may do most."""
    case.validate_response(
        web(case), checks=[not_a_server_error, content_type_conformance, response_schema_conformance]
    )
