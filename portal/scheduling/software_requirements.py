"""The driver and device that a template's software requires, and what a node provides, as numbers.

Versions are compared as (major, minor). Where nothing is known of a node's driver nothing is promised.
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
    """“12.4” → (12, 4), “12” → (12, 0); None for what is no version."""
    major, _, minor = version.partition(".")
    if not (major.isascii() and major.isdigit()):
        return None
    digits = minor.split(".")[0]
    return int(major), int(digits) if digits.isascii() and digits.isdigit() else 0


def driver_for(cuda: str) -> str:
    """The CUDA that a driver has to run for packages that bring this one; empty for none.

    Any of the same major version will do: what NVIDIA calls minor version compatibility, which compiled
    packages such as PyTorch's and JAX's go by. A template that needs more says so itself.
    """
    version = parse_version(cuda)
    return f"{version[0]}.0" if version is not None else ""


@lru_cache(maxsize=256)
def node_software(cuda: str, programs: frozenset[str], devices: frozenset[tuple[str, str]]) -> NodeSoftware:
    """What a node has with this driver, these programs and these (model, compute capability)."""
    known = sorted((model, parse_version(version)) for model, version in devices if version)
    return NodeSoftware(
        tuple(sorted(programs)),
        parse_version(cuda) or UNKNOWN_VERSION,
        tuple((model, version) for model, version in known if version is not None),
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
    template: Template, wanted: AcceleratorRequest, needs: Iterable[str] = ()
) -> SoftwareRequirements:
    """What a node must have for this template; of driver and device only where accelerators are asked for.

    An environment among the `needs` brings its programs along, and may need a newer driver.
    """
    program, min_cuda = template.program, template.min_cuda
    for digest in digests_in(needs):
        brought = content_of(digest)
        program = "" if program in brought.programs else program
        needed = driver_for(brought.cuda)
        min_cuda = max(min_cuda, needed, key=lambda version: parse_version(version) or (0, 0))
    if not wanted.count:
        return _requirements(program, "", "", "")
    return _requirements(program, min_cuda, template.min_compute_capability, wanted.model)
