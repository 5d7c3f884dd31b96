"""The node provides what the request needs: RDMA, DPU offload, a memory tier, a licence."""

from __future__ import annotations

from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from provisioning.types import NodeCapacity, ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return bool(request.needs)


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    return nodes.needs_mask(request)[nodes.trait[rows]]


def reason(node: NodeCapacity, request: ResourceRequest) -> str:
    missing = sorted(set(request.needs) - set(node.provides))
    return f"lacks {missing[0]}" if missing else ""
