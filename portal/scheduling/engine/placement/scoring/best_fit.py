"""Best fit: prefers the node with the least free capacity."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from portal.scheduling.engine.placement.arrays import Bools, Ints
from portal.scheduling.engine.placement.scoring.base import LEVEL_BITS, Policy
from provisioning.types import ResourceRequest

_CORES = 1 << 10
_TOP = (1 << LEVEL_BITS) - 1


class BestFit(Policy):
    """Fewest free GPUs first, then fewest free cores. Packs tightly and ignores the mix."""

    name: ClassVar[str] = "best_fit"

    def levels(self, rows: Ints, request: ResourceRequest, eligible: Bools) -> tuple[Ints, Ints]:
        gpus = np.minimum(self.nodes.free_milli[rows].sum(axis=1) // 10, _TOP // _CORES - 1)
        cores = np.minimum(self.nodes.free_cpu[rows] // 1000, _CORES - 1)
        levels = _TOP - gpus * _CORES - cores
        if not request.accelerators.count:
            return levels, np.zeros(len(rows), np.int64)
        return levels, self.chosen(rows, request, eligible)[:, 0]
