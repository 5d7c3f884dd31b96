"""The devices share the bond that the request requires: one NVLink island or one NUMA node."""

from __future__ import annotations

from collections import Counter

import numpy as np

from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays, is_plain, mig_parents
from portal.scheduling.engine.placement.filters.devices import has_room
from portal.scheduling.engine.placement.topology import bond_of, largest_group
from portal.scheduling.engine.placement.wording import device_label
from provisioning.types import NodeCapacity, ResourceRequest, Within

_NAMES = {Within.NUMA: "NUMA node", Within.ISLAND: "NVLink island"}


def applies(request: ResourceRequest) -> bool:
    wanted = request.accelerators
    return wanted.count > 1 and wanted.within is not Within.NODE and not wanted.mig_profile


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    wanted = request.accelerators
    eligible = nodes.eligible(rows, request)
    return np.array(
        [
            largest_group(nodes.devices[row], eligible[place], wanted.within) >= wanted.count
            for place, row in enumerate(rows)
        ],
        np.bool_,
    )


def reason(node: NodeCapacity, request: ResourceRequest) -> str:
    wanted = request.accelerators
    parents = mig_parents(node)
    models = frozenset(wanted.allowed_models)
    groups = Counter(
        bond
        for device in node.devices
        if is_plain(device, parents)
        and (not models or device.model in models)
        and has_room(device, wanted)
        and (bond := bond_of(device, wanted.within)) is not None
    )
    most = max(groups.values(), default=0)
    if most >= wanted.count:
        return ""
    name = _NAMES[wanted.within]
    return f"{most} × {device_label(wanted)} free in one {name}, needs {wanted.count}"
