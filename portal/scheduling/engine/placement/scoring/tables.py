"""Lookup tables that reduce fragmentation to a few additions per node.

Fragmentation of a node over the shapes m of a mix with weight p_m (popularity × scarcity) is F = Σ p_m f(m),
where f(m) is all of the node's free GPU if m cannot run there, else the free share of those devices that have
less than m needs. For shapes of one device this is a sum over the devices, because a device with less than m
needs adds its free share to f(m) whether m runs elsewhere on the node or not:

  F = Σ_devices free · (1 - P(class, cpu, memory, free)) - 1000 · full · Q(class, cpu, memory, full)

P is the popularity of the shapes of one device that the device could take, Q that of the shapes of several
whole devices that the node could take, and `full` the number of its untouched devices. Only the thresholds of
the mix matter, so P and Q are small tables of integers.

Room measures how often a shape could still be placed, not only whether: R = Σ p_m · g_m · min(slots on
devices, by CPU, by memory), with g_m the GPU share of m. Room detects that CPU and memory run out before the
GPUs do; F detects that only when the last request no longer fits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from portal.scheduling.engine.placement.arrays import Bools, Ints
from portal.scheduling.engine.placement.mix import RequestMix, Shape
from provisioning.types import WHOLE_DEVICE_MILLI

DeviceClass = tuple[int, str]


class FragmentationTable:
    """F in milli-GPU × mix weight. `total_weight` (default: the sum) corresponds to one GPU."""

    def __init__(
        self,
        typical: Sequence[tuple[Shape, int]],
        classes: Sequence[DeviceClass],
        width: int,
        total_weight: int = 0,
    ) -> None:
        weights = sum(weight for _, weight in typical)
        self.total_weight = total_weight or weights or 1
        self._cpu = _thresholds(shape.cpu_milli for shape, _ in typical)
        self._memory = _thresholds(shape.memory_mib for shape, _ in typical)
        shares = _thresholds(shape.share_milli for shape, _ in typical if shape.count)
        self._share_rank = np.searchsorted(shares, np.arange(WHOLE_DEVICE_MILLI + 1), "right")
        kinds = max(len(classes), 1)
        size = (kinds, len(self._cpu) + 1, len(self._memory) + 1)
        one = np.zeros((*size, len(shares) + 1), np.int64)
        several = np.zeros((*size, width + 1), np.int64)
        for shape, weight in typical:
            if not shape.count:
                continue
            cpu = int(np.searchsorted(self._cpu, shape.cpu_milli, "right"))
            memory = int(np.searchsorted(self._memory, shape.memory_mib, "right"))
            share = int(self._share_rank[shape.share_milli])
            for kind in _kinds(shape, classes):
                if shape.count == 1 or shape.share_milli < WHOLE_DEVICE_MILLI:
                    one[kind, cpu:, memory:, share:] += weight
                else:
                    several[kind, cpu:, memory:, shape.count :] += weight
        self._shares = len(shares) + 1
        self._memories = len(self._memory) + 1
        self._cpus = len(self._cpu) + 1
        self._width = width + 1
        self._lost = np.ascontiguousarray(weights - one).ravel()
        self._several = np.ascontiguousarray(several * WHOLE_DEVICE_MILLI).ravel()
        # The same tables as Python lists, for single nodes.
        self._cpu_list: list[int] = self._cpu.tolist()
        self._memory_list: list[int] = self._memory.tolist()
        self._rank_list: list[int] = self._share_rank.tolist()
        self._lost_view = self._lost.data
        self._several_view = self._several.data

    def cells(self, device_class: Ints, free_cpu: Ints, free_memory: Ints) -> Ints:
        """Return the table cell of each node, or of each device, in the shape of `device_class`."""
        place = self._cpu.searchsorted(free_cpu, "right") * self._memories
        place += self._memory.searchsorted(free_memory, "right")
        if device_class.ndim == 2:
            place = place[:, None]
        cells: Ints = device_class * (self._cpus * self._memories) + place
        return cells

    def loss(
        self, device_class: Ints, free_cpu: Ints, free_memory: Ints, free: Ints, *, uniform: bool
    ) -> Ints:
        """Return F of each node. `uniform`: no node mixes device classes, which is faster."""
        full = free == WHOLE_DEVICE_MILLI
        if uniform:
            cells, count = self.cells(device_class[:, 0], free_cpu, free_memory), full.sum(axis=1)
            lost = self.value(cells[:, None], free).sum(axis=1)
            total: Ints = lost - self.bonus(cells, count) * count
            return total
        cells = self.cells(device_class, free_cpu, free_memory)
        worth = self.bonus(cells, full_peers(full, device_class)) * full
        total = self.value(cells, free).sum(axis=1)
        total -= worth.sum(axis=1)
        return total

    def loss_of_one(self, kind: int, free_cpu: int, free_memory: int, free: Sequence[int]) -> int:
        """Return F of a single node with devices of one class: `loss` without the cost of arrays."""
        cpu = bisect_right(self._cpu_list, free_cpu)
        place = (kind * self._cpus + cpu) * self._memories + bisect_right(self._memory_list, free_memory)
        base, lost, rank = place * self._shares, self._lost_view, self._rank_list
        full = total = 0
        for share in free:
            total += lost[base + rank[share]] * share
            full += share == WHOLE_DEVICE_MILLI
        return total - self._several_view[place * self._width + full] * full

    def value(self, cells: Ints, free: Ints) -> Ints:
        """Return the lost GPU of each device: `free` × the weight of the shapes that cannot use it."""
        lost: Ints = self._lost.take(cells * self._shares + self._share_rank.take(free))
        lost *= free
        return lost

    def bonus(self, cells: Ints, full: Ints) -> Ints:
        """Return the value of each of `full` untouched devices for multi-device shapes."""
        worth: Ints = self._several.take(cells * self._width + full)
        return worth


class RoomTable:
    """Room per device class and shape, in milli-GPU × weight.

    `total_weight` corresponds to one GPU of room for every shape.
    """

    def __init__(
        self, typical: Sequence[tuple[Shape, int]], classes: Sequence[DeviceClass], total_weight: int
    ) -> None:
        self.total_weight = total_weight or 1
        shapes = [shape for shape, _ in typical]
        self._cpu = np.array([max(shape.cpu_milli, 1) for shape in shapes], np.float64)
        self._memory = np.array([max(shape.memory_mib, 1) for shape in shapes], np.float64)
        self._count = np.array([shape.count for shape in shapes], np.int64)
        self._multiple = np.flatnonzero(self._count > 1)
        self._worth = np.array(
            [weight * shape.count * shape.share_milli for shape, weight in typical], np.float64
        )
        share = np.array([shape.share_milli for shape in shapes], np.int64)
        free = np.arange(WHOLE_DEVICE_MILLI + 1)[:, None]
        allowed = np.zeros((max(len(classes), 1), len(shapes)), np.int64)
        for column, shape in enumerate(shapes):
            for kind in _kinds(shape, classes):
                allowed[kind, column] = 1
        slots = free // np.maximum(share, 1)[None, :]
        self._slots = (allowed[:, None, :] * slots[None, :, :]).astype(np.float64)

    def slots(self, device_class: Ints, free: Ints) -> npt_floats:
        """Return how many requests of each shape fit on devices with this free share."""
        slots: npt_floats = self._slots[device_class, free]
        return slots

    def value(self, slots: npt_floats, free_cpu: Ints, free_memory: Ints) -> Ints:
        """Return R of nodes with these slots on their devices. Overwrites `slots`.

        The result is exact, because all values are integers below 2**53.
        """
        if len(self._multiple):
            slots[:, self._multiple] //= self._count[self._multiple]
        room = np.minimum(free_cpu[:, None] / self._cpu, free_memory[:, None] / self._memory)
        np.floor(room, out=room)
        np.minimum(room, slots, out=room)
        worth: Ints = (room @ self._worth).astype(np.int64)
        return worth


npt_floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@lru_cache(maxsize=16)
def tables(
    mix: RequestMix, classes: tuple[DeviceClass, ...], width: int
) -> tuple[FragmentationTable, RoomTable]:
    """Return both tables, cached because the same pool is evaluated repeatedly."""
    weights, total = mix.fragmentation_weights()
    room, room_total = mix.room_weights()
    return (
        FragmentationTable(weights, classes, width, total),
        RoomTable(room, classes, room_total),
    )


def _thresholds(values: object) -> Ints:
    return np.array(sorted(set(values)), np.int64)  # type: ignore[call-overload]


def _kinds(shape: Shape, classes: Sequence[DeviceClass]) -> list[int]:
    return [kind for kind, (_, model) in enumerate(classes) if not shape.models or model in shape.models]


def full_peers(full: Bools, device_class: Ints) -> Ints:
    """Return for each device the number of untouched devices of its class on its node."""
    same = device_class[:, :, None] == device_class[:, None, :]
    peers: Ints = (same & full[:, None, :]).sum(axis=2)
    return peers
