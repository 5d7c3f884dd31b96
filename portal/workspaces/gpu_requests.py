"""Changes resource requests when the GPUs of a workspace are released or attached again."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.types import AcceleratorRequest

CHANGED = ("accelerators", "cpu_milli", "memory_mib")
"""Resources that change when GPUs are released."""


def resources_without_gpus(resources: dict[str, Any]) -> dict[str, Any]:
    """Return changes to `resources` that remove the accelerators and limit cores and memory.

    Without that limit, the freed GPU could be left without cores and memory for another workspace.
    """
    cores, memory_gib = settings.BERTH_RELEASED_CORES, settings.BERTH_RELEASED_MEMORY_GIB
    cpu_milli, memory_mib = resources["cpu_milli"], resources["memory_mib"]
    return {
        "accelerators": messages.dump(AcceleratorRequest()),
        "cpu_milli": min(cpu_milli, cores * 1000) if cores else cpu_milli,
        "memory_mib": min(memory_mib, memory_gib * 1024) if memory_gib else memory_mib,
    }


def resources_with_gpus(workspace: Workspace) -> dict[str, Any]:
    """Return a workspace's resources, including its released accelerators, as JSON."""
    return {**workspace.resources, **(workspace.released_resources or {})}


def release_before_start(workspace: Workspace) -> None:
    """Release the GPUs of a workspace that is not saved yet."""
    workspace.released_resources = {name: workspace.resources[name] for name in CHANGED}
    workspace.resources = {**workspace.resources, **resources_without_gpus(workspace.resources)}
    workspace.gpu_awaited = True
