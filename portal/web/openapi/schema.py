"""The drf-spectacular schema of an operation."""

from __future__ import annotations

from typing import Any

from drf_spectacular.drainage import warn
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import force_instance
from drf_spectacular.utils import OpenApiParameter

from portal.web.openapi.examples import add_examples
from portal.web.openapi.tags import TAGS


class Schema(AutoSchema):
    """One operation, with the name and the tag stated by its view.

    Warns about an operation without them, which `--fail-on-warn` turns into an error.
    """

    def get_operation_id(self) -> str:
        action = getattr(self.view, "action", None) or self.method.lower()
        operation_id: str | None = getattr(self.view, "operation_ids", {}).get(action)
        if operation_id is None:
            warn(f'no name for {self.method} {self.path}: add "{action}" to `operation_ids` of its view')
            return str(super().get_operation_id())
        return operation_id

    def get_tags(self) -> list[str]:
        tag: str = getattr(self.view, "tag", "")
        if tag not in TAGS:
            warn(f"no tag for {self.method} {self.path}: set `tag` of its view to one of {', '.join(TAGS)}")
            return super().get_tags()
        return [tag]

    def get_override_parameters(self) -> list[Any]:
        """Return the parameters of the operation, with `sort` for lists that support it."""
        parameters = list(super().get_override_parameters())
        sorts = getattr(self.view, "sorts", None)
        if not sorts or getattr(self.view, "action", "") != "list":
            return parameters
        sort = OpenApiParameter(
            "sort",
            {"type": "string", "enum": list(sorts), "default": next(iter(sorts))},
            description="Sort order. `-` sorts descending.",
        )
        return [*parameters, sort]

    def _map_basic_serializer(self, serializer: Any, direction: str) -> dict[str, Any]:
        schema: dict[str, Any] = super()._map_basic_serializer(serializer, direction)
        if direction == "request":
            add_examples(force_instance(serializer), schema.get("properties", {}))
        return schema
