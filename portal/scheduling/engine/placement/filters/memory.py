"""Requires enough free memory on the node."""

from __future__ import annotations

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return request.memory_mib > 0


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    enough: Bools = nodes.free_memory[rows] >= request.memory_mib
    return enough


def reason(node: NodeCapacity, request: ResourceRequest) -> Reason | None:
    if node.free_memory_mib >= request.memory_mib:
        return None
    return Reason(
        PlacementCode.MEMORY_SHORT,
        {"free": node.free_memory_mib, "total": node.memory_mib, "needed": request.memory_mib},
    )
