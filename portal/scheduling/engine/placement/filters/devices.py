"""Requires enough suitable devices with room on the node."""

from __future__ import annotations

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.arrays import (
    Bools,
    Ints,
    NodeArrays,
    free_memory_mib,
    is_plain,
    mig_parents,
)
from portal.scheduling.engine.placement.types import DeviceCapacity, NodeCapacity
from provisioning.gpu.shares import part_mib
from provisioning.types import WHOLE_DEVICE_MILLI, AcceleratorRequest, ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return bool(request.accelerators.count) and not request.accelerators.mig_profile


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    enough: Bools = nodes.eligible(rows, request).sum(axis=1) >= request.accelerators.count
    return enough


def reason(node: NodeCapacity, request: ResourceRequest) -> Reason | None:
    accelerators = request.accelerators
    named = {"models": models_of(accelerators)}
    parents = mig_parents(node)
    models = frozenset(accelerators.allowed_models)
    of_model = [device for device in node.devices if not models or device.model in models]
    plain = [device for device in of_model if is_plain(device, parents)]
    if not plain:
        code = PlacementCode.ONLY_AS_MIG if of_model else PlacementCode.MODEL_MISSING
        return Reason(code, named)
    suitable = [device for device in plain if device.memory_mib >= accelerators.memory_mib]
    if not suitable:
        largest = max(device.memory_mib for device in plain)
        return Reason(
            PlacementCode.DEVICE_MEMORY_SHORT,
            {**named, "largest": largest, "needed": accelerators.memory_mib},
        )
    free = sum(1 for device in suitable if has_room(device, accelerators))
    if free >= accelerators.count:
        return None
    params = {
        **named,
        "free": free,
        "total": len(suitable),
        "needed": accelerators.count,
        "unusable": sum(1 for device in suitable if device.unusable),
    }
    if accelerators.share_milli < WHOLE_DEVICE_MILLI:
        return Reason(PlacementCode.DEVICE_SHARES_SHORT, {**params, "share_milli": accelerators.share_milli})
    return Reason(PlacementCode.DEVICES_SHORT, params)


def models_of(accelerators: AcceleratorRequest) -> list[str]:
    """Return the acceptable models for a reason; an empty list means any."""
    return list(dict.fromkeys(accelerators.allowed_models))


def has_room(device: DeviceCapacity, accelerators: AcceleratorRequest) -> bool:
    """Return whether the device has room for its share of the request. Ignores the model."""
    if device.unusable or device.free_milli < accelerators.share_milli:
        return False
    if accelerators.share_milli < WHOLE_DEVICE_MILLI:
        return free_memory_mib(device) >= part_mib(
            device.memory_mib, accelerators.share_milli, accelerators.memory_mib
        )
    return device.memory_mib >= accelerators.memory_mib
