"""Serves the OpenAPI document from `docs/`, which `manage.py spectacular` generates.

Generating it takes more than a second of CPU; `tests/api/test_schema.py` keeps the file up to date.
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
    """The OpenAPI document as YAML, or as JSON for clients that accept it."""

    schema = None

    def get(self, request: Request) -> HttpResponse:
        renderer = request.accepted_renderer
        charset = f"; charset={renderer.charset}" if renderer.charset else ""
        return HttpResponse(
            render_document(renderer.format),
            content_type=f"{renderer.media_type}{charset}",
            headers={"Content-Disposition": f'inline; filename="Berth.{renderer.format}"'},
        )


@lru_cache(maxsize=2)
def render_document(form: str) -> bytes:
    """Return the document as `yaml` or `json`. JSON is generated once per process."""
    if form == "yaml":
        return DOCUMENT.read_bytes()
    written: bytes = OpenApiJsonRenderer().render(SchemaGenerator().get_schema(request=None, public=True))
    return written
