"""Fragmentation gradient: prefers the node where the placement harms the usual requests least.

After "Beware of Fragmentation" (USENIX ATC 2023), with four differences:

- Memory counts as well as CPU.
- Shapes have more weight if the capacity that they can use is scarce (see `scarcity`).
- A small part of the loss of room (see `tables`) is added.
- Nodes of equal level are ordered by usage compared to their peers, never by a fixed order.

The level is deliberately coarse: a sigmoid maps the change to integers from 0 to 63. A finer score would
follow every small difference and scatter requests over all nodes.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.mix import RequestMix
from portal.scheduling.engine.placement.scoring.base import NO_GAIN, Policy
from portal.scheduling.engine.placement.scoring.tables import full_peers, tables
from provisioning.types import WHOLE_DEVICE_MILLI, ResourceRequest

LEVELS = 2 * NO_GAIN
FRAGMENTATION_WEIGHT = 25
ROOM_WEIGHT = 2
_FEW = 4


def sigmoid_thresholds(unit: int) -> Ints:
    """Return the level thresholds: a gain x, in `unit`s of one whole GPU, has level ⌊64 · sigmoid(x)⌋."""
    steps = (math.log(step / (LEVELS - step)) for step in range(1, LEVELS))
    return np.array([math.ceil(step * unit) for step in steps], np.int64)


class Fragmentation(Policy):
    """The default policy."""

    name: ClassVar[str] = "fragmentation"
    gains: ClassVar[bool] = True

    def __init__(self, nodes: NodeArrays, mix: RequestMix) -> None:
        super().__init__(nodes, mix)
        self._table, self._room = tables(mix, tuple(nodes.classes), nodes.width)
        self._loss_unit = FRAGMENTATION_WEIGHT * self._room.total_weight
        self._room_unit = ROOM_WEIGHT * self._table.total_weight
        self._device_thresholds = sigmoid_thresholds(self._table.total_weight * WHOLE_DEVICE_MILLI)
        self._thresholds = sigmoid_thresholds(self._loss_unit * self._table.total_weight * WHOLE_DEVICE_MILLI)
        self._stale: set[int] = set()
        self._slots = self._room.slots(nodes.device_class, nodes.free_milli).sum(axis=1)
        self._loss = np.zeros(len(nodes), np.int64)
        self._value = np.zeros(len(nodes), np.int64)
        if len(nodes):
            self._refresh(np.arange(len(nodes)))

    def changed(self, row: int) -> None:
        self._stale.add(row)

    def _refresh(self, rows: Ints) -> None:
        nodes = self.nodes
        classes, free = nodes.device_class[rows], nodes.free_milli[rows]
        self._slots[rows] = self._room.slots(classes, free).sum(axis=1)
        if nodes.uniform and len(rows) <= _FEW:
            for row in rows.tolist():
                self._loss[row] = self._table.loss_of_one(
                    int(nodes.device_class[row, 0]),
                    int(nodes.free_cpu[row]),
                    int(nodes.free_memory[row]),
                    nodes.free_milli[row].tolist(),
                )
        else:
            self._loss[rows] = self._node_loss(classes, nodes.free_cpu[rows], nodes.free_memory[rows], free)
        self._value[rows] = self._room.value(self._slots[rows], nodes.free_cpu[rows], nodes.free_memory[rows])

    def _node_loss(self, classes: Ints, free_cpu: Ints, free_memory: Ints, free: Ints) -> Ints:
        return self._table.loss(classes, free_cpu, free_memory, free, uniform=self.nodes.uniform)

    def loss(self) -> Ints:
        """Return the current fragmentation of each node, in milli-GPU × mix weight."""
        self._apply_changes()
        return self._loss

    def room(self) -> Ints:
        """Return the current room on each node, in milli-GPU × weight of accelerated shapes."""
        self._apply_changes()
        return self._value

    def _apply_changes(self) -> None:
        if self._stale:
            self._refresh(np.array(sorted(self._stale)))
            self._stale.clear()

    def levels(self, rows: Ints, request: ResourceRequest, eligible: Bools) -> tuple[Ints, Ints]:
        self._apply_changes()
        nodes, accelerators = self.nodes, request.accelerators
        cpu = nodes.free_cpu[rows] - request.cpu_milli
        memory = nodes.free_memory[rows] - request.memory_mib
        classes, free = nodes.device_class[rows], nodes.free_milli[rows]
        slots = self._slots[rows]
        first = np.zeros(len(rows), np.int64)
        if accelerators.count == 1 and accelerators.share_milli < WHOLE_DEVICE_MILLI:
            loss, first = self._share_loss(
                rows, accelerators.share_milli, eligible, cpu, memory, classes, free
            )
        else:
            if accelerators.count:
                every = np.arange(len(rows))[:, None]
                chosen = self.chosen(rows, request, eligible)
                first = chosen[:, 0]
                free[every, chosen] -= accelerators.share_milli
            loss = self._node_loss(classes, cpu, memory, free)
        if accelerators.count == 1:
            every_row = np.arange(len(rows))
            kind, before = classes[every_row, first], nodes.free_milli[rows, first]
            slots += self._room.slots(kind, before - accelerators.share_milli) - self._room.slots(
                kind, before
            )
        elif accelerators.count:
            slots = self._room.slots(classes, free).sum(axis=1)
        gain = (self._loss[rows] - loss) * self._loss_unit
        gain += (self._room.value(slots, cpu, memory) - self._value[rows]) * self._room_unit
        levels: Ints = self._thresholds.searchsorted(gain, "right")
        if not accelerators.count:
            # A node without devices cannot strand any.
            levels[nodes.bare[rows]] = LEVELS
        return levels, first

    def _share_loss(
        self,
        rows: Ints,
        share_milli: int,
        eligible: Bools,
        cpu: Ints,
        memory: Ints,
        classes: Ints,
        free: Ints,
    ) -> tuple[Ints, Ints]:
        """Return the loss after taking a share of the best device of each node, and that device."""
        table = self._table
        cells = table.cells(classes[:, :1] if self.nodes.uniform else classes, cpu, memory)
        after = np.where(eligible, free - share_milli, 0)
        remaining = table.value(cells, free)
        losses = table.value(cells, after)
        losses -= remaining
        losses += remaining.sum(axis=1)[:, None]
        losses -= self._bonus_without(classes, cells, free)
        level = self._device_thresholds.searchsorted(self._loss[rows][:, None] - losses, "right")
        order = np.where(eligible, level * (WHOLE_DEVICE_MILLI + 1) + WHOLE_DEVICE_MILLI - free, -1)
        first = order.argmax(axis=1)
        return losses[np.arange(len(rows)), first], first

    def _bonus_without(self, classes: Ints, cells: Ints, free: Ints) -> Ints:
        """Return the node's bonus for multi-device shapes if each device in turn is touched."""
        table = self._table
        full = free == WHOLE_DEVICE_MILLI
        if self.nodes.uniform:
            count = full.sum(axis=1)[:, None] - full
            bonus: Ints = table.bonus(cells, count) * count
            return bonus
        peers = full_peers(full, classes)
        full_bonus = table.bonus(cells, peers) * full
        fewer = table.bonus(cells, np.maximum(peers - 1, 0)) * full
        same = (classes[:, :, None] == classes[:, None, :]) & full[:, :, None]
        own = (same * full_bonus[:, None, :]).sum(axis=2)
        # The touched device loses its whole value, and each other device of its class loses some.
        rest = (same * fewer[:, None, :]).sum(axis=2) - fewer * full
        total: Ints = full_bonus.sum(axis=1)[:, None] - own + rest
        return total
