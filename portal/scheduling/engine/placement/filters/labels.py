"""The node carries every label that the request names."""

from __future__ import annotations

from portal.common.reasons.codes import PlacementCode
from portal.common.reasons.reason import Reason
from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.types import HOME_LABEL, NodeCapacity
from provisioning.types import ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return bool(request.labels)


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    return nodes.labels_mask(request)[nodes.trait[rows]]


def reason(node: NodeCapacity, request: ResourceRequest) -> Reason | None:
    missing = sorted(set(request.labels) - set(node.labels))
    if not missing:
        return None
    home = next((value for name, value in missing if name == HOME_LABEL), None)
    if home is not None:
        return Reason(PlacementCode.HOME_ELSEWHERE, {"node": home})
    name, value = missing[0]
    return Reason(PlacementCode.LABEL_MISSING, {"name": name, "value": value})
