"""How the OpenAPI document is made of the views: drf-spectacular's way, with names given by hand."""

from __future__ import annotations

from typing import Any

from drf_spectacular.drainage import warn
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter

from portal.web.openapi.operations import name_and_tag


class Schema(AutoSchema):
    """One operation. What has no name in `operations` is warned of, which `--fail-on-warn` refuses."""

    def get_operation_id(self) -> str:
        found = name_and_tag(self.method, self.path)
        if found is None:
            warn(f"{self.method} {self.path} has no name in portal/web/openapi/operations.py")
            return str(super().get_operation_id())
        return found[0]

    def get_override_parameters(self) -> list[Any]:
        """The orders of a list, beside what its method lists."""
        given = list(super().get_override_parameters())
        sorts = getattr(self.view, "sorts", None)
        if not sorts or getattr(self.view, "action", "") != "list":
            return given
        sort = OpenApiParameter(
            "sort",
            {"type": "string", "enum": list(sorts), "default": next(iter(sorts))},
            description="In which order; with `-` the greatest or latest first.",
        )
        return [*given, sort]

    def get_tags(self) -> list[str]:
        found = name_and_tag(self.method, self.path)
        return [found[1]] if found else super().get_tags()
