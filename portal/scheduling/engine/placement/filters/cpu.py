"""Requires enough free CPU on the node."""

from __future__ import annotations

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return request.cpu_milli > 0


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    enough: Bools = nodes.free_cpu[rows] >= request.cpu_milli
    return enough


def reason(node: NodeCapacity, request: ResourceRequest) -> Reason | None:
    if node.free_cpu_milli >= request.cpu_milli:
        return None
    return Reason(
        PlacementCode.CPU_SHORT,
        {"free": node.free_cpu_milli, "total": node.cpu_milli, "needed": request.cpu_milli},
    )
