"""Stateless interface to `cluster.Cluster`: places one request on a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from portal.scheduling.engine.placement.cluster import Cluster
from portal.scheduling.engine.placement.mix import DEFAULT_MIX, RequestMix
from portal.scheduling.engine.placement.scoring import DEFAULT_POLICY
from portal.scheduling.engine.placement.types import NodeCapacity, Placed, Unplaceable
from provisioning.types import WHOLE_DEVICE_MILLI, ResourceRequest

__all__ = ["DEFAULT_MIX", "DEFAULT_POLICY", "Cluster", "RequestMix", "emptied", "place"]


def place(
    nodes: Sequence[NodeCapacity],
    request: ResourceRequest,
    *,
    policy: str = DEFAULT_POLICY,
    mix: RequestMix = DEFAULT_MIX,
    repartition: bool = False,
) -> Placed | Unplaceable:
    """Decide where `request` goes; a pure function of its arguments.

    `policy` is `fragmentation`, `best_fit` or `spread`; `mix` gives the expected requests. With
    `repartition`, the placement may first change the MIG layout. Raises ValueError for an invalid request, an
    unknown policy or a duplicate node name.
    """
    return Cluster(nodes, policy=policy, mix=mix).decide(request, repartition=repartition)


def emptied(node: NodeCapacity) -> NodeCapacity:
    """Return the node as if nothing ran on it. What does not fit there can never be placed."""
    return replace(
        node,
        free_cpu_milli=node.cpu_milli,
        free_memory_mib=node.memory_mib,
        free_disk_mib=node.disk_mib,
        devices=tuple(
            replace(
                device,
                free_milli=WHOLE_DEVICE_MILLI,
                free_memory_mib=device.memory_mib if device.free_memory_mib >= 0 else -1,
            )
            for device in node.devices
        ),
    )
