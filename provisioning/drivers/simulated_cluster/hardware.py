"""Inventory of a simulated cluster, and the requests that its nodes can run."""

from __future__ import annotations

from functools import lru_cache

from provisioning.drivers.simulated_cluster.script import Hardware
from provisioning.errors import InvalidSpec
from provisioning.types import WHOLE_DEVICE_MILLI, Capability, DeviceInfo, NodeInfo, ResourceRequest

CAPABILITIES = frozenset({Capability.WHOLE_GPU, Capability.MULTI_GPU, Capability.MULTI_NODE})
PROGRAMS = ("bash", "code-server", "jupyter-lab", "marimo", "rserver")
NOTE = "Simulated accelerators without hardware."


@lru_cache(maxsize=32)
def nodes(pool: str, hardware: Hardware) -> tuple[NodeInfo, ...]:
    """Return all nodes of the pool with this slug. Their devices are units without an identity."""
    return tuple(_node(pool, hardware.node(index), hardware) for index in range(hardware.nodes))


def check_request(request: ResourceRequest, hardware: Hardware) -> None:
    """Raise `InvalidSpec` for a request that never fits."""
    gpus = request.accelerators
    if min(request.cpu_milli, request.memory_mib, request.nodes) < 1 or min(request.disk_mib, gpus.count) < 0:
        raise InvalidSpec("The flavor has no CPU, memory or nodes. Choose another flavor.")
    if gpus.share_milli != WHOLE_DEVICE_MILLI or gpus.mig_profile:
        raise InvalidSpec("This pool has whole GPUs only. Choose a flavor without shares and MIG.")
    for requested, available, description in (
        (request.nodes, hardware.nodes, "nodes in this pool"),
        (request.cpu_milli, hardware.cpu_milli, "milli-CPU on a node"),
        (request.memory_mib, hardware.memory_mib, "MiB of memory on a node"),
        (request.disk_mib, hardware.disk_mib, "MiB of disk on a node"),
        (gpus.count, hardware.gpus, "GPUs on a node"),
        (gpus.memory_mib if gpus.count else 0, hardware.gpu_memory_mib, "MiB of memory on a GPU"),
    ):
        if requested > available:
            raise InvalidSpec(
                f"The flavor needs {requested} {description}, limit {available}. Choose a smaller flavor."
            )
    reported, models = hardware.reported_model, gpus.allowed_models
    if gpus.count and models and not any(model.lower() in reported.lower() for model in models):
        raise InvalidSpec(f"This pool has {reported} GPUs, not {' or '.join(models)}. Choose another flavor.")


def _node(pool: str, name: str, hardware: Hardware) -> NodeInfo:
    return NodeInfo(
        name=name,
        cpu_milli=hardware.cpu_milli,
        memory_mib=hardware.memory_mib,
        disk_mib=hardware.disk_mib,
        devices=tuple(
            DeviceInfo(
                uuid=f"{pool}/{name}/{hardware.unit(index)}",
                index=index,
                model=hardware.reported_model,
                memory_mib=hardware.gpu_memory_mib,
            )
            for index in range(hardware.gpus)
        ),
        programs={program: f"/simulated/bin/{program}" for program in PROGRAMS},
        accelerator_note=NOTE,
    )
