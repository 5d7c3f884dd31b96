"""Requires the node of the user's home, if nodes keep homes."""

from __future__ import annotations

import numpy as np

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.types import (
    ARCHIVED_HOME_LABEL,
    AWAY_HOME_LABEL,
    HOME_LABEL,
    HOME_LABELS,
    LOST_HOME_LABEL,
    MOVING_HOME_LABEL,
    NodeCapacity,
)
from provisioning.types import ResourceRequest

CODES = {
    HOME_LABEL: PlacementCode.HOME_ELSEWHERE,
    LOST_HOME_LABEL: PlacementCode.HOME_LOST,
    MOVING_HOME_LABEL: PlacementCode.HOME_MOVING,
    ARCHIVED_HOME_LABEL: PlacementCode.HOME_ARCHIVED,
    AWAY_HOME_LABEL: PlacementCode.HOME_AWAY,
}


def applies(request: ResourceRequest) -> bool:
    return any(name in HOME_LABELS for name, _ in request.labels)


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    mask: Bools = np.ones(len(rows), np.bool_)
    for label in request.labels:
        if label[0] in HOME_LABELS:
            mask &= np.isin(rows, nodes.home_rows.get(label, []))
    return mask


def reason(node: NodeCapacity, request: ResourceRequest) -> Reason | None:
    for label in request.labels:
        if label[0] in HOME_LABELS and label not in node.labels:
            return Reason(CODES[label[0]], {"node": label[1]})
    return None
