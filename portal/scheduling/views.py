"""The queue page. Its context is documented in templates/scheduling/queue.html."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.htmx import partial_of
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.scheduling import queue_groups, selectors
from portal.scheduling.models import QueueState
from portal.scheduling.queue_groups import GroupKey

ROWS_PER_PAGE = 50
GROUPS_PER_PAGE = 20
MAX_KEY = 300


@require_safe
@never_cache
def queue(request: SignedInRequest) -> HttpResponse:
    """Show all pending workspaces by reason to every user; names only of those that the user may see."""
    team = strip_nul(request.GET.get("team", ""))[:40]
    rows = selectors.waiting()
    if team:
        rows = rows.filter(team__slug=team)
    key = GroupKey.parse(strip_nul(request.GET.get("reason", ""))[:MAX_KEY])
    number = request.GET.get("page")
    context: dict[str, Any] = {"one": key is not None, "group_key": str(key or "")}
    if key is not None:
        page: Any = Paginator(queue_groups.of_key(rows, key), ROWS_PER_PAGE).get_page(number)
        group = queue_groups.group_of(request.user, key, page.object_list, page.paginator.count)
        context["groups"] = [group] if group is not None else []
    else:
        page = Paginator(queue_groups.groups(request.user, rows), GROUPS_PER_PAGE).get_page(number)
        context["groups"] = page.object_list
    context |= {
        "page": page,
        "total": rows.count(),
        "preempting": selectors.preempting(request.user),
        "team": team,
        "teams": selectors.teams_waiting(),
        "state": QueueState.objects.filter(pk=1).first(),
    }
    return render(request, partial_of(request, "scheduling/queue.html", "list"), context)
