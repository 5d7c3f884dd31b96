"""Adds missing descriptions of schemas, common fields and path parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from portal.web.openapi.common_fields import COMMON_FIELDS

_SLUG_OWNERS: Mapping[str, str] = {
    "cohorts": "cohort",
    "environments": "software environment",
    "flavors": "flavor",
    "ledgers": "team",
    "budgets": "team",
    "pools": "pool",
    "teams": "team",
    "templates": "template",
}
_PATH_PARAMETERS: Mapping[str, str] = {
    "idp": "Id of the sign-in provider.",
    "name": "Name of the secret.",
    "number": "Number of the version, from 1.",
    "resource": "Resource, such as `gpu:h100`.",
}


def describe(document: dict[str, Any]) -> None:
    """Add the missing descriptions to schemas, fields and path parameters."""
    schemas = document["components"]["schemas"]
    operations = {schema: operation_id for operation_id, schema in _request_schemas(document)}
    for schema, definition in schemas.items():
        if not definition.get("description") and "enum" not in definition:
            definition["description"] = _schema_description(schema, operations)
        for name, field in definition.get("properties", {}).items():
            if not field.get("description") and name in COMMON_FIELDS:
                if "$ref" in field:
                    field["allOf"] = [{"$ref": field.pop("$ref")}]
                field["description"] = COMMON_FIELDS[name]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path" and not parameter.get("description"):
                    parameter["description"] = _path_parameter(path, parameter["name"])


def _schema_description(schema: str, operations: Mapping[str, str]) -> str:
    """Return the description; empty if the serializer lacks a docstring, which a test reports."""
    if schema in operations:
        return f"Request body of `{operations[schema]}`."
    if schema.startswith("Paginated"):
        return "A page of results. Follow `next` until it is null."
    return "No value." if schema == "NullEnum" else ""


def _path_parameter(path: str, name: str) -> str:
    collection = path.partition(f"/{{{name}}}")[0].rpartition("/")[2]
    if name == "slug":
        return f"Slug of the {_SLUG_OWNERS[collection]}."
    if name == "username":
        return f"Username of the {'service account' if collection == 'service-accounts' else 'account'}."
    if name.endswith("_id"):
        noun = f"{collection[:-3]}y" if collection.endswith("ies") else collection.removesuffix("s")
        return f"Id of the {noun.replace('-', ' ').replace('gpu', 'GPU')}."
    return _PATH_PARAMETERS[name]


def _request_schemas(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield operation ids with the schema of their request body."""
    for methods in document["paths"].values():
        for operation in methods.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                yield operation["operationId"], content["schema"].get("$ref", "").rpartition("/")[2]
