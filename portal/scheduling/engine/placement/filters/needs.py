"""Requires that the node provides the needed features (RDMA, a memory tier, a licence) and software."""

from __future__ import annotations

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.types import NodeCapacity, software_of
from provisioning.share_messages import PROVIDES_SHARES
from provisioning.types import ResourceRequest

ENVIRONMENT = "environment:"
"""Prefix of the need for a software environment. Environments can be copied to a node later."""
FOLDER = "mount:"
"""Prefix of the need for a folder of the node."""


def applies(request: ResourceRequest) -> bool:
    return bool(request.needs or software_of(request))


def mask(nodes: NodeArrays, rows: Ints, request: ResourceRequest) -> Bools:
    return nodes.needs_mask(request)[nodes.trait[rows]]


def reason(node: NodeCapacity, request: ResourceRequest) -> Reason | None:
    needed = software_of(request)
    if needed.min_cuda is not None and node.software.cuda < needed.min_cuda:
        return Reason(PlacementCode.CUDA_TOO_OLD, {"version": list(needed.min_cuda)})
    if needed.min_compute_capability is not None and not node.software.has_capability(needed):
        return Reason(
            PlacementCode.COMPUTE_CAPABILITY_TOO_LOW,
            {"version": list(needed.min_compute_capability), "model": next(iter(needed.models), "")},
        )
    missing = sorted(set(request.needs) - set(node.provides))
    if missing and missing[0].startswith(ENVIRONMENT):
        return Reason(PlacementCode.ENVIRONMENT_MISSING)
    if missing and missing[0] == PROVIDES_SHARES:
        return Reason(PlacementCode.SHARES_NOT_HELD)
    if missing and missing[0].startswith(FOLDER):
        return Reason(PlacementCode.FOLDER_MISSING, {"name": missing[0].removeprefix(FOLDER)})
    if missing:
        return Reason(PlacementCode.FEATURE_MISSING, {"name": missing[0]})
    if needed.program and needed.program not in node.software.programs:
        return Reason(PlacementCode.NODE_LACKS_PROGRAM, {"program": needed.program})
    return None
