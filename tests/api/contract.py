"""What clients of REST may rely on, as lines: `python -m tests.api.contract > docs/released-api.txt`.

Written with each release. `test_contract.py` compares the document of today with it: what has been released
may grow, and nothing of it may go.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.yaml"
METHODS = ("get", "put", "post", "patch", "delete")


def offered(schema: dict[str, Any]) -> set[str]:
    """What is there: operations by name, parameters, answers, fields with their types, and codes."""
    return {
        *(line for path, method, each in operations(schema) for line in _operation(path, method, each)),
        *(line for name, each in schemas(schema) for line in _fields(name, each)),
    }


def asked(schema: dict[str, Any]) -> set[str]:
    """What a request has to have: parameters and fields without which it is refused."""
    found = set()
    for path, method, each in operations(schema):
        for parameter in each.get("parameters", ()):
            if parameter.get("required") and parameter["in"] != "path":
                found.add(f"{method.upper()} {path} needs {parameter['in']} {parameter['name']}")
    for name, each in schemas(schema):
        if name.endswith("Request"):
            found |= {f"{name} needs {field}" for field in each.get("required", ())}
    return found


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in schema["paths"].items():
        for method in METHODS:
            if method in methods:
                yield path, method, methods[method]


def schemas(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from schema["components"]["schemas"].items()


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    address = f"{method.upper()} {path}"
    yield f"{address} is {operation['operationId']}"
    for parameter in operation.get("parameters", ()):
        yield f"{address} takes {parameter['in']} {parameter['name']}"
    for status, answer in operation["responses"].items():
        for media, content in answer.get("content", {}).items():
            if status.startswith("2"):
                yield f"{address} answers {status} {media} {_type(content['schema'])}"
        if status.startswith("2") and not answer.get("content"):
            yield f"{address} answers {status}"


def _fields(name: str, schema: dict[str, Any]) -> Iterator[str]:
    for each in (schema, *schema.get("anyOf", ())):
        for value in each.get("enum", ()):
            yield f"{name} may be {value!r}"
    for field, each in schema.get("properties", {}).items():
        yield f"{name}.{field} is {_type(each)}"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[1])
    for several in ("oneOf", "anyOf", "allOf"):
        if several in schema:
            return " or ".join(sorted(_type(each) for each in schema[several]))
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        kind = " or ".join(sorted(kind))
    if schema.get("items"):
        kind += f" of {_type(schema['items'])}"
    return f"{kind} ({schema['format']})" if schema.get("format") else str(kind)


def text(schema: dict[str, Any]) -> str:
    """The file: what is offered, then what is asked, each sorted."""
    return "".join(f"{line}\n" for line in [*sorted(offered(schema)), *sorted(asked(schema))])


if __name__ == "__main__":
    print(text(yaml.safe_load(DOCUMENT.read_text())), end="")
