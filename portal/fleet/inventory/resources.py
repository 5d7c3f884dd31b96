"""The names of resources, and which one a device is counted in.

`cpu_milli`, `memory_mib`, `disk_mib`, `gpu` (whole and shared devices of any model), `gpu:<class>`,
`mig:<profile>`, `workspaces`, `gpu_hours`. What is simulated has names of its own. Pure functions.
"""

from __future__ import annotations

import re
from functools import lru_cache

CPU, MEMORY, DISK, WORKSPACES, GPU = "cpu_milli", "memory_mib", "disk_mib", "workspaces", "gpu"
SIMULATED = "simulated_"
GPU_HOURS = "gpu_hours"
# The class of a device is the token of its name that people say; Ada and older names come last.
_KNOWN = re.compile(
    r"\b(gb300|gb200|b300|b200|h200|h100|h20|h800|a800|a100|a40|a30|a16|a10g|a10|a2|l40s|l40|l20|l4|t4|v100|p100"
    r"|p40|p4|rtx ?a?\d{4}(?: ada)?|rtx pro \d{4}|mi\d{3}x?)\b",
    re.IGNORECASE,
)


def class_of(model: str) -> str:
    """The class that a device's model counts in: `NVIDIA H100 80GB HBM3` → `h100`.

    A simulated model is a class of its own (`simulated-h100`), so that it never spends real quota.
    """
    bare = model.removeprefix("Simulated ")
    found = _KNOWN.search(bare)
    word = found.group(1) if found else bare.removeprefix("NVIDIA ")
    slug = re.sub(r"[^a-z0-9.+]+", "-", word.lower()).strip("-.+")[:48] or "other"
    return f"simulated-{slug}" if bare != model else slug


@lru_cache(maxsize=1024)
def gpu(model: str) -> str:
    """The resource of whole and shared devices of a model."""
    return f"gpu:{class_of(model)}"


def mig(profile: str, *, simulated: bool = False) -> str:
    """The resource of MIG instances of a profile."""
    return f"mig:{'simulated-' if simulated else ''}{profile.lower()}"


def is_accelerator(resource: str) -> bool:
    return resource.startswith(("gpu:", "mig:"))


@lru_cache(maxsize=4096)
def of_device(model: str, *, mig_instance: bool, profile: str = "", simulated: bool) -> tuple[str, ...]:
    """All resources that a device is counted in; none for an instance whose profile is not known."""
    if mig_instance:
        return (mig(profile, simulated=simulated),) if profile else ()
    return (gpu(model),) if simulated else (gpu(model), GPU)
