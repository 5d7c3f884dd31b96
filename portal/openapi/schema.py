"""How the OpenAPI document is made of the views: drf-spectacular's way, with names given by hand."""

from __future__ import annotations

from drf_spectacular.drainage import warn
from drf_spectacular.openapi import AutoSchema

from portal.openapi.operations import name_and_tag


class Schema(AutoSchema):
    """One operation. What has no name in `operations` is warned of, which `--fail-on-warn` refuses."""

    def get_operation_id(self) -> str:
        found = name_and_tag(self.method, self.path)
        if found is None:
            warn(f"{self.method} {self.path} has no name in portal/openapi/operations.py")
            return str(super().get_operation_id())
        return found[0]

    def get_tags(self) -> list[str]:
        found = name_and_tag(self.method, self.path)
        return [found[1]] if found else super().get_tags()
