"""Places a request on a snapshot: the first node, fullest first, that has everything free.

Filling the fullest node first keeps whole nodes free for large requests. All nodes of a request
with several are found at once or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from provisioning.types import (
    WHOLE_DEVICE_MILLI,
    AcceleratorRequest,
    DeviceGrant,
    DeviceState,
    NodePlacement,
    NodeState,
    Placed,
    Placement,
    ResourceRequest,
    Unplaceable,
)


def place(nodes: Sequence[NodeState], request: ResourceRequest) -> Placed | Unplaceable:
    """Decide where `request` goes; a pure function of its arguments."""
    reasons: list[tuple[str, str]] = []
    fitting: list[tuple[NodeState, tuple[DeviceGrant, ...]]] = []
    for node in nodes:
        granted = _fit(node, request)
        if isinstance(granted, str):
            reasons.append((node.name, granted))
        else:
            fitting.append((node, granted))
    if len(fitting) < request.nodes:
        if request.nodes > 1:
            reasons.extend(
                (node.name, f"fits, but {request.nodes} nodes are needed and {len(fitting)} fit")
                for node, _ in fitting
            )
        return Unplaceable(tuple(reasons))
    fitting.sort(key=lambda item: (_free_devices(item[0]), item[0].free_cpu_milli, item[0].name))
    chosen = fitting[: request.nodes]
    return Placed(Placement(tuple(NodePlacement(node.name, granted) for node, granted in chosen)))


def emptied(node: NodeState) -> NodeState:
    """The node as if nothing ran on it: what cannot be placed here can never be placed."""
    return replace(
        node,
        free_cpu_milli=node.cpu_milli,
        free_memory_mib=node.memory_mib,
        free_disk_mib=node.disk_mib,
        devices=tuple(replace(device, free_milli=WHOLE_DEVICE_MILLI) for device in node.devices),
    )


def _fit(node: NodeState, request: ResourceRequest) -> tuple[DeviceGrant, ...] | str:
    """The devices to grant on this node, or the reason why it does not fit."""
    if node.unusable:
        return node.unusable
    if node.free_cpu_milli < request.cpu_milli:
        return (
            f"{_cores(node.free_cpu_milli)} of {_cores(node.cpu_milli)} CPU cores free, "
            f"needs {_cores(request.cpu_milli)}"
        )
    if node.free_memory_mib < request.memory_mib:
        return (
            f"{_gib(node.free_memory_mib)} of {_gib(node.memory_mib)} GiB memory free, "
            f"needs {_gib(request.memory_mib)}"
        )
    if node.free_disk_mib < request.disk_mib:
        return f"{_gib(node.free_disk_mib)} GiB disk free, needs {_gib(request.disk_mib)}"
    return _devices(node, request.accelerators)


def _devices(node: NodeState, wanted: AcceleratorRequest) -> tuple[DeviceGrant, ...] | str:
    if wanted.count == 0:
        return ()
    suitable = [
        device
        for device in node.devices
        if (not wanted.model or device.model == wanted.model) and device.memory_mib >= wanted.memory_mib
    ]
    label = wanted.model or "accelerator"
    if not suitable:
        return f"has no {label}"
    free = [device for device in suitable if device.free_milli >= wanted.share_milli]
    if len(free) < wanted.count:
        return f"{len(free)} of {len(suitable)} × {label} free, needs {wanted.count} on one node"
    free.sort(key=lambda device: (device.free_milli, device.uuid))
    return tuple(DeviceGrant(device.uuid, wanted.share_milli) for device in free[: wanted.count])


def _free_devices(node: NodeState) -> int:
    return sum(_whole_free(device) for device in node.devices)


def _whole_free(device: DeviceState) -> int:
    return int(device.free_milli == WHOLE_DEVICE_MILLI)


def _cores(milli: int) -> str:
    return f"{milli / 1000:g}"


def _gib(mib: int) -> str:
    return f"{mib / 1024:.3g}"
