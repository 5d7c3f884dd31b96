"""What a scoring policy is: a level for each node that fits, and the device for a single one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.mix import RequestMix
from provisioning.types import WHOLE_DEVICE_MILLI, ResourceRequest

LEVEL_BITS = 22
_NEVER = np.int64(1) << 40


class Policy(ABC):
    """Scores nodes. Levels lie in 0 … 2**22 - 1; the highest wins, equal ones are for `peers` to break."""

    name: ClassVar[str]

    def __init__(self, nodes: NodeArrays, mix: RequestMix) -> None:
        self.nodes = nodes
        self.mix = mix

    def changed(self, row: int) -> None:
        """Called after what is free on the node of `row` has changed."""
        return

    @abstractmethod
    def levels(self, rows: Ints, request: ResourceRequest, eligible: Bools) -> tuple[Ints, Ints]:
        """Levels of the nodes in `rows`, all of which fit, and the first device to take on each.

        `eligible` says of each device whether it has room for its part of the request.
        """

    def preference(self, rows: Ints, eligible: Bools) -> Ints:
        """Smaller is taken first: the smallest class of device that will do, then the fullest device."""
        order = self.nodes.device_class[rows] * (WHOLE_DEVICE_MILLI + 1) + self.nodes.free_milli[rows]
        ranked: Ints = np.where(eligible, order, _NEVER)
        return ranked

    def chosen(self, rows: Ints, request: ResourceRequest, eligible: Bools) -> Ints:
        """The columns that the request takes on each node, most preferred first."""
        order = self.preference(rows, eligible)
        if request.accelerators.count == 1:
            best: Ints = order.argmin(axis=1)[:, None]
        else:
            best = order.argsort(axis=1, kind="stable")[:, : request.accelerators.count]
        return best
