"""The requirements of a template's software for driver and device, and the versions on nodes, as numbers.

Versions are compared as (major, minor). An unknown driver meets no requirement.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from portal.catalog.environments.selectors import content_of
from portal.catalog.models import Template
from portal.fleet.inventory.held_environments import digests_in
from portal.scheduling.engine.placement.types import (
    UNKNOWN_VERSION,
    NodeSoftware,
    SoftwareRequirements,
    Version,
)
from provisioning.types import AcceleratorRequest


def parse_version(version: str) -> Version | None:
    """Parse a version: “12.4” → (12, 4), “12” → (12, 0). None if invalid."""
    major, _, minor = version.partition(".")
    if not (major.isascii() and major.isdigit()):
        return None
    digits = minor.split(".")[0]
    return int(major), int(digits) if digits.isascii() and digits.isdigit() else 0


def driver_for(cuda: str) -> str:
    """Return the CUDA version that a driver must support for packages built with `cuda`, or "".

    Any driver of the same major version works, due to NVIDIA's minor version compatibility, which compiled
    packages such as PyTorch and JAX use. Templates that need more set it explicitly.
    """
    version = parse_version(cuda)
    return f"{version[0]}.0" if version is not None else ""


@lru_cache(maxsize=256)
def node_software(cuda: str, programs: frozenset[str], devices: frozenset[tuple[str, str]]) -> NodeSoftware:
    """Return a node's software from its driver, programs and (model, compute capability) pairs."""
    versions = sorted((model, parse_version(version)) for model, version in devices if version)
    return NodeSoftware(
        tuple(sorted(programs)),
        parse_version(cuda) or UNKNOWN_VERSION,
        tuple((model, version) for model, version in versions if version is not None),
    )


@lru_cache(maxsize=256)
def _requirements(
    program: str, min_cuda: str, min_compute_capability: str, model: str
) -> SoftwareRequirements:
    return SoftwareRequirements(
        program,
        parse_version(min_cuda),
        parse_version(min_compute_capability),
        (model,) if model and min_compute_capability else (),
    )


def requirements_of(
    template: Template, accelerators: AcceleratorRequest, needs: Iterable[str] = ()
) -> SoftwareRequirements:
    """Return the template's requirements for nodes. Driver and device only matter with accelerators.

    An environment in `needs` includes its programs, and may need a newer driver.
    """
    program, min_cuda = template.program, template.min_cuda
    for digest in digests_in(needs):
        content = content_of(digest)
        program = "" if program in content.programs else program
        needed = driver_for(content.cuda)
        min_cuda = max(min_cuda, needed, key=lambda version: parse_version(version) or (0, 0))
    if not accelerators.count:
        return _requirements(program, "", "", "")
    return _requirements(program, min_cuda, template.min_compute_capability, accelerators.model)
