"""Names of resources, and the resources that a device counts as.

`cpu_milli`, `memory_mib`, `disk_mib`, `gpu` (whole and shared devices of any model), `gpu:<class>`,
`mig:<profile>`, `workspaces`, `gpu_hours`. Simulated resources have separate names. Pure functions.
"""

from __future__ import annotations

import re
from functools import lru_cache

CPU, MEMORY, DISK, WORKSPACES, GPU = "cpu_milli", "memory_mib", "disk_mib", "workspaces", "gpu"
SIMULATED = "simulated_"
GPU_HOURS = "gpu_hours"
# The class is the common short name of a model. Order matters: longer names come first.
_KNOWN = re.compile(
    r"\b(gb300|gb200|b300|b200|h200|h100|h20|h800|a800|a100|a40|a30|a16|a10g|a10|a2|l40s|l40|l20|l4|t4|v100|p100"
    r"|p40|p4|rtx ?a?\d{4}(?: ada)?|rtx pro \d{4}|mi\d{3}x?)\b",
    re.IGNORECASE,
)


def accelerator_class(model: str) -> str:
    """Return the class of a device model: `NVIDIA H100 80GB HBM3` → `h100`.

    A simulated model has its own class (`simulated-h100`), so that it never uses real quota.
    """
    bare = model.removeprefix("Simulated ")
    match = _KNOWN.search(bare)
    name = match.group(1) if match else bare.removeprefix("NVIDIA ")
    slug = re.sub(r"[^a-z0-9.+]+", "-", name.lower()).strip("-.+")[:48] or "other"
    return f"simulated-{slug}" if bare != model else slug


@lru_cache(maxsize=1024)
def gpu(model: str) -> str:
    """Return the resource of whole and shared devices of a model."""
    return f"gpu:{accelerator_class(model)}"


def mig(profile: str, *, simulated: bool = False) -> str:
    """Return the resource of MIG instances of a profile."""
    return f"mig:{'simulated-' if simulated else ''}{profile.lower()}"


def is_accelerator(resource: str) -> bool:
    return resource.startswith(("gpu:", "mig:"))


@lru_cache(maxsize=4096)
def device_resources(
    model: str, *, mig_instance: bool, profile: str = "", simulated: bool
) -> tuple[str, ...]:
    """Return all resources that a device counts as. Empty for a MIG instance with an unknown profile."""
    if mig_instance:
        return (mig(profile, simulated=simulated),) if profile else ()
    return (gpu(model),) if simulated else (gpu(model), GPU)
