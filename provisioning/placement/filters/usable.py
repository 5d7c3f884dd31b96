"""The node takes work: it is online, healthy and not cordoned."""

from __future__ import annotations

from provisioning.placement.arrays import Bools, Ints, NodeArrays
from provisioning.types import NodeState, ResourceRequest


def applies(_request: ResourceRequest) -> bool:
    return True


def mask(nodes: NodeArrays, rows: Ints, _request: ResourceRequest) -> Bools:
    usable: Bools = nodes.usable[rows]
    return usable


def reason(node: NodeState, _request: ResourceRequest) -> str:
    return node.unusable
