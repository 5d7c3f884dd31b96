"""Computes the amounts that a request takes, and validates resource names (see `inventory.resources`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.fleet.inventory.resources import (
    CPU,
    DISK,
    GPU,
    GPU_HOURS,
    MEMORY,
    SIMULATED,
    WORKSPACES,
    accelerator_class,
    device_resources,
    gpu,
    is_accelerator,
    mig,
)
from portal.quota.limits.codes import QuotaCode
from provisioning.types import ResourceRequest

__all__ = [
    "CPU",
    "DISK",
    "GPU",
    "GPU_HOURS",
    "MEMORY",
    "PLAIN",
    "SIMULATED",
    "WORKSPACES",
    "accelerator_class",
    "amounts_of",
    "device_resources",
    "gpu",
    "is_accelerator",
    "is_resource",
    "mig",
    "validate_amounts",
    "validate_resource",
]  # fmt: skip

PLAIN = frozenset({CPU, MEMORY, DISK, WORKSPACES, GPU})
_ACCELERATOR = re.compile(r"(gpu|mig):[a-z0-9][a-z0-9._+-]{0,60}")


def amounts_of(request: ResourceRequest, *, model: str = "", simulated: bool = False) -> dict[str, int]:
    """Return the amounts that the request takes over all its nodes, by resource.

    `model` selects the model if the request allows several. CPU and memory of simulated nodes are separate
    resources.
    """
    prefix = SIMULATED if simulated else ""
    amounts = {
        prefix + CPU: request.cpu_milli * request.nodes,
        prefix + MEMORY: request.memory_mib * request.nodes,
        prefix + DISK: request.disk_mib * request.nodes,
        WORKSPACES: 1,
    }
    accelerators = request.accelerators
    taken = accelerators.count * accelerators.share_milli * request.nodes
    if accelerators.mig_profile:
        amounts[mig(accelerators.mig_profile, simulated=simulated)] = (
            accelerators.count * 1000 * request.nodes
        )
    elif taken:
        if not simulated:
            amounts[GPU] = taken
        chosen = model or accelerators.model
        if chosen:
            amounts[gpu(chosen)] = taken
    return {name: amount for name, amount in amounts.items() if amount}


def is_resource(value: str) -> bool:
    """Return whether the value names a resource that can be limited."""
    return value.removeprefix(SIMULATED) in PLAIN or _ACCELERATOR.fullmatch(value) is not None


def validate_resource(value: str) -> None:
    """Raise ValidationError unless the value names a resource."""
    if not is_resource(value):
        raise ValidationError(message_of(Reason(QuotaCode.NO_SUCH_RESOURCE, {"resource": value})))


def validate_amounts(value: Any) -> None:
    """Raise ValidationError unless the value maps resources to positive amounts."""
    if not isinstance(value, Mapping) or not value:
        raise ValidationError(_("Enter at least one resource and its amount."))
    for resource, amount in value.items():
        validate_resource(resource)
        if not isinstance(amount, int) or isinstance(amount, bool) or amount <= 0:
            raise ValidationError(
                _("The amount of %(resource)s must be a whole number above 0."),
                params={"resource": resource},
            )
