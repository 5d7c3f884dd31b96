"""How scarce the capacity is that a shape of request can use: the usable part of the free GPUs.

Of two placements, the better one leaves capacity for more of the expected requests. If requests of a shape
come in proportion to its popularity until its capacity is used up, each lost GPU counts more, the fewer are
left. Popularity alone, which fragmentation and room use, thus underrates requests that few devices suit (a
model, many devices of one node), and overrates those that fit nearly everywhere. Hence

  scarcity = (free + reserve) / (usable + reserve)

with `reserve` one percent of all GPUs, so that nearly exhausted capacity does not outweigh everything else.
Room uses it directly, with the slots for `usable`. Fragmentation uses its power of 3/4, which replays chose
(docs/placement.md).
"""

from __future__ import annotations

import math

import numpy as np

from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.mix import SCARCITY_ONE, RequestMix, Shape
from provisioning.types import WHOLE_DEVICE_MILLI

RESERVE_PERCENT = 1


def measure(nodes: NodeArrays, mix: RequestMix) -> dict[Shape, tuple[int, int]]:
    """Return the scarcity of each typical shape with devices, for fragmentation and for room.

    Both are in 1/`SCARCITY_ONE`, and 0 for a shape that no node could take if it were empty.
    """
    free = nodes.free_milli * nodes.usable[:, None]
    total = int(free.sum())
    reserve = int(nodes.present.sum()) * WHOLE_DEVICE_MILLI * RESERVE_PERCENT // 100 or 1
    empty = np.where(nodes.present, WHOLE_DEVICE_MILLI, 0)
    cpu = np.array([node.cpu_milli for node in nodes.states], np.int64)
    memory = np.array([node.memory_mib for node in nodes.states], np.int64)
    measures = {}
    for shape, _ in (*mix.typical(), *mix.typical_accelerated()):
        if not shape.count or shape in measures:
            continue
        suits = nodes.class_mask(shape.models, 0)[nodes.device_class]
        if not _usable_milli(shape, empty * suits, cpu, memory).any():
            measures[shape] = (0, 0)
            continue
        left = free * suits
        usable = int(_usable_milli(shape, left, nodes.free_cpu, nodes.free_memory).sum())
        room = int(_slots(shape, left, nodes.free_cpu, nodes.free_memory).sum())
        room *= shape.count * shape.share_milli
        above = total + reserve
        fragmentation = SCARCITY_ONE**4 * above**3 // (min(usable, total) + reserve) ** 3
        measures[shape] = (
            math.isqrt(math.isqrt(fragmentation)),
            SCARCITY_ONE * above // (min(room, total) + reserve),
        )
    return measures


def _has_room(shape: Shape, cpu: Ints, memory: Ints) -> Bools:
    enough: Bools = (cpu >= shape.cpu_milli) & (memory >= shape.memory_mib)
    return enough


def _usable_milli(shape: Shape, free: Ints, cpu: Ints, memory: Ints) -> Ints:
    """Return the free milli-GPUs of each node that the shape could use."""
    fits = free >= shape.share_milli
    if shape.share_milli == WHOLE_DEVICE_MILLI:
        fits &= (fits.sum(axis=1) >= shape.count)[:, None]
    usable: Ints = np.where(_has_room(shape, cpu, memory), (free * fits).sum(axis=1), 0)
    return usable


def _slots(shape: Shape, free: Ints, cpu: Ints, memory: Ints) -> Ints:
    """Return how often the shape fits on each node."""
    slots: Ints = (free // max(shape.share_milli, 1)).sum(axis=1) // shape.count
    for left, needed in ((cpu, shape.cpu_milli), (memory, shape.memory_mib)):
        if needed:
            slots = np.minimum(slots, np.maximum(left, 0) // needed)
    return slots
