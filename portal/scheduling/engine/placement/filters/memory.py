"""The node has enough free memory."""

from __future__ import annotations

from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.wording import gib
from provisioning.types import NodeCapacity, ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return request.memory_mib > 0


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    enough: Bools = nodes.free_memory[rows] >= request.memory_mib
    return enough


def reason(node: NodeCapacity, request: ResourceRequest) -> str:
    if node.free_memory_mib >= request.memory_mib:
        return ""
    return (
        f"{gib(node.free_memory_mib)} of {gib(node.memory_mib)} GiB memory free, "
        f"needs {gib(request.memory_mib)}"
    )
