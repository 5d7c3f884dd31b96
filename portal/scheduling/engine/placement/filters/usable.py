"""Requires that the node is online, healthy, not cordoned and not overcommitted."""

from __future__ import annotations

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import ResourceRequest


def applies(_request: ResourceRequest) -> bool:
    return True


def mask(nodes: NodeArrays, rows: Ints, _request: ResourceRequest) -> Bools:
    usable: Bools = nodes.usable[rows]
    return usable


def reason(node: NodeCapacity, _request: ResourceRequest) -> Reason | None:
    if not node.unusable and min(node.free_cpu_milli, node.free_memory_mib, node.free_disk_mib) < 0:
        return Reason(PlacementCode.NODE_OVERCOMMITTED)
    return node.unusable
