"""The OpenAPI document as clients get it: the file of `docs/`, which is made of the views by `manage.py spectacular`.

Making it takes seconds of CPU; `tests/api/test_schema.py` holds the file to the views.
"""

from __future__ import annotations

import json
from functools import lru_cache

import yaml
from django.http import HttpResponse
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request

from provisioning.service.environ import FILES

DOCUMENT = FILES / "docs" / "openapi.yaml"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
    """The document as `yaml` or `json`. The first request for JSON in a process takes about a second."""
    written = DOCUMENT.read_bytes()
    if form == "yaml":
        return written
    return json.dumps(yaml.load(written, Loader=_Loader), ensure_ascii=False).encode()
