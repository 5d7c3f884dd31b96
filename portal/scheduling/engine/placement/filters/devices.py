"""Enough devices of the right kind have room, all on this node."""

from __future__ import annotations

from portal.scheduling.engine.placement.arrays import (
    Bools,
    Ints,
    NodeArrays,
    free_memory_mib,
    is_plain,
    mig_parents,
)
from portal.scheduling.engine.placement.wording import device_label, gib
from provisioning.types import (
    WHOLE_DEVICE_MILLI,
    AcceleratorRequest,
    DeviceCapacity,
    NodeCapacity,
    ResourceRequest,
)


def applies(request: ResourceRequest) -> bool:
    return bool(request.accelerators.count) and not request.accelerators.mig_profile


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    enough: Bools = nodes.eligible(rows, request).sum(axis=1) >= request.accelerators.count
    return enough


def reason(node: NodeCapacity, request: ResourceRequest) -> str:
    wanted = request.accelerators
    label = device_label(wanted)
    parents = mig_parents(node)
    models = frozenset(wanted.allowed_models)
    of_model = [device for device in node.devices if not models or device.model in models]
    plain = [device for device in of_model if is_plain(device, parents)]
    if not plain:
        if of_model:
            return f"has {label} only as MIG instances"
        return f"has no {label}"
    suitable = [device for device in plain if device.memory_mib >= wanted.memory_mib]
    if not suitable:
        largest = max(device.memory_mib for device in plain)
        return f"has {label} with at most {gib(largest)} GiB, needs {gib(wanted.memory_mib)}"
    free = sum(1 for device in suitable if has_room(device, wanted))
    if free >= wanted.count:
        return ""
    text = f"{free} of {len(suitable)} × {label} free, needs {wanted.count} on one node"
    if wanted.share_milli < WHOLE_DEVICE_MILLI:
        share = f"{wanted.share_milli / 10:g} % free"
        text = f"{free} of {len(suitable)} × {label} with {share}, needs {wanted.count} on one node"
    broken = sum(1 for device in suitable if device.unusable)
    return f"{text} ({broken} out of service)" if broken else text


def has_room(device: DeviceCapacity, wanted: AcceleratorRequest) -> bool:
    """Whether the device has its part of the request free; its model is not looked at."""
    if device.unusable or device.free_milli < wanted.share_milli:
        return False
    if wanted.share_milli < WHOLE_DEVICE_MILLI:
        return free_memory_mib(device) >= wanted.memory_mib
    return device.memory_mib >= wanted.memory_mib
