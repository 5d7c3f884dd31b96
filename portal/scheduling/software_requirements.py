"""What a template's software needs of driver and device, as names that nodes provide.

Reasons read “lacks CUDA 12.4 or newer”. Where nothing is known of a node's driver nothing is promised.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from portal.catalog.models import COMPUTE_CAPABILITIES, Template
from provisioning.types import AcceleratorRequest

OLDEST_CUDA = 11
MOST_MINOR = 15


def _parsed(version: str) -> tuple[int, int] | None:
    major, _, minor = version.partition(".")
    if not (major.isascii() and major.isdigit()):
        return None
    digits = minor.split(".")[0]
    return int(major), int(digits) if digits.isascii() and digits.isdigit() else 0


def cuda(version: str) -> str:
    """The name of a driver that runs this version of CUDA."""
    return f"CUDA {version} or newer"


def capability(version: str) -> str:
    """The name of a device of this compute capability."""
    return f"compute capability {version} or newer"


@lru_cache(maxsize=256)
def provided(cuda_version: str, devices: frozenset[tuple[str, str]]) -> tuple[str, ...]:
    """What a node with this driver and these (model, compute capability) provides."""
    names: list[str] = []
    driver = _parsed(cuda_version) if cuda_version else None
    if driver is not None:
        majors = range(OLDEST_CUDA, driver[0] + 1)
        versions = [(major, minor) for major in majors for minor in range(MOST_MINOR + 1)]
        names += [cuda(f"{major}.{minor}") for major, minor in versions if (major, minor) <= driver]
    for model, has in sorted(devices):
        own = _parsed(has) if has else None
        for version in COMPUTE_CAPABILITIES:
            wanted = _parsed(version)
            if own is not None and wanted is not None and wanted <= own:
                names += [capability(version), on(version, model)]
    return tuple(dict.fromkeys(names))


def on(version: str, model: str) -> str:
    return f"{capability(version)} on {model}"


def needs(template: Template, wanted: AcceleratorRequest) -> tuple[str, ...]:
    """What a node must provide for this template and these accelerators; nothing where none are asked for."""
    if not wanted.count:
        return ()
    names = [cuda(template.min_cuda)] if template.min_cuda else []
    if template.min_compute_capability:
        version = template.min_compute_capability
        names.append(on(version, wanted.model) if wanted.model else capability(version))
    return tuple(names)


def capable(version: str, provides: Iterable[str]) -> set[str]:
    """The models that have this compute capability, by what nodes provide."""
    prefix = f"{capability(version)} on "
    return {name.removeprefix(prefix) for name in provides if name.startswith(prefix)}
