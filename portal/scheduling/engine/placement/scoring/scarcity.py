"""Measures how scarce the capacity is that a request shape can use: the usable part of the free GPUs.

The better of two placements leaves capacity for more of the expected requests. If requests of a shape arrive
in proportion to its popularity until its capacity is used up, a lost GPU matters more if few are left.
Popularity alone, which fragmentation and room use, thus underrates requests that few devices suit (a model,
many devices of one node), and overrates those that fit nearly everywhere. Hence

  scarcity = (free + reserve) / (usable + reserve)

over all pools that expect the shape, with `reserve` one percent of all GPUs, so that nearly exhausted
capacity does not outweigh everything else. Room uses the scarcity directly, with the slots for `usable`.
Fragmentation uses its power of 3/4, which did best in replays (docs/placement.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.mix import SCARCITY_ONE, RequestMix, Shape
from provisioning.types import WHOLE_DEVICE_MILLI

RESERVE_PERCENT = 1


@dataclass(frozen=True, slots=True)
class FreeAmounts:
    """The free amounts of one cluster, in milli-GPU.

    `by_shape` has three values for each shape: the amount that it could use, the amount of its slots, and
    whether a node could ever take it.
    """

    total: int
    reserve: int
    by_shape: Mapping[Shape, tuple[int, int, bool]]


def measure(clusters: Sequence[tuple[NodeArrays, RequestMix]]) -> list[dict[Shape, tuple[int, int]]]:
    """For each cluster, return the scarcity of its typical shapes with devices, for fragmentation and room.

    Clusters that expect the same shape share its requests, so the usable amount of one counts in all of them.
    Scarcities are in 1/`SCARCITY_ONE`, and 0 for a shape that no node of the cluster could take even if
    empty.
    """
    typical = [_typical_shapes(mix) for _, mix in clusters]
    everywhere = set().union(*typical)
    free = [
        _free_amounts(nodes, everywhere.intersection(shape for shape, _ in mix.shapes))
        for nodes, mix in clusters
    ]
    above = sum(amounts.total + amounts.reserve for amounts in free)
    reserve = sum(amounts.reserve for amounts in free)
    total = above - reserve
    scarcity = {}
    for shape in everywhere:
        amounts_of_shape = [amounts.by_shape[shape] for amounts in free if shape in amounts.by_shape]
        usable = sum(usable for usable, _, _ in amounts_of_shape)
        room = sum(room for _, room, _ in amounts_of_shape)
        fragmentation = SCARCITY_ONE**4 * above**3 // (min(usable, total) + reserve) ** 3
        scarcity[shape] = (
            math.isqrt(math.isqrt(fragmentation)),
            SCARCITY_ONE * above // (min(room, total) + reserve),
        )
    return [
        {shape: scarcity[shape] if amounts.by_shape[shape][2] else (0, 0) for shape in shapes}
        for amounts, shapes in zip(free, typical, strict=True)
    ]


def _typical_shapes(mix: RequestMix) -> set[Shape]:
    return {shape for shape, _ in (*mix.typical(), *mix.typical_accelerated()) if shape.count}


def _free_amounts(nodes: NodeArrays, shapes: Iterable[Shape]) -> FreeAmounts:
    free = nodes.free_milli * nodes.usable[:, None]
    empty = np.where(nodes.present, WHOLE_DEVICE_MILLI, 0)
    cpu = np.array([node.cpu_milli for node in nodes.states], np.int64)
    memory = np.array([node.memory_mib for node in nodes.states], np.int64)
    by_shape = {}
    for shape in shapes:
        suits = nodes.class_mask(shape.models, 0)[nodes.device_class]
        if not _usable_milli(shape, empty * suits, cpu, memory).any():
            by_shape[shape] = (0, 0, False)
            continue
        left = free * suits
        usable = int(_usable_milli(shape, left, nodes.free_cpu, nodes.free_memory).sum())
        slots = int(_slots(shape, left, nodes.free_cpu, nodes.free_memory).sum())
        by_shape[shape] = (usable, slots * shape.count * shape.share_milli, True)
    reserve = int(nodes.present.sum()) * WHOLE_DEVICE_MILLI * RESERVE_PERCENT // 100 or 1
    return FreeAmounts(int(free.sum()), reserve, by_shape)


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
