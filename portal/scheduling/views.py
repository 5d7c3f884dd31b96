"""The queue page. Its context is documented in templates/scheduling/queue.html."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.htmx import partial_of
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.scheduling import selectors as selectors
from portal.scheduling.models import QueueState

ROWS_PER_PAGE = 50


@require_safe
@never_cache
def queue(request: SignedInRequest) -> HttpResponse:
    """Show all pending workspaces in order to every user; names only of those that the user may see."""
    team = strip_nul(request.GET.get("team", ""))[:40]
    reason = strip_nul(request.GET.get("reason", ""))[:60]
    rows = selectors.filtered(selectors.waiting(), team=team, reason=reason)
    page = Paginator(rows, ROWS_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "entries": selectors.entries(request.user, list(page.object_list)),
        "preempting": selectors.preempting(request.user),
        "team": team,
        "teams": selectors.teams_waiting(),
        "reason": reason,
        "reasons": selectors.waiting_by_reason(),
        "state": QueueState.objects.filter(pk=1).first(),
    }
    return render(request, partial_of(request, "scheduling/queue.html", "list"), context)
