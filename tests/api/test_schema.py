"""The OpenAPI document is current, complete and valid. `test_conformance.py` compares it with responses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from django.core.management import call_command
from openapi_spec_validator import OpenAPIV31SpecValidator

from portal import api
from portal.web.openapi.common_fields import COMMON_FIELDS
from portal.web.openapi.examples import COMMON_EXAMPLES
from portal.web.openapi.tags import TAGS
from tests.api.conftest import DOCUMENT as COMMITTED
from tests.api.conftest import document

DOCUMENT = document()
RESPONSES = DOCUMENT["components"]["responses"]
OPERATIONS = [
    (path, method, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]


@pytest.mark.slow("generates the whole document")
def test_committed_document_is_current(tmp_path: Path) -> None:
    fresh = tmp_path / "openapi.yaml"
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(fresh))
    assert fresh.read_text() == COMMITTED.read_text(), (
        "Run: manage.py spectacular --validate --fail-on-warn --file docs/openapi.yaml"
    )


def test_document_is_openapi_3_1_with_security_schemes() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert set(DOCUMENT["components"]["securitySchemes"]) == {"token", "session"}


def test_document_is_valid_openapi_3_1() -> None:
    """By the meta-schema; each default by its own schema."""
    found = [
        f"{list(error.absolute_path)}: {error.message}"
        for error in OpenAPIV31SpecValidator(DOCUMENT).iter_errors()
    ]
    assert found == []


def test_no_openapi_3_0_syntax() -> None:
    text = COMMITTED.read_text()
    assert "nullable: true" not in text
    assert "api.example.org" not in text
    page = DOCUMENT["components"]["schemas"]["PaginatedWorkspaceList"]
    assert page["properties"]["next"]["type"] == ["string", "null"]


def test_documented_parameters_are_accepted() -> None:
    for path, method, operation in OPERATIONS:
        names = {each["name"] for each in operation.get("parameters", []) if each["in"] == "query"}
        assert "format" not in names, (path, method)


def test_views_name_exactly_their_operations() -> None:
    routed: dict[Any, set[str]] = {}
    for pattern in api.v1:
        view: Any = pattern.callback
        if view.initkwargs.get("schema", view.cls.schema) is None:
            continue
        methods = [name for name in view.cls.http_method_names if hasattr(view.cls, name)]
        actions = view.actions.values() if hasattr(view, "actions") else {*methods} - {"head", "options"}
        routed.setdefault(view.cls, set()).update(actions)

    assert {view: set(view.operation_ids) for view in routed} == routed


def test_operations_have_unique_names_and_one_tag() -> None:
    names = [operation["operationId"] for _path, _method, operation in OPERATIONS]
    assert sorted(names) == sorted(set(names))
    # Client generators create methods from them: a verb and its object.
    assert [name for name in names if not re.fullmatch(r"[a-z]+(?:[A-Z][a-z]+)+", name)] == []
    assert all(len(operation["tags"]) == 1 for _path, _method, operation in OPERATIONS)
    assert {operation["tags"][0] for _path, _method, operation in OPERATIONS} == set(TAGS)
    assert [tag["name"] for tag in DOCUMENT["tags"]] == list(TAGS)


OF_METHODS = {"PUT": "set", "PATCH": "update", "DELETE": "delete"}
OF_PATHS = {"approve", "cancel", "delete", "deny", "redeliver", "restore", "revoke", "start", "stop"}
NO_VERBS = {"close", "end", "refuse", "remove", "withdraw"}


def test_each_verb_has_one_meaning() -> None:
    """As in the table of docs/api.md: method or last path segment."""
    wrong = []
    for path, lower, operation in OPERATIONS:
        method, name, last = lower.upper(), operation["operationId"], path.rpartition("/")[2]
        verb = re.match("[a-z]+", name)[0]  # type: ignore[index]
        expected = OF_METHODS.get(method) or (last if method == "POST" and last in OF_PATHS else verb)
        if verb != expected or NO_VERBS & {verb, *last.split("-")}:
            wrong.append(f"{method} {path}: {name}")
    assert wrong == []


def test_parameters_schemas_and_fields_have_descriptions() -> None:
    untold = [
        f"{operation['operationId']}: {each['name']}"
        for _path, _method, operation in OPERATIONS
        for each in operation.get("parameters", [])
        if not each.get("description")
    ]
    for schema, definition in DOCUMENT["components"]["schemas"].items():
        if not definition.get("description") and "enum" not in definition:
            untold.append(schema)
        fields = definition.get("properties", {})
        untold += [f"{schema}.{name}" for name in fields if not fields[name].get("description")]
    assert untold == [], "Write a help_text for the field, or a docstring for the serializer"


def test_examples_match_their_schemas() -> None:
    """Including format and pattern, as users copy examples."""
    shown = [
        (f"{schema}.{name}", field, example)
        for schema, definition in DOCUMENT["components"]["schemas"].items()
        for name, field in definition.get("properties", {}).items()
        for example in field.get("examples", ())
    ]
    assert len(shown) > 150
    wrong = [
        (place, example)
        for place, field, example in shown
        if not jsonschema_rs.validator_for(
            {**field, "components": DOCUMENT["components"]}, validate_formats=True
        ).is_valid(example)
    ]
    assert wrong == []
    shown_names = [place.partition(".")[2] for place, _field, _example in shown]
    assert [name for name in COMMON_EXAMPLES if shown_names.count(name) < 2] == []


def test_bodies_show_an_example() -> None:
    without = []
    for _path, _method, operation in OPERATIONS:
        for content in operation.get("requestBody", {}).get("content", {}).values():
            name = content["schema"].get("$ref", "").rpartition("/")[2]
            fields = DOCUMENT["components"]["schemas"].get(name, {}).get("properties", {})
            # Enumerations and booleans need no example.
            open_ones = [each for each in fields.values() if "type" in each and each["type"] != "boolean"]
            if open_ones and "examples" not in content and not any("examples" in one for one in open_ones):
                without.append(operation["operationId"])
    assert without == [], "Write `examples` in the serializer"


def test_common_fields_are_common() -> None:
    fields = [
        name for each in DOCUMENT["components"]["schemas"].values() for name in each.get("properties", {})
    ]
    assert [name for name in COMMON_FIELDS if fields.count(name) < 4] == []


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
    # Every name can be set, and deleting an unset one succeeds.
    if "{" in path and not path.endswith("{resource}"):
        assert "404" in operation["responses"]


@pytest.mark.django_db
def test_document_is_served_with_and_without_a_slash(client: Any) -> None:
    for path in ("/api/v1/schema", "/api/v1/schema/"):
        response = client.get(path)
        assert response.status_code == 200
        assert response["Content-Type"] == "application/vnd.oai.openapi; charset=utf-8"
        assert response.content == COMMITTED.read_bytes()
    response = client.get("/api/v1/schema/", headers={"Accept": "application/json"})
    assert response["Content-Type"] == "application/json"
    assert response.json() == DOCUMENT
    assert client.get("/api/v1/schema", headers={"Accept": "text/html"}).status_code == 406


@pytest.mark.django_db
def test_documentation_page_has_no_inline_code_and_no_external_hosts(client: Any) -> None:
    page = client.get("/api/v1/docs/")

    assert page.status_code == 200
    html = page.content.decode()
    assert "<style" not in html
    assert "://" not in html
    assert html.count("<script") == html.count('<script src="/')
    script = client.get("/api/v1/docs/?script=")
    assert script["Content-Type"] == "application/javascript"
    assert 'url: "/api/v1/schema"' in script.content.decode().replace("\\u002D", "-")
