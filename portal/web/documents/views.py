"""Pages of the documentation, for all signed-in users; templates are in templates/documents/."""

from __future__ import annotations

from django.http import Http404, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_cache_control
from django.views.decorators.http import require_safe

from portal.common.htmx import partial_of
from portal.common.typed_requests import SignedInRequest
from portal.web.documents import presenters, search
from portal.web.documents.library import CONTENT_TYPES, DECISIONS, documents, files


@require_safe
def overview(request: SignedInRequest) -> HttpResponse:
    """List all documents by kind."""
    return render(request, "documents/overview.html", {"kinds": presenters.kinds()})


@require_safe
def page(request: SignedInRequest, name: str) -> HttpResponse:
    """Show a document."""
    if (document := documents().get(name)) is None:
        raise Http404
    return render(request, "documents/page.html", {"page": presenters.page(document)})


@require_safe
def decision(request: SignedInRequest, name: str) -> HttpResponse:
    """Show a decision."""
    return page(request, f"{DECISIONS}{name}")


@require_safe
def find(request: SignedInRequest) -> HttpResponse:
    """Show search results."""
    query = request.GET.get("q", "").strip()[: search.MAX_QUERY_CHARACTERS]
    results = search.index().search(query) if query else []
    context = {"query": query, "found": results, "kinds": presenters.kinds() if query and not results else ()}
    return render(request, partial_of(request, "documents/search.html", "found"), context)


@require_safe
def file(_request: SignedInRequest, path: str) -> HttpResponse:
    """Return an image or a linked file of a document. Only files in `files()` are served."""
    if (content_path := files().get(path)) is None:
        raise Http404
    response = HttpResponse(content_path.read_bytes(), content_type=CONTENT_TYPES[content_path.suffix])
    patch_cache_control(response, private=True, max_age=600)
    return response
