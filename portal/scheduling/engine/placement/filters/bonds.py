"""Requires that the devices share an NVLink island or a NUMA node, as requested."""

from __future__ import annotations

from collections import Counter

import numpy as np

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays, is_plain, mig_parents
from portal.scheduling.engine.placement.filters.devices import has_room, models_of
from portal.scheduling.engine.placement.topology import bond_of, largest_group
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import ResourceRequest, Within


def applies(request: ResourceRequest) -> bool:
    accelerators = request.accelerators
    return accelerators.count > 1 and accelerators.within is not Within.NODE and not accelerators.mig_profile


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    accelerators = request.accelerators
    eligible = nodes.eligible(rows, request)
    return np.array(
        [
            largest_group(nodes.devices[row], eligible[place], accelerators.within) >= accelerators.count
            for place, row in enumerate(rows)
        ],
        np.bool_,
    )


def reason(node: NodeCapacity, request: ResourceRequest) -> Reason | None:
    accelerators = request.accelerators
    parents = mig_parents(node)
    models = frozenset(accelerators.allowed_models)
    groups = Counter(
        bond
        for device in node.devices
        if is_plain(device, parents)
        and (not models or device.model in models)
        and has_room(device, accelerators)
        and (bond := bond_of(device, accelerators.within)) is not None
    )
    free = max(groups.values(), default=0)
    if free >= accelerators.count:
        return None
    return Reason(
        PlacementCode.BONDED_DEVICES_SHORT,
        {
            "free": free,
            "needed": accelerators.count,
            "within": accelerators.within.value,
            "models": models_of(accelerators),
        },
    )
