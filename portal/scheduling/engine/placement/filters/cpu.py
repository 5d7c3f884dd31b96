"""The node has enough free CPU."""

from __future__ import annotations

from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.wording import cores
from provisioning.types import NodeCapacity, ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return request.cpu_milli > 0


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    enough: Bools = nodes.free_cpu[rows] >= request.cpu_milli
    return enough


def reason(node: NodeCapacity, request: ResourceRequest) -> str:
    if node.free_cpu_milli >= request.cpu_milli:
        return ""
    return (
        f"{cores(node.free_cpu_milli)} of {cores(node.cpu_milli)} CPU cores free, "
        f"needs {cores(request.cpu_milli)}"
    )
