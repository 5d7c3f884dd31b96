"""The queue page (templates/scheduling/queue.html), and the view that cancels a move."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.common.errors import StateConflict
from portal.common.htmx import partial_of, requests_element
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.models import User
from portal.scheduling import operator_moves, queue_groups, selectors
from portal.scheduling.models import QueueState
from portal.scheduling.queue_groups import GroupKey
from portal.scheduling.selectors import HandedOverRow
from portal.workspaces.selectors import workspace_by_id
from portal.workspaces.views import redirect_to_workspace

ROWS_PER_PAGE = 50
GROUPS_PER_PAGE = 20
MAX_KEY = 300


@require_safe
@never_cache
def queue(request: SignedInRequest) -> HttpResponse:
    """Show all pending workspaces by reason. Names are shown only of workspaces that the user may see."""
    team = strip_nul(request.GET.get("team", ""))[:40]
    reason = strip_nul(request.GET.get("reason", ""))[:MAX_KEY]
    # The key of a group of this page, or a code, to which the overview links.
    group_key = GroupKey.parse(reason)
    rows = selectors.filtered(selectors.waiting(), team=team, reason="" if group_key else reason)
    groups = queue_groups.members(request.user, rows)
    counts = {key: len(group.ids) for key, group in groups.items()}
    number = request.GET.get("page")
    if group_key is not None:
        ids = groups[group_key].ids if group_key in groups else []
        page: Any = Paginator(ids, ROWS_PER_PAGE).get_page(number)
        shown = {group_key: page.object_list} if ids else {}
    else:
        page = Paginator(list(groups), GROUPS_PER_PAGE).get_page(number)
        shown = {key: groups[key].shown for key in page.object_list}
    context: dict[str, Any] = {
        "one": group_key is not None,
        "group_key": str(group_key or ""),
        "page": page,
        "groups": queue_groups.groups(request.user, shown, counts),
        "total": sum(counts.values()),
        "preempting": selectors.preempting(request.user),
        "handed_over": [] if reason else _handed_over(request.user, team),
        "team": team,
        "reason": reason,
        "state": QueueState.objects.filter(pk=1).first(),
    }
    if not requests_element(request, "list"):
        context |= {"teams": selectors.teams_waiting(), "reasons": selectors.waiting_by_reason()}
    return render(request, partial_of(request, "scheduling/queue.html", "list"), context)


def _handed_over(actor: User, team: str) -> list[HandedOverRow]:
    """Return the workspaces that wait at engines, of all teams or of one."""
    rows = selectors.handed_over()
    rows = rows.filter(team__slug=team) if team else rows
    return selectors.by_engine(selectors.handed_over_rows(actor, list(rows)))


@require_http_methods(["GET", "HEAD", "POST"])
def cancel_move(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Cancel the move of a workspace. A GET, for example after a new sign-in, only redirects to its page."""
    workspace = workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        return redirect_to_workspace(workspace)
    try:
        operator_moves.cancel(actor=request.user, workspace_id=workspace_id)
    except StateConflict as error:
        messages.error(request, error.sentence)
    else:
        text = _("Move cancelled. %(name)s stays where it is.")
        messages.success(request, text % {"name": workspace.name})
    return redirect_to_workspace(workspace)
