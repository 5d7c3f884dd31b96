"""Which packages of the environments that come with Berth bring the CUDA that the pools' drivers run."""

from __future__ import annotations

from portal.catalog.environments import selectors, sources
from portal.catalog.environments.models import (
    EnvironmentVersion,
    SourceKind,
    VersionState,
    source_digest_of,
)

BY_CUDA = {
    # The package index has PyTorch for one CUDA: up to 2.10 it was 12.
    "pytorch": {12: "torch<2.11", 13: "torch"},
    "jax": {12: "jax[cuda12]", 13: "jax[cuda13]"},
}
"""The first line of an environment's list, by the major version of the CUDA that it brings."""


def fit(version: EnvironmentVersion) -> str:
    """Have a version bring the CUDA that the oldest driver runs; its new first line, empty where it is kept.

    Only of what comes with Berth, and only before its first build: what somebody has written is kept, and so
    is what has been built. A driver runs the CUDA of older ones too, so the oldest decides. The version's
    environment is locked.
    """
    environment = version.environment
    lines = BY_CUDA.get(environment.slug)
    untouched = version.number == 1 and version.state == VersionState.NEW and environment.curated
    if lines is None or not untouched or version.source_kind != SourceKind.PACKAGES:
        return ""
    first, _, others = version.source.partition("\n")
    oldest = _oldest_driver()
    if oldest is None or first not in lines.values():
        return ""
    wanted = lines[max((major for major in lines if major <= oldest), default=min(lines))]
    if wanted == first:
        return ""
    version.source = f"{wanted}\n{others}"
    words = sources.to_build(version.source_kind, version.source, notebook=environment.notebook)
    version.source_digest = source_digest_of(version.source_kind, version.python, words)
    version.save(update_fields=["source", "source_digest"])
    return wanted


def _oldest_driver() -> int | None:
    """The least CUDA, by its major version, that a driver of a node runs; None where none is known."""
    known = selectors.building_nodes().exclude(cuda_version="").values_list("cuda_version", flat=True)
    majors = [each.partition(".")[0] for each in known]
    return min((int(each) for each in majors if each.isascii() and each.isdigit()), default=None)
