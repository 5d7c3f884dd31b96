"""Selects the CUDA packages of curated environments to match the pools' drivers."""

from __future__ import annotations

from portal.catalog.environments import selectors, sources
from portal.catalog.environments.models import (
    EnvironmentVersion,
    SourceKind,
    VersionState,
    source_digest_of,
)

BY_CUDA = {
    # PyTorch up to 2.10 has CUDA 12 on the package index, later versions CUDA 13.
    "pytorch": {12: "torch<2.11", 13: "torch"},
    "jax": {12: "jax[cuda12]", 13: "jax[cuda13]"},
}
"""The first line of an environment's list, by its major CUDA version."""


def fit_to_oldest_driver(version: EnvironmentVersion) -> str:
    """Set the CUDA line of a version for the oldest driver. Returns the new first line, or "" if unchanged.

    Applies only to curated environments before their first build: edited and built ones stay. Drivers also
    run older CUDA versions, so the oldest driver determines the line. The environment must be locked.
    """
    environment = version.environment
    lines = BY_CUDA.get(environment.slug)
    is_initial = version.number == 1 and version.state == VersionState.NEW and environment.curated
    if lines is None or not is_initial or version.source_kind != SourceKind.PACKAGES:
        return ""
    first, _, others = version.source.partition("\n")
    oldest = _oldest_driver()
    if oldest is None or first not in lines.values():
        return ""
    line = lines[max((major for major in lines if major <= oldest), default=min(lines))]
    if line == first:
        return ""
    version.source = f"{line}\n{others}"
    text = sources.source_to_build(version.source_kind, version.source, notebook=environment.notebook)
    version.source_digest = source_digest_of(version.source_kind, version.python, text)
    version.save(update_fields=["source", "source_digest"])
    return line


def _oldest_driver() -> int | None:
    """Return the lowest major CUDA version supported by any node's driver, or None if unknown."""
    versions = selectors.building_nodes().exclude(cuda_version="").values_list("cuda_version", flat=True)
    majors = [version.partition(".")[0] for version in versions]
    return min((int(major) for major in majors if major.isascii() and major.isdigit()), default=None)
