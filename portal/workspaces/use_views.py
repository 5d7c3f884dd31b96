"""Plots of a workspace's GPUs over its life: a part of its page, or a separate page without JavaScript."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.htmx import partial_of
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory import use_history, use_plots
from portal.fleet.inventory.models import AllocatedDevice
from portal.fleet.inventory.use_plots import UsePlots
from portal.workspaces import selectors
from portal.workspaces.models import Workspace
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind


@require_safe
@never_cache
def use(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Show what was measured of a workspace's GPUs since it was created, for at most 30 days."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    context = use_plots.page_context(
        _plots(workspace),
        name=workspace.name,
        url=reverse("workspaces:detail", args=[workspace.pk]),
        here=reverse("workspaces:use", args=[workspace.pk]),
        simulated=workspace.simulated,
    )
    return render(request, partial_of(request, "components/use_page.html", "charts"), context)


def _plots(workspace: Workspace) -> UsePlots:
    """Return the plots of utilisation and memory, with notes about what is not stored. Three queries."""
    rows = AllocatedDevice.objects.filter(allocation__workspace=workspace)
    latest = list(
        rows.filter(allocation__generation=workspace.generation).values_list(
            "milli", "device__kind", "device__memory_mib"
        )
    )
    stored = _(
        "CPU and memory are not stored over time. Details shows the last values of a running workspace."
    )
    if not latest and not rows.exists():
        return UsePlots((), (_("The workspace has had no GPU."), stored))
    whole = [
        memory_mib
        for milli, kind, memory_mib in latest
        if milli == WHOLE_DEVICE_MILLI and kind == DeviceKind.GPU.value
    ]
    window = use_history.window_since(workspace.created_at, timezone.now())
    use = use_history.allocated_use(rows, window)
    found = use_plots.use_plots(None, use, window, total_mib=sum(whole), simulated=workspace.simulated)
    notes = [*found.notes, stored]
    if len(whole) < len(latest):
        notes.insert(0, _("Measurements of a shared GPU include its other users, and leave out GPU memory."))
    return UsePlots(found.plots, tuple(notes))
