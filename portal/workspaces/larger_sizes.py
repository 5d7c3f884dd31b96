"""Finds the next larger flavor on which a workspace would start now."""

from __future__ import annotations

from portal.catalog import selectors as catalog
from portal.catalog.models import Flavor
from portal.common.formatting import format_size
from portal.workspaces import resizing
from portal.workspaces.models import Workspace
from portal.workspaces.start_forecasts import start_forecasts


def next_larger(workspace: Workspace) -> Flavor | None:
    """Return the flavor with the least additional memory that would start now, with the same GPUs.

    The workspace's current capacity counts as free. Returns `None` if there is no such flavor.
    """
    current = workspace.flavor
    larger = [
        flavor
        for flavor in catalog.flavors_of(workspace.team)
        if flavor.memory_mib > workspace.resources["memory_mib"]
        and flavor.cpu_milli >= current.cpu_milli
        and flavor.as_request()["accelerators"] == current.as_request()["accelerators"]
        and resizing.keeps_files(workspace, flavor)
    ]
    if not larger:
        return None
    forecasts = start_forecasts().resized(workspace, larger)
    fitting = [flavor for flavor, forecast in forecasts if forecast.starts_now]
    return min(fitting, key=lambda flavor: (flavor.memory_mib, flavor.cpu_milli), default=None)


def title_of(flavor: Flavor) -> str:
    """Return the name and size of a flavor."""
    return f"{flavor.name} ({format_size(flavor.as_request())})"
