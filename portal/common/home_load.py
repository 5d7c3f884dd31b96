"""Load of the homes on a node, relative to the node. Pure, since the scheduling engine uses it, too."""

from __future__ import annotations


def relative_load(gpu_milli: int, cpu_milli: int, *, devices: int, node_cpu_milli: int) -> int:
    """Return the part of a node that a use needs, in 1/1000: of its devices or cores, the larger part.

    `devices` counts what workspaces can hold: GPUs, and instead of a partitioned one its instances.
    """
    of_devices = gpu_milli // devices if devices else 0
    return max(of_devices, 1000 * cpu_milli // node_cpu_milli if node_cpu_milli else 0)
