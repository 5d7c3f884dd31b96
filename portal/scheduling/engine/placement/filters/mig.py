"""Enough MIG instances of the profile are free on this node."""

from __future__ import annotations

import numpy as np

from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.mig import choose, instances, is_idle
from provisioning.types import NodeCapacity, ResourceRequest


def applies(request: ResourceRequest) -> bool:
    return bool(request.accelerators.count and request.accelerators.mig_profile)


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    wanted = request.accelerators
    return np.array(
        [
            bool(nodes.with_mig[row]) and choose(nodes.states[row], wanted, ()) is not None
            for row in rows.tolist()
        ],
        np.bool_,
    )


def reason(node: NodeCapacity, request: ResourceRequest) -> str:
    wanted = request.accelerators
    if choose(node, wanted, ()) is not None:
        return ""
    every = instances(node, wanted)
    free = sum(1 for device in every if is_idle(node, device))
    text = f"has no MIG instance {wanted.mig_profile}"
    if every:
        text = f"{free} of {len(every)} × {wanted.mig_profile} free, needs {wanted.count} on one node"
    plan = choose(node, wanted, (), repartition=True)
    if plan is not None:
        gpus = ", ".join(change.parent_uuid for change in plan.repartitions)
        text += f"; another MIG layout of {gpus} would make room"
    return text
