"""The OpenAPI document as clients get it: the file of `docs/`, made of the views by `manage.py spectacular`.

Making it takes a second of CPU and more; `tests/api/test_schema.py` holds the file to the views.
"""

from __future__ import annotations

from functools import lru_cache

from django.http import HttpResponse
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request

from provisioning.service.environ import FILES

DOCUMENT = FILES / "docs" / "openapi.yaml"


class SchemaView(SpectacularAPIView):
    """The OpenAPI document: YAML, or JSON for those who accept it."""

    schema = None

    def get(self, request: Request) -> HttpResponse:
        renderer = request.accepted_renderer
        charset = f"; charset={renderer.charset}" if renderer.charset else ""
        return HttpResponse(
            document_as(renderer.format),
            content_type=f"{renderer.media_type}{charset}",
            headers={"Content-Disposition": f'inline; filename="Berth.{renderer.format}"'},
        )


@lru_cache(maxsize=2)
def document_as(form: str) -> bytes:
    """The document as `yaml` or `json`. The first who asks for JSON in a process has it made of the views."""
    if form == "yaml":
        return DOCUMENT.read_bytes()
    written: bytes = OpenApiJsonRenderer().render(SchemaGenerator().get_schema(request=None, public=True))
    return written
