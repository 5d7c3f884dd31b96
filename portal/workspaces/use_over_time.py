"""Plots of a workspace's GPUs over its life, with notes about what is not stored."""

from __future__ import annotations

from datetime import datetime

from django.utils.translation import gettext as _

from portal.fleet.inventory import use_history, use_plots
from portal.fleet.inventory.models import AllocatedDevice
from portal.fleet.inventory.use_plots import UsePlots
from portal.workspaces.models import Workspace
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind


def plots_of(workspace: Workspace, now: datetime) -> UsePlots:
    """Return the plots of utilisation and memory since the workspace was created, for at most 30 days.

    The limit of memory is that of the last start's whole GPUs. Up to four queries.
    """
    rows = AllocatedDevice.objects.filter(allocation__workspace=workspace)
    latest = list(
        rows.filter(allocation__generation=workspace.generation).values_list(
            "milli", "device__kind", "device__memory_mib"
        )
    )
    not_stored = _(
        "CPU and memory are not stored over time. Details has the last values of a running workspace."
    )
    if not latest and not rows.exists():
        return UsePlots((), (_("The workspace has had no GPU."), not_stored))
    whole = [
        memory_mib
        for milli, kind, memory_mib in latest
        if milli == WHOLE_DEVICE_MILLI and kind == DeviceKind.GPU.value
    ]
    window = use_history.window_since(workspace.created_at, now)
    use = use_history.allocated_use(rows, window)
    found = use_plots.use_plots(None, use, window, total_mib=sum(whole), simulated=workspace.simulated)
    notes = [*found.notes, not_stored]
    if len(whole) < len(latest):
        notes.insert(0, _("Measurements of a shared GPU include its other users, and leave out GPU memory."))
    return UsePlots(found.plots, tuple(notes))
