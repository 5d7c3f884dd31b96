"""Pages of the search over everything; templates are in templates/navigation/."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.htmx import partial_of
from portal.common.typed_requests import SignedInRequest
from portal.web.navigation import find


@require_safe
@never_cache
def search(request: SignedInRequest) -> HttpResponse:
    """Show the matches for `?q=`. The Ctrl-K dialog requests only the results."""
    text = request.GET.get("q", "")
    context = {"q": text, "groups": find.find(request.user, text)}
    return render(request, partial_of(request, "navigation/search.html", "results"), context)
