"""Requires that the node has every label of the request."""

from __future__ import annotations

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.types import HOME_LABELS, NodeCapacity
from provisioning.types import ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return bool(_required_labels(request))


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    return nodes.labels_mask(_required_labels(request))[nodes.trait[rows]]


def reason(node: NodeCapacity, request: ResourceRequest) -> Reason | None:
    missing = sorted(_required_labels(request) - set(node.labels))
    if not missing:
        return None
    name, value = missing[0]
    return Reason(PlacementCode.LABEL_MISSING, {"name": name, "value": value})


def _required_labels(request: ResourceRequest) -> set[tuple[str, str]]:
    """Return the request's labels, except home labels, which the filter `homes` checks."""
    return {label for label in request.labels if label[0] not in HOME_LABELS}
