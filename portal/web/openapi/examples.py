"""Examples for request fields without an example in their serializer (`examples`, by field)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

COMMON_EXAMPLES: Mapping[str, Any] = {
    "amount": 2000,
    "amount_at_most": 4000,
    "checkpointed": True,
    "description": "For fine-tuning.",
    "ends_at": "2026-12-04T17:00:00Z",
    "environment": "vision-tools",
    "expected_hours": 8,
    "flavor": "gpu-small",
    "hours_at_most": 24,
    "lifetime_hours": 8,
    "name": "trial",
    "note": "Until the deadline.",
    "priority": 0,
    "resource": "gpu:h100",
    "starts_at": "2026-12-01T08:00:00Z",
    "team": "vision",
    "template": "jupyterlab",
    "until": "2026-12-04T17:00:00Z",
    "url": "https://git.example.org/anna/dotfiles.git",
    "username": "anna",
}

_TYPES: Mapping[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}


def add_examples(
    serializer: serializers.BaseSerializer[Any], properties: Mapping[str, dict[str, Any]]
) -> None:
    """Add examples to the schemas of a request's fields. Raises `KeyError` if an example has no field."""
    own: dict[str, Any] = {}
    for base in reversed(type(serializer).__mro__):
        own |= vars(base).get("examples", {})
    for name, example in own.items():
        properties[name]["examples"] = [example]
    for name, field in properties.items():
        if name not in own and name in COMMON_EXAMPLES and _fits(COMMON_EXAMPLES[name], field):
            field["examples"] = [COMMON_EXAMPLES[name]]


def _fits(example: Any, field: Mapping[str, Any]) -> bool:
    """Return whether a common example has the field's type. Fields with choices need no example."""
    types = field.get("type", [])
    names = [types] if isinstance(types, str) else types
    return "enum" not in field and any(isinstance(example, _TYPES.get(name, ())) for name in names)
