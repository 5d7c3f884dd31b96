"""Spread: prefers the emptiest node and device, for pools where workloads on one node disturb each other."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from portal.scheduling.engine.placement.arrays import Bools, Ints
from portal.scheduling.engine.placement.scoring.base import LEVEL_BITS, Policy
from provisioning.types import ResourceRequest

_CORES = 1 << 10
_TOP = (1 << LEVEL_BITS) - 1


class Spread(Policy):
    """Most free GPUs first, then most free cores."""

    name: ClassVar[str] = "spread"

    def levels(self, rows: Ints, request: ResourceRequest, eligible: Bools) -> tuple[Ints, Ints]:
        gpus = np.minimum(self.nodes.free_milli[rows].sum(axis=1) // 10, _TOP // _CORES - 1)
        cores = np.minimum(self.nodes.free_cpu[rows] // 1000, _CORES - 1)
        levels = gpus * _CORES + cores
        if not request.accelerators.count:
            return levels, np.zeros(len(rows), np.int64)
        return levels, self.chosen(rows, request, eligible)[:, 0]

    def preference(self, rows: Ints, eligible: Bools) -> Ints:
        return np.where(eligible, -self.nodes.free_milli[rows], 1)
