"""Plots of a workspace's use over its life: a part of its page, or a separate page without JavaScript."""

from __future__ import annotations

from urllib.parse import urlsplit
from uuid import UUID

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.htmx import partial_of
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory import use_plots
from portal.workspaces import selectors, usage_history, usage_plots
from portal.workspaces.models import Workspace

SPREAD_MS = 10_000
"""Maximum delay before pages reload their plots after an observation, so that not all do so at once."""


@require_safe
@never_cache
def use(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Show the measured use of a workspace. `?span=hour|day|week|all`."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    span = usage_history.span_of(request.GET.get("span", ""))
    usage = usage_history.usage_of(workspace, span, timezone.now())
    context = use_plots.page_context(
        usage_plots.plots_of(workspace, usage),
        name=workspace.name,
        url=reverse("workspaces:detail", args=[workspace.pk]),
        here=reverse("workspaces:use", args=[workspace.pk]),
        simulated=workspace.simulated,
        span=span,
        spans=usage_plots.SPAN_TEXTS,
        live_delay_ms=workspace.pk.int % SPREAD_MS,
        shown_at=_shown_at(request, workspace),
    )
    return render(request, partial_of(request, "components/use_page.html", "plots"), context)


def _shown_at(request: SignedInRequest, workspace: Workspace) -> str:
    """Return the path of the page that shows the plots: the workspace's own, or the separate one."""
    own_path = reverse("workspaces:detail", args=[workspace.pk])
    current_path = urlsplit(request.htmx.current_url_abs_path or "").path
    return own_path if current_path == own_path else reverse("workspaces:use", args=[workspace.pk])
