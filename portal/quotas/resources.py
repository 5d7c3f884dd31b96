"""The names of what is limited, and how much of each a request or a workspace takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError

from provisioning.types import ResourceRequest

CPU, MEMORY, DISK, WORKSPACES, GPU = "cpu_milli", "memory_mib", "disk_mib", "workspaces", "gpu"
PLAIN = frozenset({CPU, MEMORY, DISK, WORKSPACES, GPU})
SIMULATED = "simulated_"
GPU_HOURS = "gpu_hours"
_ACCELERATOR = re.compile(r"(gpu|mig):[a-z0-9][a-z0-9._+-]{0,60}")
# The class of a device is the token of its name that people say; Ada and older names come last.
_KNOWN = re.compile(
    r"\b(gb300|gb200|b300|b200|h200|h100|h20|h800|a800|a100|a40|a30|a16|a10g|a10|a2|l40s|l40|l20|l4|t4|v100|p100"
    r"|p40|p4|rtx ?a?\d{4}(?: ada)?|rtx pro \d{4}|mi\d{3}x?)\b",
    re.IGNORECASE,
)


def class_of(model: str) -> str:
    """The class that a device's model counts in: `NVIDIA H100 80GB HBM3` → `h100`.

    A simulated model is a class of its own (`simulated-h100`), so that it never spends real quota.
    """
    bare = model.removeprefix("Simulated ")
    found = _KNOWN.search(bare)
    word = found.group(1) if found else bare.removeprefix("NVIDIA ")
    slug = re.sub(r"[^a-z0-9.+]+", "-", word.lower()).strip("-.+")[:48] or "other"
    return f"simulated-{slug}" if bare != model else slug


def gpu(model: str) -> str:
    """The resource of whole and shared devices of a model."""
    return f"gpu:{class_of(model)}"


def mig(profile: str, *, simulated: bool = False) -> str:
    """The resource of MIG instances of a profile."""
    return f"mig:{'simulated-' if simulated else ''}{profile.lower()}"


def is_accelerator(resource: str) -> bool:
    return resource.startswith(("gpu:", "mig:"))


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
