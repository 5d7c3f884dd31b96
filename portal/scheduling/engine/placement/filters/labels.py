"""The node carries every label that the request names."""

from __future__ import annotations

from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from provisioning.types import NodeCapacity, ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return bool(request.labels)


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    return nodes.labels_mask(request)[nodes.trait[rows]]


def reason(node: NodeCapacity, request: ResourceRequest) -> str:
    missing = sorted(set(request.labels) - set(node.labels))
    return f"lacks the label {missing[0][0]}={missing[0][1]}" if missing else ""
