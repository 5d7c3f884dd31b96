"""Plots of a workspace's GPUs over its life: a part of its page, or a separate page without JavaScript."""

from __future__ import annotations

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
from portal.workspaces import selectors, use_over_time


@require_safe
@never_cache
def use(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Show what was measured of a workspace's GPUs since it was created."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    context = use_plots.page_context(
        use_over_time.plots_of(workspace, timezone.now()),
        name=workspace.name,
        url=reverse("workspaces:detail", args=[workspace.pk]),
        here=reverse("workspaces:use", args=[workspace.pk]),
        simulated=workspace.simulated,
    )
    return render(request, partial_of(request, "components/use_page.html", "plots"), context)
