"""Slow reference implementation of the scores, node by node and shape by shape."""

from __future__ import annotations

import math

from portal.scheduling.engine.placement.arrays import is_plain, mig_parents
from portal.scheduling.engine.placement.mix import RequestMix, Shape
from portal.scheduling.engine.placement.scoring.fragmentation import LEVELS
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import ResourceRequest

Devices = list[tuple[str, int]]


def plain(node: NodeCapacity) -> Devices:
    """Return model and free milli-GPU of each device offered as a whole."""
    parents = mig_parents(node)
    return [
        (device.model, 0 if device.unusable else device.free_milli)
        for device in node.devices
        if is_plain(device, parents)
    ]


def suits(shape: Shape, model: str) -> bool:
    return not shape.models or model in shape.models


def fragmentation(mix: RequestMix, cpu: int, memory: int, devices: Devices) -> int:
    """Σ weight × capacity unusable for the shape. Shapes of several devices are counted per model."""
    total = 0
    for shape, weight in mix.fragmentation_weights()[0]:
        enough = cpu >= shape.cpu_milli and memory >= shape.memory_mib
        for model in {model for model, _ in devices}:
            free = [free_milli for kind, free_milli in devices if kind == model]
            room = [free_milli for free_milli in free if free_milli >= shape.share_milli]
            several = shape.count > 1 and shape.share_milli == 1000
            runs = (
                shape.count
                and enough
                and suits(shape, model)
                and len(room) >= (shape.count if several else 1)
            )
            total += weight * (sum(free) - sum(room) if runs else sum(free))
    return total


def room(mix: RequestMix, cpu: int, memory: int, devices: Devices) -> int:
    """Σ weight × GPUs of the shape × how often it fits."""
    total = 0
    for shape, weight in mix.room_weights()[0]:
        slots = sum(free // shape.share_milli for model, free in devices if suits(shape, model))
        times = min(slots // shape.count, cpu // max(shape.cpu_milli, 1), memory // max(shape.memory_mib, 1))
        total += weight * shape.count * shape.share_milli * times
    return total


def level(mix: RequestMix, node: NodeCapacity, request: ResourceRequest, after: Devices) -> int:
    """Return the level of a placement that leaves `after` on the devices."""
    if not request.accelerators.count and not node.devices:
        return LEVELS
    cpu, memory = node.free_cpu_milli, node.free_memory_mib
    left_cpu, left_memory = cpu - request.cpu_milli, memory - request.memory_mib
    before = plain(node)
    lost = fragmentation(mix, cpu, memory, before) - fragmentation(mix, left_cpu, left_memory, after)
    room_gain = room(mix, left_cpu, left_memory, after) - room(mix, cpu, memory, before)
    weight = mix.fragmentation_weights()[1] or 1
    accelerated = mix.room_weights()[1] or 1
    gain = lost / (weight * 1000) + room_gain / (accelerated * 1000) * 2 / 25
    return math.floor(LEVELS / (1 + math.exp(-gain)))
