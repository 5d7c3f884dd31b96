"""Base class of scoring policies, which return a level and the first device for each node that fits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.mix import RequestMix
from provisioning.types import WHOLE_DEVICE_MILLI, ResourceRequest

LEVEL_BITS = 22
NO_GAIN = 32
_NEVER = np.int64(1) << 40


class Policy(ABC):
    """Scores nodes. Levels are from 0 to 2**22 - 1. The highest wins; `peers` breaks ties.

    `gains`: whether levels measure the gain for the usual requests, in the same unit for all clusters. A
    placement without gain or loss then has the level `NO_GAIN`.
    """

    name: ClassVar[str]
    gains: ClassVar[bool] = False

    def __init__(self, nodes: NodeArrays, mix: RequestMix) -> None:
        self.nodes = nodes
        self.mix = mix

    def changed(self, row: int) -> None:
        """Handle a change of the free amounts on the node of `row`."""
        return

    @abstractmethod
    def levels(self, rows: Ints, request: ResourceRequest, eligible: Bools) -> tuple[Ints, Ints]:
        """Return the levels of the nodes in `rows`, all of which fit, and the first device to take on each.

        `eligible` marks the devices with room for their share of the request.
        """

    def preference(self, rows: Ints, eligible: Bools) -> Ints:
        """Return the order of devices, smallest first: the smallest sufficient class, then the fullest."""
        order = self.nodes.device_class[rows] * (WHOLE_DEVICE_MILLI + 1) + self.nodes.free_milli[rows]
        ranked: Ints = np.where(eligible, order, _NEVER)
        return ranked

    def chosen(self, rows: Ints, request: ResourceRequest, eligible: Bools) -> Ints:
        """Return the columns that the request takes on each node, most preferred first."""
        order = self.preference(rows, eligible)
        if request.accelerators.count == 1:
            best: Ints = order.argmin(axis=1)[:, None]
        else:
            best = order.argsort(axis=1, kind="stable")[:, : request.accelerators.count]
        return best
