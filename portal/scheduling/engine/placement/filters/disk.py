"""Requires enough free disk space on the node."""

from __future__ import annotations

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return request.disk_mib > 0


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    enough: Bools = nodes.free_disk[rows] >= request.disk_mib
    return enough


def reason(node: NodeCapacity, request: ResourceRequest) -> Reason | None:
    if node.free_disk_mib >= request.disk_mib:
        return None
    return Reason(PlacementCode.DISK_SHORT, {"free": node.free_disk_mib, "needed": request.disk_mib})
