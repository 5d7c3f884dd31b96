"""Inventory of the simulated hardware."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from typing import Any

from provisioning.drivers.simulated.mig_profiles import profiles
from provisioning.drivers.simulated.script import Topology
from provisioning.types import Capability, DeviceInfo, NodeInfo

CAPABILITIES = frozenset(
    {Capability.WHOLE_GPU, Capability.SHARED_GPU, Capability.MULTI_GPU, Capability.MULTI_NODE}
)
WITH_MIG = CAPABILITIES | {Capability.MIG, Capability.REPARTITION}
PROGRAMS = ("bash", "code-server", "jupyter-lab", "marimo", "rserver")
NOTE = "Simulated accelerators without hardware."


def node_name(number: int) -> str:
    """Return the name of node `number`, starting from 1."""
    return f"sim-{number:03d}"


def device_uuid(pool: str, node: str, index: int) -> str:
    """Return a stable UUID for the position, marked as simulated."""
    digest = hashlib.sha256(f"{pool}/{node}/{index}".encode()).hexdigest()
    return f"SIM-GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def _facts(topology: Topology) -> dict[str, Any]:
    if not topology.layout:
        return {}
    return {"profiles": [profile.as_json() for profile in profiles(topology.gpu_memory_mib).values()]}


@lru_cache(maxsize=32)
def _layout(pool: str, topology: Topology) -> dict[str, NodeInfo]:
    programs = {program: f"/simulated/bin/{program}" for program in PROGRAMS}
    return {
        name: NodeInfo(
            name=name,
            cpu_milli=topology.cpu_milli,
            memory_mib=topology.memory_mib,
            disk_mib=topology.disk_mib,
            devices=tuple(
                DeviceInfo(
                    uuid=device_uuid(pool, name, index),
                    index=index,
                    model=topology.reported_model,
                    memory_mib=topology.gpu_memory_mib,
                    mig_mode=bool(topology.layout),
                    facts=_facts(topology),
                )
                for index in range(topology.gpus)
            ),
            programs=programs,
            accelerator_note=NOTE,
        )
        for name in map(node_name, range(1, topology.nodes + 1))
    }


@lru_cache(maxsize=32)
def _devices(pool: str, topology: Topology) -> dict[str, tuple[str, int]]:
    return {
        device.uuid: (name, device.index)
        for name, node in _layout(pool, topology).items()
        for device in node.devices
    }


def nodes(pool: str, topology: Topology, offline: frozenset[str]) -> tuple[NodeInfo, ...]:
    """Return all nodes; those in `offline` are marked offline."""
    return tuple(
        replace(node, online=False) if name in offline else node
        for name, node in _layout(pool, topology).items()
    )


def gpu_uuids(pool: str, topology: Topology) -> tuple[str, ...]:
    """Return the UUIDs of all GPUs."""
    return tuple(_devices(pool, topology))


def has_node(pool: str, topology: Topology, node: str) -> bool:
    """Return whether the pool has a node with this name."""
    return node in _layout(pool, topology)


def place_of(pool: str, topology: Topology, uuid: str) -> tuple[str, int] | None:
    """Return the device's node and index; None if the pool has no such device."""
    return _devices(pool, topology).get(uuid)
