"""Pages of the inbox; templates are in templates/inbox/."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.htmx import partial_of
from portal.common.typed_requests import SignedInRequest
from portal.web.inbox import selectors
from portal.web.inbox.items import ItemKind

ROWS_PER_PAGE = 50


@require_safe
@never_cache
def inbox(request: SignedInRequest) -> HttpResponse:
    """Show all items for the user: urgent items first, then the oldest."""
    kind = request.GET.get("kind", "")
    if kind not in ItemKind.values:
        kind = ""
    counted = selectors.counts(request.user)
    page = Paginator(selectors.keys(request.user, [kind] if kind else []), ROWS_PER_PAGE).get_page(
        request.GET.get("page")
    )
    context = {
        "items": selectors.items(request.user, list(page.object_list)),
        "page": page,
        "kind": kind,
        "kinds": [
            (item_kind.value, item_kind.label, counted[item_kind])
            for item_kind in ItemKind
            if counted[item_kind] or item_kind == kind
        ],
        "waiting": sum(counted.values()),
    }
    return render(request, partial_of(request, "inbox/inbox.html", "live"), context)


@require_safe
@never_cache
def badge(request: SignedInRequest) -> HttpResponse:
    """Show the number in the menu, for pages that stay open."""
    return render(request, "inbox/badges.html", {"waiting": selectors.count(request.user)})
