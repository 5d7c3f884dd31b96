"""Explains why no node could ever take a request."""

from __future__ import annotations

from dataclasses import replace

from portal.common.reasons.reason import Reason
from portal.scheduling import blockers
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.placement.types import SoftwareRequirements
from portal.scheduling.placement_request import PlacementRequest
from portal.scheduling.pool_nodes import without_environments
from provisioning import mounts
from provisioning.share_messages import PROVIDES_SHARES


def never_reason(placement_request: PlacementRequest, reasons: blockers.NodeReasons) -> Reason:
    """Return why no node could ever take the request: drivers, its template's requirements, else its size."""
    template = placement_request.template
    if placement_request.refusals and not placement_request.pools:
        pool, refusal = placement_request.refusals[0]
        return Reason(AdmissionCode.NO_POOL_RUNS_IT, {"pool": pool, "message": refusal.params["message"]})
    if _no_node_has_program(placement_request):
        return Reason(
            AdmissionCode.NO_NODE_HAS_PROGRAM,
            {"template": template.name, "program": template.program, "install_hint": template.install_hint},
        )
    needed = placement_request.software
    if (needed.min_cuda or needed.min_compute_capability) and _fits_without_needs(placement_request):
        return Reason(
            AdmissionCode.NO_NODE_HAS_SOFTWARE,
            {
                "template": template.name,
                "min_cuda": needed.min_cuda,
                "min_compute_capability": needed.min_compute_capability,
                "model": next(iter(needed.models), ""),
            },
        )
    if template.mounts and _fits_without_folders(placement_request):
        return Reason(
            AdmissionCode.NO_NODE_SHOWS_FOLDERS, {"template": template.name, "folders": list(template.mounts)}
        )
    if _fits_without_guard(placement_request):
        return Reason(AdmissionCode.NO_NODE_HOLDS_SHARES)
    return blockers.too_large_reason(reasons)


def _no_node_has_program(placement_request: PlacementRequest) -> bool:
    """Return whether no node of the request's pools has the template's program."""
    program = placement_request.software.program
    if not program:
        return False
    nodes = [node for pool in placement_request.pools for node in pool.nodes]
    runs_any = any(pool.runs_any_software for pool in placement_request.pools)
    return bool(nodes) and not runs_any and all(program not in node.software.programs for node in nodes)


def _fits_without_needs(placement_request: PlacementRequest) -> bool:
    """Return whether the request would fit if every node met the CUDA and compute capability requirements."""
    plain = SoftwareRequirements(placement_request.software.program)
    request = without_environments(placement_request.request)
    return any(
        pool.could_ever_fit(pool.with_requirements(request, plain)) for pool in placement_request.pools
    )


def _fits_without_folders(placement_request: PlacementRequest) -> bool:
    """Return whether the request would fit if every node had the template's folders."""
    request = without_environments(placement_request.request)
    request = replace(
        request, needs=tuple(need for need in request.needs if not need.startswith(mounts.NEED))
    )
    return any(
        pool.could_ever_fit(pool.with_requirements(request, placement_request.software))
        for pool in placement_request.pools
    )


def _fits_without_guard(placement_request: PlacementRequest) -> bool:
    """Return whether the request would fit if no node had to enforce GPU shares."""
    base = without_environments(placement_request.request)
    for pool in placement_request.pools:
        request = pool.with_requirements(base, placement_request.software)
        if PROVIDES_SHARES in request.needs:
            needs = tuple(need for need in request.needs if need != PROVIDES_SHARES)
            if pool.could_ever_fit(replace(request, needs=needs)):
                return True
    return False
