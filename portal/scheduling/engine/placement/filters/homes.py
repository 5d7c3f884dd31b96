"""The home of who asks lies on the node, where it lies on one."""

from __future__ import annotations

from portal.common.reasons.codes import PlacementCode
from portal.common.reasons.reason import Reason
from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.types import HOME_LABEL, NodeCapacity
from provisioning.types import ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return any(name == HOME_LABEL for name, _ in request.labels)


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    homes = tuple(label for label in request.labels if label[0] == HOME_LABEL)
    return nodes.labels_mask(homes)[nodes.trait[rows]]


def reason(node: NodeCapacity, request: ResourceRequest) -> Reason | None:
    for label in request.labels:
        if label[0] == HOME_LABEL and label not in node.labels:
            return Reason(PlacementCode.HOME_ELSEWHERE, {"node": label[1]})
    return None
