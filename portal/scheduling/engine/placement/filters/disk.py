"""The node has enough free disk."""

from __future__ import annotations

from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.wording import gib
from provisioning.types import NodeCapacity, ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return request.disk_mib > 0


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    enough: Bools = nodes.free_disk[rows] >= request.disk_mib
    return enough


def reason(node: NodeCapacity, request: ResourceRequest) -> str:
    if node.free_disk_mib >= request.disk_mib:
        return ""
    return f"{gib(node.free_disk_mib)} GiB disk free, needs {gib(request.disk_mib)}"
