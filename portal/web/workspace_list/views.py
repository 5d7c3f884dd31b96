"""The table of workspaces and its export; templates are in templates/workspace_list/."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common import keyset
from portal.common.htmx import partial_of, requests_element
from portal.common.typed_requests import SignedInRequest
from portal.scheduling import moves
from portal.web.workspace_list import presenters
from portal.web.workspace_list.selectors import selection_of


@require_safe
@never_cache
def listing(request: SignedInRequest) -> HttpResponse:
    """Show a page of the workspaces that the user may see and that match the URL's filters."""
    selection = selection_of(request.user, request.GET)
    cursor = request.GET.get("cursor", "")
    page = selection.page(cursor)
    rows = presenters.rows(request.user, page.rows)
    count = selection.count()
    fields = selection.order.fields
    context: dict[str, Any] = {
        "rows": rows,
        "cursor": cursor,
        "next": keyset.encode(page.next, fields) if page.next else "",
        "previous": keyset.encode(page.previous, fields) if page.previous else "",
        "filters": selection.filters,
        "order": selection.order,
        "columns": presenters.columns(selection.order),
        "count": count,
        "count_text": presenters.count_text(count),
        "all_label": presenters.all_label(count),
        "may_act": any(row.may_act for row in rows),
        "may_move": request.user.operates,
        "may_cancel_moves": request.user.operates and moves.count_in_progress() > 0,
    }
    if not requests_element(request, "list"):
        context |= {"options": presenters.options(request.user), "sorts": presenters.sorts()}
    return render(request, partial_of(request, "workspace_list/list.html", "list"), context)


@require_safe
@never_cache
def export(request: SignedInRequest) -> StreamingHttpResponse:
    """Stream all workspaces that match the URL's filters as CSV, in the URL's order."""
    selection = selection_of(request.user, request.GET)
    # Evaluate the filters before the response begins, so that invalid ones give an error response.
    selection.rows()
    answer = StreamingHttpResponse(presenters.csv_lines(selection), content_type="text/csv; charset=utf-8")
    day = timezone.localdate().isoformat()
    answer["Content-Disposition"] = f'attachment; filename="berth-workspaces-{day}.csv"'
    return answer
