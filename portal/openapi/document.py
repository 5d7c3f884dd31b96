"""What belongs to the OpenAPI document as a whole: drf-spectacular calls it when all operations are there."""

from __future__ import annotations

from typing import Any

from portal.openapi.operations import TAGS


def complete(result: dict[str, Any], **_of_the_generator: Any) -> dict[str, Any]:
    """Say what the tags mean."""
    result["tags"] = [{"name": name, "description": tag.description} for name, tag in TAGS.items()]
    return result
