"""How much of each resource a request takes, and what is a resource at all; names: `inventory.resources`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError

from portal.inventory.resources import (
    CPU,
    DISK,
    GPU,
    GPU_HOURS,
    MEMORY,
    SIMULATED,
    WORKSPACES,
    class_of,
    gpu,
    is_accelerator,
    mig,
)
from provisioning.types import ResourceRequest

__all__ = [
    "CPU", "DISK", "GPU", "GPU_HOURS", "MEMORY", "PLAIN", "SIMULATED", "WORKSPACES", "amounts_of", "class_of",
    "gpu", "is_accelerator", "mig", "validate_amounts", "validate_resource",
]  # fmt: skip

PLAIN = frozenset({CPU, MEMORY, DISK, WORKSPACES, GPU})
_ACCELERATOR = re.compile(r"(gpu|mig):[a-z0-9][a-z0-9._+-]{0,60}")


def amounts_of(request: ResourceRequest, *, model: str = "", simulated: bool = False) -> dict[str, int]:
    """What the request takes of each resource, over all its nodes.

    `model` is the one model that is meant where the request allows several, else it is the request's
    own. CPU and memory of simulated nodes are resources of their own.
    """
    prefix = SIMULATED if simulated else ""
    amounts = {
        prefix + CPU: request.cpu_milli * request.nodes,
        prefix + MEMORY: request.memory_mib * request.nodes,
        prefix + DISK: request.disk_mib * request.nodes,
        WORKSPACES: 1,
    }
    wanted = request.accelerators
    taken = wanted.count * wanted.share_milli * request.nodes
    if wanted.mig_profile:
        amounts[mig(wanted.mig_profile, simulated=simulated)] = wanted.count * 1000 * request.nodes
    elif taken:
        if not simulated:
            amounts[GPU] = taken
        chosen = model or wanted.model
        if chosen:
            amounts[gpu(chosen)] = taken
    return {name: amount for name, amount in amounts.items() if amount}


def validate_resource(value: str) -> None:
    """Raises ValidationError for what is no resource."""
    if value.removeprefix(SIMULATED) not in PLAIN and not _ACCELERATOR.fullmatch(value):
        raise ValidationError(
            "“%(value)s” is no resource. Use gpu, gpu:h100, mig:1g.10gb, cpu_milli, memory_mib, disk_mib"
            " or workspaces.",
            params={"value": value},
        )


def validate_amounts(value: Any) -> None:
    """Raises ValidationError unless it maps resources to amounts above zero."""
    if not isinstance(value, Mapping) or not value:
        raise ValidationError("Name at least one resource and its amount.")
    for resource, amount in value.items():
        validate_resource(resource)
        if not isinstance(amount, int) or isinstance(amount, bool) or amount <= 0:
            raise ValidationError(f"The amount of {resource} has to be a whole number above zero.")
