"""The environments that come with Berth. Operators may change them."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal.catalog.environments import builds, services
from portal.catalog.environments.models import Environment, Kind, SourceKind
from portal.common.actors import SYSTEM

MINIMAL = "minimal"
DATA_SCIENCE = "data-science"
VSCODE = "vscode"
DATA_PACKAGES = (
    *("numpy", "pandas", "polars", "duckdb", "scikit-learn", "matplotlib", "altair", "pyarrow"),
    *("ipywidgets", "jupyter-resource-usage", "jupyterlab-git", "jupyterlab", "marimo"),
)


@dataclass(frozen=True, slots=True)
class Definition:
    """An environment with its packages. Without `build`, it is built on demand.

    The first build selects the CUDA version (`cuda_lines.py`).
    """

    slug: str
    name: str
    description: str
    packages: tuple[str, ...]
    position: int
    build: bool = False


DEFINITIONS = (
    Definition(
        DATA_SCIENCE,
        "Data science",
        "Data frames, plots and machine learning, with JupyterLab and marimo.",
        DATA_PACKAGES,
        20,
        build=True,
    ),
    Definition(
        VSCODE,
        "VS Code",
        "Data science, with VS Code in the browser. The node that builds it needs a C++ compiler.",
        (*DATA_PACKAGES, "npm:code-server"),
        25,
    ),
    Definition(
        "pytorch",
        "PyTorch",
        "PyTorch for the CUDA version that the drivers of the pools support. About 6 GiB on each node.",
        ("torch", "torchvision", "numpy", "pandas", "matplotlib", "ipywidgets", "jupyterlab", "marimo"),
        30,
    ),
    Definition(
        "jax",
        "JAX",
        "JAX for the CUDA version that the drivers of the pools support. About 6 GiB on each node.",
        ("jax[cuda12]", "flax", "optax", "numpy", "pandas", "matplotlib", "jupyterlab", "marimo"),
        40,
    ),
)


def ensure() -> list[str]:
    """Create missing curated environments; changes by operators stay. Returns the new slugs.

    The build of “Data science” is queued once a node exists, after builds requested by users.
    """
    slugs = []
    with transaction.atomic():
        if not Environment.objects.filter(slug=MINIMAL).exists():
            Environment.objects.create(
                slug=MINIMAL,
                name="Minimal",
                description="Software installed on each node: JupyterLab, marimo and their dependencies.",
                kind=Kind.NODE,
                curated=True,
                position=10,
                updated_at=timezone.now(),
                updated_by=SYSTEM.label,
            )
            slugs.append(MINIMAL)
    for definition in DEFINITIONS:
        left_out = definition.slug == DATA_SCIENCE and settings.BERTH_SKIP_DATA_SCIENCE
        if left_out or Environment.objects.filter(slug=definition.slug).exists():
            continue
        with transaction.atomic():
            environment = services.create(
                actor=SYSTEM,
                team=None,
                slug=definition.slug,
                name=definition.name,
                description=definition.description,
                source_kind=SourceKind.PACKAGES,
                source="\n".join(definition.packages),
                build=False,
            )
            Environment.objects.filter(pk=environment.pk).update(curated=True, position=definition.position)
            if definition.build:
                builds.request_build(SYSTEM, environment.versions.get())
            slugs.append(definition.slug)
    return slugs
