"""Requires enough free MIG instances of the profile on the node."""

from __future__ import annotations

import numpy as np

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.mig import choose, instances, is_idle
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return bool(request.accelerators.count and request.accelerators.mig_profile)


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    accelerators = request.accelerators
    return np.array(
        [
            bool(nodes.with_mig[row]) and choose(nodes.states[row], accelerators, ()) is not None
            for row in rows.tolist()
        ],
        np.bool_,
    )


def reason(node: NodeCapacity, request: ResourceRequest) -> Reason | None:
    accelerators = request.accelerators
    if choose(node, accelerators, ()) is not None:
        return None
    every = instances(node, accelerators)
    free = sum(1 for device in every if is_idle(node, device))
    params: dict[str, object] = {"profile": accelerators.mig_profile}
    plan = choose(node, accelerators, (), repartition=True)
    if plan is not None:
        params["repartition"] = [change.parent_uuid for change in plan.repartitions]
    if not every:
        return Reason(PlacementCode.MIG_PROFILE_MISSING, params)
    params |= {"free": free, "total": len(every), "needed": accelerators.count}
    return Reason(PlacementCode.MIG_INSTANCES_SHORT, params)
